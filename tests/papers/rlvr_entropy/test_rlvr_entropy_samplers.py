"""Our transforms against transformers' warpers, vLLM's sampler and brute force."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    GenerationConfig,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from replicata.errors import UsageError
from replicata.papers.rlvr_entropy.samplers import (
    Sampler,
    hidden_settings,
    sampler_log_probs,
)

CASES = [
    (Sampler(top_k=5), [TopKLogitsWarper(5)]),
    (Sampler(top_p=0.9), [TopPLogitsWarper(0.9)]),
    (Sampler(top_p=0.3), [TopPLogitsWarper(0.3)]),
    (Sampler(min_p=0.05), [MinPLogitsWarper(0.05)]),
    (Sampler(temperature=0.7), [TemperatureLogitsWarper(0.7)]),
    (
        Sampler(temperature=1.3, top_k=20, top_p=0.95),
        [TemperatureLogitsWarper(1.3), TopKLogitsWarper(20), TopPLogitsWarper(0.95)],
    ),
]


@pytest.mark.parametrize(("sampler", "warpers"), CASES)
def test_kept_sets_and_probabilities_are_those_of_transformers(sampler, warpers):
    logits = 3 * torch.randn(200, 40, generator=torch.Generator().manual_seed(0))
    warped = logits
    for warper in warpers:
        warped = warper(None, warped)
    kept = sampler.kept(logits)
    assert torch.equal(kept, torch.isfinite(warped))
    found = sampler_log_probs(logits, kept, sampler.temperature)
    assert torch.allclose(found.exp(), warped.softmax(-1), atol=1e-6)


def test_the_token_that_crosses_top_p_is_kept():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    assert Sampler(top_p=0.6).kept(logits).tolist() == [True, True, False, False]
    assert Sampler(top_p=0.81).kept(logits).tolist() == [True, True, True, False]
    assert Sampler(top_p=1e-6).kept(logits).tolist() == [True, False, False, False]


def brute_force(logits, sampler):
    """The kept set of one state by plain Python."""
    scaled = [z / sampler.temperature for z in logits]
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    if sampler.top_k:
        order = order[: sampler.top_k]
    weights = {i: math.exp(scaled[i] - max(scaled)) for i in order}
    total, mass, nucleus = sum(weights.values()), 0.0, []
    for i in order:
        if nucleus and mass >= sampler.top_p * total:
            break
        nucleus.append(i)
        mass += weights[i]
    best = max(weights[i] for i in nucleus)
    return {i for i in nucleus if weights[i] >= sampler.min_p * best}


@given(
    st.lists(st.floats(-6, 6).map(lambda x: round(x, 3)), min_size=2, max_size=12, unique=True),
    st.floats(0.3, 3),
    st.integers(0, 6),
    st.sampled_from([0.25, 0.55, 0.85, 1.0]),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_kept_sets_by_brute_force(logits, temperature, top_k, top_p, min_p):
    sampler = Sampler(temperature, top_k, top_p, min_p)
    kept = sampler.kept(torch.tensor(logits, dtype=torch.float64))
    assert set(kept.nonzero()[:, 0].tolist()) == brute_force(logits, sampler)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0, expected more than 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, r"top_p is 0.0, expected a number in \(0, 1\]"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"min_p": 1.0}, "min_p is 1.0"),
    ],
)
def test_a_bad_setting_is_named(bad, message):
    with pytest.raises(UsageError, match=message):
        Sampler(**bad)


def test_hidden_settings_of_a_checkpoint_are_listed():
    shipped = GenerationConfig(top_k=20, top_p=0.95, temperature=0.6)
    found = " ".join(hidden_settings(shipped))
    assert "top_k is 20" in found
    assert "top_p is 0.95" in found
    assert "temperature is 0.6" in found
    assert hidden_settings(GenerationConfig(top_k=0, top_p=1.0, temperature=1.0)) == []
