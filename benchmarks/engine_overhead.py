"""What ``VllmEngine.generate`` costs on top of vLLM's own ``LLM.generate``.

Run with::

    OMP_NUM_THREADS=1 python benchmarks/engine_overhead.py

Both calls go to the same engine with the same prompts and settings, in turn, so that a busy machine
slows both alike. Prints a Markdown row: the ratio of the medians, and the range of the middle half
of the pairwise ratios. The goal is a ratio of at most 1.05.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median, quantiles

from vllm import SamplingParams

from replicata.inference import Sampling
from replicata.inference.vllm_engine import VllmEngine
from replicata.models import model_directory

TEXT = "The quick brown fox jumps over the lazy dog and then it runs to the river to drink. " * 2


def seconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Measure, and print the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()

    directory = model_directory("smollm2-135m-instruct", "float32")
    sampling = Sampling(max_tokens=options.tokens)
    same = SamplingParams(temperature=0.0, max_tokens=options.tokens, ignore_eos=True, logprobs=0)
    ours, theirs = [], []
    with VllmEngine(directory, "float32", max_model_len=512) as engine:
        encode = engine.llm.get_tokenizer().encode
        prompts = [encode(TEXT[4 * i :]) for i in range(options.prompts)]
        given = [{"prompt_token_ids": prompt} for prompt in prompts]

        def wrapped() -> list[list[int]]:
            return [answer.token_ids for answer in engine.generate(prompts, sampling)]

        def raw() -> list[list[int]]:
            answers = engine.llm.generate(given, same, use_tqdm=False)
            return [list(answer.outputs[0].token_ids) for answer in answers]

        assert wrapped() == raw()  # also the warm-up
        for repeat in range(options.repeats):
            # Each goes first every other time.
            if repeat % 2:
                ours.append(seconds(wrapped))
            theirs.append(seconds(raw))
            if not repeat % 2:
                ours.append(seconds(wrapped))
    low, _, high = quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4)
    print("| benchmark | vLLM, s | ours, s | ratio of medians | middle half | repeats |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    print(
        f"| VllmEngine.generate, {options.prompts} x {options.tokens} tokens "
        f"| {median(theirs):.3f} | {median(ours):.3f} | {median(ours) / median(theirs):.3f} "
        f"| {low:.3f} to {high:.3f} | {options.repeats} |"
    )


if __name__ == "__main__":
    main()
