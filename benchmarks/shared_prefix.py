"""What sharing prefixes saves the memory study: ``python benchmarks/shared_prefix.py``.

Scores the choices of a few worlds in two ways, in turns, on one thread: with common prefixes
computed once, and in full batches, padded on the left, as one does without sharing. Prints a
Markdown table.
"""

import hashlib
import itertools
import statistics
import time

import torch

from replicata.inference.scoring import Scored, score_options
from replicata.models import LoadedModel, load_model
from replicata.papers.memory_study import prompts
from replicata.papers.memory_study.endpoints import _tokenized
from replicata.papers.memory_study.worlds import make_world, world_id

WORLDS, REPEATS, ROWS = 2, 3, 32


class Seeds:
    """Seeds of no study."""

    def seed(self, unit: str) -> int:
        """Return a number for a name."""
        return int.from_bytes(hashlib.sha256(f"benchmark {unit}".encode()).digest()[:8], "big")


def requests() -> list[dict]:
    """Return the choices of all arms, as the study asks for them."""
    found = []
    for number in range(WORLDS):
        world = make_world(Seeds(), world_id(number))
        for scenario, outcome in itertools.product(("unlucky", "lucky"), prompts.OUTCOMES):
            texts = {
                prompts.lesson(world, scenario, o, v)
                for o, v in itertools.product(prompts.OUTCOMES, ("good", "bad"))
            } | {prompts.IRRELEVANT, prompts.instruction(world, scenario, outcome)}
            found += [
                prompts.choice_request(world, scenario, outcome, "indep", text)
                for text in sorted(texts)
            ]
    return found


def in_full(loaded: LoadedModel, scored: list[Scored]) -> list[list[float]]:
    """Score every prompt with every option in batches, each sequence in full."""
    rows = [
        ([t for part in s.parts for t in part], option, i)
        for i, s in enumerate(scored)
        for option in s.options
    ]
    scores: list[list[float]] = [[] for _ in scored]
    for start in range(0, len(rows), ROWS):
        chunk = rows[start : start + ROWS]
        longest = max(len(ids) + len(option) for ids, option, _ in chunk)
        tokens = torch.zeros(len(chunk), longest, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, (ids, option, _) in enumerate(chunk):
            whole = [*ids, *option]
            tokens[row, -len(whole) :] = torch.tensor(whole)
            mask[row, -len(whole) :] = 1
        with torch.inference_mode():
            logits = loaded.model(
                tokens,
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                logits_to_keep=3,
            ).logits
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        for row, (_, option, i) in enumerate(chunk):
            places = range(-len(option) - 1, -1)
            scores[i].append(
                sum(float(logprobs[row, p, t]) for p, t in zip(places, option, strict=True))
            )
    return scores


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    loaded = load_model("smollm2-135m-instruct")
    scored = [_tokenized(loaded, request) for request in requests()]
    ways = {"prefixes shared": score_options, "in full batches": in_full}
    times: dict[str, list[float]] = {name: [] for name in ways}
    results = {}
    for _ in range(REPEATS):
        for name, way in ways.items():
            start = time.process_time()
            results[name] = way(loaded, scored)
            times[name].append(time.process_time() - start)
    shared, full = results.values()
    distance = max(
        abs(a - b)
        for left, right in zip(shared, full, strict=True)
        for a, b in zip(left, right, strict=True)
    )
    base = statistics.median(times["prefixes shared"])
    print(
        f"{len(scored)} choices of {WORLDS} worlds, SmolLM2-135M, float32, one thread, medians of "
        f"{REPEATS}; largest difference of a score {distance:.1e} nats.\n"
    )
    print("| way | CPU s | ms per choice | times ours |")
    print("| --- | ---: | ---: | ---: |")
    for name, found in times.items():
        middle = statistics.median(found)
        ratio = middle / base
        print(f"| {name} | {middle:.2f} | {middle / len(scored) * 1e3:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
