"""Decoding settings: strict, explicit, and one random stream per prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from replicata.errors import UsageError
from replicata.inference import Sampling


def test_the_default_is_plain_greedy_decoding():
    assert Sampling(max_tokens=3).model_dump() == {
        "max_tokens": 3,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": None,
        "stop_token_ids": (),
        "logprobs": 0,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "sampling: max_tokens: Field required"),
        ({"max_tokens": 0}, "sampling: max_tokens: .* greater than or equal to 1, got 0"),
        ({"max_tokens": "9"}, "sampling: max_tokens: .* valid integer, got '9'"),
        ({"max_tokens": 9, "top_k": 5}, "sampling: top_k: Extra inputs are not permitted, got 5"),
        ({"max_tokens": 9, "temperature": 0.7}, "temperature 0.7 .* seed is required"),
        ({"max_tokens": 9, "temperature": 0.001, "seed": 1}, r"at least 0\.01, got 0\.001"),
        ({"max_tokens": 9, "temperature": -1.0}, "sampling: temperature: .*, got -1.0"),
        ({"max_tokens": 9, "temperature": float("nan"), "seed": 1}, "sampling: temperature"),
        ({"max_tokens": 9, "top_p": 0.0}, "sampling: top_p: .*, got 0.0"),
        ({"max_tokens": 9, "stop_token_ids": ["a"]}, r"sampling: stop_token_ids\.0: .*, got 'a'"),
        ({"max_tokens": 9, "stop_token_ids": [2.5]}, r"sampling: stop_token_ids\.0: .*, got 2\.5"),
        ({"max_tokens": 9, "seed": -1, "temperature": 1.0}, "sampling: seed: .*, got -1"),
    ],
)
def test_wrong_settings_are_one_sentence(settings, message):
    with pytest.raises(UsageError, match=message) as caught:
        Sampling(**settings)
    assert "\n" not in str(caught.value)


def test_a_list_of_stop_tokens_is_as_good_as_a_tuple():
    assert Sampling(max_tokens=1, stop_token_ids=[3, 4]).stop_token_ids == (3, 4)


def test_settings_do_not_change():
    with pytest.raises(ValidationError):
        Sampling(max_tokens=1).max_tokens = 2


@given(
    seeds=st.lists(st.integers(0, 2**40), min_size=2, max_size=2, unique=True),
    index=st.integers(0, 10_000),
)
def test_prompt_seeds_differ_by_seed_and_by_prompt(seeds, index):
    first, second = (Sampling(max_tokens=1, temperature=1.0, seed=seed) for seed in seeds)
    drawn = {first.prompt_seed(index), second.prompt_seed(index), first.prompt_seed(index + 1)}
    assert len(drawn) == 3
    assert all(0 <= seed < 2**63 for seed in drawn)


def test_greedy_decoding_has_no_seed():
    assert Sampling(max_tokens=1, seed=5).prompt_seed(0) is None
