"""Budgets per head: totals are kept, and the greedy exchange is the best there is."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicata.errors import UsageError
from replicata.papers.kvfold.attention import attention_output
from replicata.papers.kvfold.attention_matching import attention_matching
from replicata.papers.kvfold.budgets import (
    greedy_exchange,
    load_public_budgets,
    proportions_to_budgets,
    split_padding,
    uniform,
)


def test_uniform_budgets_round_and_keep_at_least_one_key():
    assert uniform(99, 0.1, 3).tolist() == [10, 10, 10]
    assert uniform(5, 0.01, 2).tolist() == [1, 1]
    with pytest.raises(UsageError, match=r"budget ratio is 1\.5"):
        uniform(10, 1.5, 1)


@given(
    shares=st.lists(st.floats(0.001, 1.0), min_size=6, max_size=6),
    ratio=st.floats(0.05, 0.9),
    length=st.integers(20, 300),
)
@settings(max_examples=200, deadline=None)
def test_proportions_keep_the_total_the_floor_and_the_cap(shares, ratio, length):
    proportions = np.array(shares).reshape(2, 3) / sum(shares)
    budgets = proportions_to_budgets(proportions, ratio, length)
    assert budgets.sum() == max(round(6 * ratio * length), 6 * 4)
    assert budgets.min() >= 4
    assert budgets.max() <= length
    order = proportions.ravel().argsort()
    assert (np.diff(budgets.ravel()[order]) >= -1).all()  # a larger share never gets fewer keys


def test_equal_proportions_are_uniform_budgets():
    budgets = proportions_to_budgets(np.full((3, 2), 1 / 6), 0.1, 200)
    assert (budgets == 20).all()


def best_by_brute_force(errors, grid, total):
    """Least total error over all budgets between the grid's ends, errors interpolated."""
    heads = len(errors)
    choices = range(grid[0], grid[-1] + 1)
    return min(
        sum(np.interp(t, grid, errors[h]) for h, t in enumerate(budgets))
        for budgets in product(choices, repeat=heads)
        if sum(budgets) == total
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_exchange_is_optimal_for_convex_errors(seed):
    rng = np.random.default_rng(seed)
    grid = [4, 6, 9, 14]
    slopes = -np.sort(-rng.exponential(size=(3, 3)), axis=1)
    steps = slopes * np.diff(grid)
    errors = 50 - np.concatenate([np.zeros((3, 1)), steps.cumsum(1)], axis=1)
    for total in (12, 19, 30, 42):
        budgets = greedy_exchange(errors, grid, total)
        found = sum(np.interp(t, grid, errors[h]) for h, t in enumerate(budgets))
        assert budgets.sum() == total
        assert found == pytest.approx(best_by_brute_force(errors, grid, total), abs=1e-9)


def test_the_exchange_gives_keys_to_the_head_that_needs_them():
    errors = np.array([[10.0, 1.0, 0.5], [0.2, 0.1, 0.0]])
    assert greedy_exchange(errors, [4, 8, 16], 14).tolist() == [10, 4]


@pytest.mark.parametrize(
    ("errors", "grid", "total", "sentence"),
    [
        ([[1.0, 0.5]], [4], 4, "errors of shape"),
        ([[1.0, float("nan")]], [4, 8], 4, "expected finite"),
        ([[1.0, 0.5]], [2, 8], 4, "from 4 keys on"),
        ([[1.0, 0.5]], [4, 8], 20, "total is 20 keys, expected 4 to 8"),
    ],
)
def test_bad_tables_are_refused(errors, grid, total, sentence):
    with pytest.raises(UsageError, match=sentence):
        greedy_exchange(np.array(errors), grid, total)


def test_the_published_format_is_read(tmp_path):
    path = tmp_path / "optimized_agnostic.json"
    path.write_text(json.dumps({"L0H0": 0.1, "L0H1": 0.2, "L1H0": 0.3, "L1H1": 0.4}))
    assert np.allclose(load_public_budgets(path), [[0.1, 0.2], [0.3, 0.4]])


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"L0H0": 0.5, "L0H1": 0.6}, "sum to 1.1"),
        ({"L0H0": 0.5, "L1H1": 0.5}, "no proportion for 'L0H1'"),
        ({"layer0": 1.0}, "key 'layer0'"),
        ({"L0H0": -1.0}, "L0H0 is -1.0"),
        ({}, "expected an object"),
    ],
)
def test_malformed_published_budgets_are_refused(tmp_path, table, sentence):
    path = tmp_path / "budgets.json"
    path.write_text(json.dumps(table))
    with pytest.raises(UsageError, match=sentence):
        load_public_budgets(path)


def test_splitting_keys_leaves_the_output_as_it_is_and_the_bias_range_smaller():
    draw = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 60, 8, generator=draw) for _ in range(2))
    queries = torch.randn(2, 150, 8, generator=draw) + 1.0
    compacted = attention_matching(keys, values, queries, 10, 8**-0.5)
    padded = split_padding(compacted, 25)
    assert padded.keys.shape == (2, 25, 8)

    def output(c):
        return attention_output(queries.double(), c.keys, c.values, 8**-0.5, c.bias.double())

    assert torch.allclose(output(padded), output(compacted), atol=1e-5)
    assert (padded.bias.amax(-1) <= compacted.bias.amax(-1)).all()
    with pytest.raises(UsageError, match="padded length is 5 keys"):
        split_padding(compacted, 5)
