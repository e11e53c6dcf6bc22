"""Rollout and training speed of tiny policies: a stack against plain ``generate``, one by one.

Run with::

    OMP_NUM_THREADS=1 python benchmarks/rlvr_rollout.py

All three ways answer the same prompts with top-p 0.9 in the same number of steps: transformers'
``generate`` with its own warper and multinomial sampling, our rollout of a single policy (which
also records kept sets and log-probabilities), and our rollout of a stack of eight. They run in
turns. Tokens are counted as positions decoded, for all rows alike.
"""

import argparse
import time
from statistics import median

import torch
from transformers import LogitsProcessorList, TopPLogitsWarper

from replicata.papers.rlvr_entropy.base import build_policy
from replicata.papers.rlvr_entropy.experiment import ModelParams
from replicata.papers.rlvr_entropy.rollout import gumbel_noise, response_logits, roll
from replicata.papers.rlvr_entropy.samplers import SAMPLERS
from replicata.papers.rlvr_entropy.task import FILLER, Task
from replicata.training.stacked import stack_policies

ROWS, LENGTH = 128, 16
TASK = Task(fillers=18, max_length=LENGTH, mean_filler=9.5, right_short=0.9, right_long=0.3)


def plain(model: torch.nn.Module, prompts: torch.Tensor) -> torch.Tensor:
    """Roll out by transformers alone."""
    return model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=LENGTH,
        min_new_tokens=LENGTH,
        do_sample=True,
        top_k=0,
        logits_processor=LogitsProcessorList([TopPLogitsWarper(0.9)]),
        pad_token_id=0,
    )


def timed(function: object, *arguments: object) -> tuple[float, object]:
    """Return seconds and the result."""
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def train_step(model: torch.nn.Module, rollout: object) -> None:
    """One forward and backward pass over a rollout's tokens."""
    response_logits(model, rollout).log_softmax(-1).square().mean().backward()
    model.zero_grad()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = ModelParams(width=64, layers=2)
    single = build_policy(shape, TASK.vocabulary).eval()
    stacked = stack_policies(build_policy(shape, TASK.vocabulary).eval(), options.policies)
    prompts = TASK.train_prompts[torch.arange(ROWS) % 80]
    noise = gumbel_noise(ROWS, LENGTH, TASK.vocabulary, 0)
    noise[..., :FILLER] = -1e9  # nobody ends early, in no way of the three
    sampler = SAMPLERS["topp"]
    ways = {
        "`generate`, one policy": (plain, (single, prompts), 1),
        "ours, one policy": (roll, (single, [sampler], prompts, noise), 1),
        f"ours, a stack of {options.policies}": (
            roll,
            (stacked, [sampler] * options.policies, prompts, noise),
            options.policies,
        ),
    }
    rolling: dict[str, list[float]] = {name: [] for name in ways}
    training: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(options.repeats + 1):
        for name, (function, arguments, _) in ways.items():
            seconds, result = timed(function, *arguments)
            if repeat:  # the first round warms up
                rolling[name].append(seconds)
            if name.startswith("ours"):
                seconds, _ = timed(train_step, arguments[0], result)
                if repeat:
                    training[name].append(seconds)
    base = ROWS * LENGTH / median(rolling["`generate`, one policy"])
    print("| way | rollout, tokens/s | times `generate` | forward and backward, tokens/s |")
    print("| --- " * 4 + "|")
    for name, (_, _, policies) in ways.items():
        tokens = ROWS * LENGTH * policies
        speed = tokens / median(rolling[name])
        trained = f"{tokens / median(training[name]):,.0f}" if training[name] else ""
        print(f"| {name} | {speed:,.0f} | {speed / base:.2f} | {trained} |")


if __name__ == "__main__":
    main()
