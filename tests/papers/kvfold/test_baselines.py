"""What folding is compared with, against definitions written out in loops."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from replicata.errors import UsageError
from replicata.papers.kvfold.attention import attention_output, full_attention
from replicata.papers.kvfold.attention_matching import attention_matching
from replicata.papers.kvfold.baselines import (
    am_direct,
    drop_bias,
    fold_refit,
    no_bias,
    random_keys,
    snapkv,
    streaming_llm,
)

SCALE = 8**-0.5


@pytest.fixture(scope="module")
def layer():
    draw = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 50, 8, generator=draw) for _ in range(2))
    return keys, values, torch.randn(2, 120, 8, generator=draw) + 1.0


def test_streaming_keeps_sinks_and_the_latest():
    assert streaming_llm(20, 7, sinks=3, heads=2).tolist() == [[0, 1, 2, 16, 17, 18, 19]] * 2
    assert streaming_llm(5, 5).tolist() == [[0, 1, 2, 3, 4]]


def test_random_keys_are_distinct_sorted_and_seeded():
    index = random_keys(40, 12, seed=3, heads=5)
    for row in index.tolist():
        assert row == sorted(set(row))
        assert len(row) == 12
    assert torch.equal(index, random_keys(40, 12, seed=3, heads=5))
    assert not torch.equal(index, random_keys(40, 12, seed=4, heads=5))
    assert len({tuple(row) for row in index.tolist()}) > 1


def snapkv_by_loops(keys, queries, budget, kernel):
    """SnapKV's votes, one query head, one query and one key at a time."""
    heads, length, _ = keys.shape
    window = queries.shape[1]
    group = queries.shape[0] // heads
    chosen = []
    for h in range(heads):
        votes = np.zeros(length - window)
        for g in range(group):
            attention = np.zeros((window, length))
            for i in range(window):
                position = length - window + i
                logits = np.array(
                    [float(queries[h * group + g, i] @ keys[h, j]) * SCALE for j in range(length)]
                )
                logits[position + 1 :] = -np.inf
                weights = np.exp(logits - logits.max())
                attention[i] = weights / weights.sum()
            mean = np.pad(attention[:, : length - window].mean(0), kernel // 2)
            votes += [mean[j : j + kernel].sum() / kernel for j in range(length - window)]
        best = np.argsort(-votes, kind="stable")[: budget - window]
        chosen.append(sorted(best.tolist()) + list(range(length - window, length)))
    return chosen


@pytest.mark.parametrize(("budget", "kernel"), [(12, 5), (20, 3), (6, 5)])
def test_snapkv_is_its_definition(layer, budget, kernel):
    keys = layer[0]
    queries = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(2))
    expected = snapkv_by_loops(keys, queries, budget, kernel)
    assert snapkv(keys, queries, budget, SCALE, kernel).tolist() == expected


def test_token_droppers_keep_what_kvpress_keeps():
    reference = json.loads(Path(__file__).with_name("kvpress_reference.json").read_text())
    keys, queries = torch.tensor(reference["keys"]), torch.tensor(reference["queries"])
    kept = {case["name"]: case["kept"] for case in reference["cases"]}
    assert snapkv(keys, queries, 16, SCALE, kernel=5).tolist() == kept["snapkv, kernel 5"]
    assert snapkv(keys, queries, 8, SCALE, kernel=3).tolist() == kept["snapkv, kernel 3"]
    assert streaming_llm(32, 16, 4, heads=2).tolist() == kept["streaming, 4 sinks"]
    assert streaming_llm(32, 8, 2, heads=2).tolist() == kept["streaming, 2 sinks"]


def test_snapkv_refuses_a_budget_below_its_window_and_an_even_kernel(layer):
    queries = torch.randn(4, 6, 8)
    with pytest.raises(UsageError, match="at least SnapKV's window of 6"):
        snapkv(layer[0], queries, 5, SCALE)
    with pytest.raises(UsageError, match="expected an odd width"):
        snapkv(layer[0], queries, 12, SCALE, kernel=4)


def test_kept_keys_carry_their_own_values(layer):
    keys, values, _ = layer
    index = torch.tensor([[1, 4, 30], [0, 2, 49]])
    cache = am_direct(keys, values, index)
    for h in range(2):
        assert torch.equal(cache.keys[h], keys[h, index[h]])
        assert torch.equal(cache.values[h], values[h, index[h]])


def test_dropping_the_bias_keeps_everything_else(layer):
    keys, values, queries = layer
    compacted = attention_matching(keys, values, queries, 9, SCALE)
    cache = drop_bias(compacted)
    assert torch.equal(cache.keys, compacted.keys)
    assert torch.equal(cache.values, compacted.values)


def test_refitted_values_are_the_least_squares_ones(layer):
    """With hardly any ridge, no other values come closer to the targets on the fitted queries."""
    keys, values, queries = layer
    compacted = attention_matching(keys, values, queries, 9, SCALE)
    target = full_attention(keys, queries, SCALE, values).output
    own = no_bias(keys, values, queries, compacted.index, SCALE, ridge=1e-12)
    refit = fold_refit(compacted.keys, queries, target, SCALE, ridge=1e-12)
    for cache in (own, refit):
        logits = SCALE * queries.double() @ cache.keys.double().mT
        weights = logits.softmax(-1)
        best = torch.linalg.lstsq(weights, target.double()).solution
        out = attention_output(queries, cache.keys, cache.values, SCALE)
        least = (weights @ best - target).square().sum()
        assert float((out - target).double().square().sum()) == pytest.approx(
            float(least), rel=1e-3
        )
