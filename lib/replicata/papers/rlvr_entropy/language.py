"""What TRL users get: the mismatch term of a packaged language model under a shipped sampler.

A public instruct model's generation config (top-k 20, top-p 0.95) draws answers to small
sums; the same responses are then read under the rule that TRL has by default and under every
remedy. Nothing is trained: the terms are those of the first update.
"""

import re

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import GenerationConfig

from replicata.models import LoadedModel, load_model
from replicata.papers.rlvr_entropy.experiment import Params
from replicata.papers.rlvr_entropy.method import (
    Batch,
    Rule,
    State,
    advantages,
    decompose,
    describe_states,
    token_weights,
)
from replicata.papers.rlvr_entropy.samplers import SAMPLERS
from replicata.workflow.cells import Cell
from replicata.workflow.seeds import derive_seed

#: Responses whose logits are held at a time.
ROWS = 4

#: What is read on the same responses: a name, the rule, and what multiplies the advantage.
REMEDIES: tuple[tuple[str, Rule, str], ...] = (
    ("TRL default (over-long fail)", "fail", "one"),
    ("mask_truncated_completions", "mask", "one"),
    ("importance ratio per token", "fail", "token"),
    ("importance ratio per sequence", "fail", "sequence"),
    ("zero-net baseline", "zeronet", "one"),
    ("sharpness-weighted baseline", "sharp", "one"),
    ("renormalised learner", "fail", "renorm"),
)


def language(params: Params, cell: Cell) -> pd.DataFrame:
    """Roll out groups of responses, and return the terms of every remedy, one row per prompt."""
    own = params.language
    assert own is not None  # the cell is planned only where there is a section
    loaded = load_model(own.model, device=params.device)
    rng = np.random.default_rng(derive_seed(params.seed, "rlvr_entropy", cell.id))
    problems = [small_sum(rng) for _ in range(own.prompts)]
    parts = []
    for index, (question, answer) in enumerate(problems):
        seed = derive_seed(params.seed, "rlvr_entropy", cell.id, index)
        tokens, states = answers(loaded, question, own.group_size, own.max_tokens, seed)
        mask = until_stop(tokens, loaded.stop_token_ids)
        stops = torch.tensor(loaded.stop_token_ids, device=tokens.device)
        overlong = ~(torch.isin(tokens, stops) & mask).any(-1)
        texts = [
            loaded.tokenizer.decode(row[keep], skip_special_tokens=True)
            for row, keep in zip(tokens, mask, strict=True)
        ]
        rewards = torch.tensor([float(last_number(t) == answer) for t in texts])
        rewards = torch.where(overlong.cpu(), 0.0, rewards)
        states = State(**{name: value.cpu() for name, value in vars(states).items()})
        batch = Batch(rewards, overlong.cpu(), mask.cpu(), states.gap, own.group_size)
        parts.append(read(batch, states).assign(unit=f"prompt-{index:02d}"))
    return pd.concat(parts, ignore_index=True)


def small_sum(rng: np.random.Generator) -> tuple[str, int]:
    """Return a question and its answer."""
    first, second = (int(x) for x in rng.integers(2, 10, size=2))
    return f"What is {first} + {second}? Answer in one short sentence.", first + second


def answers(
    loaded: LoadedModel, question: str, count: int, max_tokens: int, seed: int
) -> tuple[Tensor, State]:
    """Return sampled responses (count, L) and the states where their tokens were drawn."""
    sampler, model = SAMPLERS["shipped"], loaded.model
    chat = [{"role": "user", "content": question}]
    prompt = loaded.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"].to(model.device)
    settings = GenerationConfig(
        max_new_tokens=max_tokens,
        do_sample=True,
        temperature=sampler.temperature,
        top_k=sampler.top_k,
        top_p=sampler.top_p,
        eos_token_id=list(loaded.stop_token_ids),
        pad_token_id=loaded.stop_token_ids[0],
    )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sequences = model.generate(
            prompt.repeat(count, 1),
            attention_mask=torch.ones_like(prompt).repeat(count, 1),
            generation_config=settings,
        )
    tokens = sequences[:, prompt.shape[1] :]
    states = [_states(model, rows, tokens.shape[1]) for rows in sequences.split(ROWS)]
    return tokens, State(
        **{name: torch.cat([vars(s)[name] for s in states]) for name in vars(states[0])}
    )


@torch.no_grad()
def _states(model: torch.nn.Module, sequences: Tensor, length: int) -> State:
    logits = model(sequences, use_cache=False, logits_to_keep=length + 1).logits[:, :-1].float()
    return describe_states(logits, SAMPLERS["shipped"].kept(logits), 1.0, sequences[:, -length:])


def until_stop(tokens: Tensor, stops: tuple[int, ...]) -> Tensor:
    """Return the mask (B, L) of tokens up to the first stop token, which counts."""
    stopped = torch.isin(tokens, torch.tensor(stops, device=tokens.device)).cumsum(-1)
    return (stopped - torch.isin(tokens, torch.tensor(stops, device=tokens.device)).long()) == 0


def last_number(text: str) -> int | None:
    """Return the last whole number of a text."""
    found = re.findall(r"\d+", text)
    return int(found[-1]) if found else None


def read(batch: Batch, states: State) -> pd.DataFrame:
    """Return the terms of one prompt's responses under every remedy, and what they look like."""
    mask = batch.mask.float()
    log_ratio = (states.kept_mass.clamp(min=1e-30).log() * mask).sum(-1, keepdim=True)
    ratios = {
        "one": torch.ones_like(mask),
        "token": states.kept_mass,
        "sequence": log_ratio.exp().expand_as(mask),
        "renorm": torch.ones_like(mask),
    }
    rows = []
    for name, rule, ratio in REMEDIES:
        advantage, kept = advantages(batch, rule)
        weights = token_weights(batch.mask * kept[:, None], "token")
        drift = decompose(advantage[:, None] * ratios[ratio], weights, states)
        # The renormalised learner's score has mean 0 under the sampler: only the signal is left.
        mismatch = 0.0 * drift.mismatch if ratio == "renorm" else drift.mismatch
        for metric, value in (("signal", drift.signal), ("mismatch", mismatch), ("net", drift.net)):
            rows.append({"arm": name, "metric": metric, "value": float(value)})
    tokens = mask.sum()
    for metric, value in (
        ("entropy", (states.entropy * mask).sum() / tokens),
        ("mean_gap", (states.gap * mask).sum() / tokens),
        ("kept_mass", (states.kept_mass * mask).sum() / tokens),
        ("sequence_ratio", log_ratio.exp().median()),
        ("length", mask.sum(-1).mean()),
        ("overlong", batch.overlong.float().mean()),
        ("accuracy", batch.rewards.mean()),
    ):
        rows.append({"arm": "rollouts", "metric": metric, "value": float(value)})
    return pd.DataFrame(rows)
