"""Scores with shared prefixes against one forward pass per prompt and option."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicata.inference.scoring import Scored, score_options
from replicata.models import load_model

TOKENS = st.lists(st.integers(3, 200), min_size=1, max_size=7).map(tuple)


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny-llama")


def one_by_one(loaded, prompt):
    ids = [token for part in prompt.parts for token in part]
    found = []
    for option in prompt.options:
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([ids + list(option)])).logits[0].double()
        logprobs = torch.log_softmax(logits, dim=-1)
        found.append(sum(float(logprobs[len(ids) - 1 + n, t]) for n, t in enumerate(option)))
    return found


@settings(max_examples=25, deadline=None)
@given(
    shared=st.lists(TOKENS, min_size=1, max_size=2),
    middle=st.lists(TOKENS, min_size=1, max_size=3),
    last=st.lists(TOKENS, min_size=1, max_size=3),
    options=st.lists(TOKENS, min_size=1, max_size=3),
    rows=st.integers(1, 5),
    seed=st.integers(0, 100),
)
def test_scores_are_those_of_every_prompt_by_itself(
    tiny, shared, middle, last, options, rows, seed
):
    prompts = [Scored((a, b, c), tuple(options)) for a in shared for b in middle for c in last]
    # Prompts of other depths, which end where others go on, and one prompt twice.
    prompts += [Scored((shared[0],), tuple(options)), Scored((shared[0], middle[0]), (options[0],))]
    prompts.append(prompts[0])
    random.Random(seed).shuffle(prompts)
    found = score_options(tiny, prompts, rows=rows)
    for prompt, scores in zip(prompts, found, strict=True):
        assert scores == pytest.approx(one_by_one(tiny, prompt), abs=1e-4)


def test_a_real_model_scores_the_same_with_and_without_sharing():
    loaded = load_model("smollm2-135m-instruct")
    rng = random.Random(0)

    def part(size):
        return tuple(rng.randrange(1000, 40_000) for _ in range(size))

    first, seconds = part(12), [part(4), part(7)]
    prompts = [Scored((first, s, part(n)), (part(1), part(2))) for s in seconds for n in (3, 9)]
    found = score_options(loaded, prompts, rows=3)
    for prompt, scores in zip(prompts, found, strict=True):
        assert scores == pytest.approx(one_by_one(loaded, prompt), abs=2e-4)


def test_a_shared_prefix_is_computed_once(tiny, monkeypatch):
    """The work is that of the tree's nodes, not of the prompts."""
    seen = []
    forward = type(tiny.model).forward

    def counting(self, *args, input_ids=None, **kwargs):
        seen.append(tuple(input_ids.shape))
        return forward(self, *args, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(type(tiny.model), "forward", counting)
    prefix = tuple(range(10, 60))
    prompts = [Scored((prefix, (n,)), ((5,), (6,))) for n in range(70, 90)]
    score_options(tiny, prompts, rows=32)
    assert seen == [(1, 50), (20, 1)]
