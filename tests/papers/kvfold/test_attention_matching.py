"""Attention Matching against scipy, brute force and hand-made cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear, nnls
from scipy.special import logsumexp, softmax

from replicata.errors import RunError, UsageError
from replicata.papers.kvfold import attention
from replicata.papers.kvfold.attention_matching import (
    attention_matching,
    attention_output,
    fit_bias,
    fit_values,
    full_attention,
    highest_attention_keys,
    omp_keys,
    pool_queries,
)
from replicata.papers.kvfold.bounded import bounded_least_squares

SEEDS = st.integers(0, 2**31 - 1)


def layer(seed, heads=2, length=24, n=60, d=6, spread=1.5, dtype=torch.float64):
    """Random keys, values and queries of a layer, with queries that have a mean."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(heads, length, d)) * spread
    values = rng.normal(size=(heads, length, d))
    queries = rng.normal(size=(heads, n, d)) + 1.5 * rng.normal(size=(heads, 1, d))
    return tuple(torch.tensor(a, dtype=dtype) for a in (keys, values, queries))


def mass_problem(keys, queries, kept, scale, scaling):
    """Design matrix and target of one head's bias fit, from scratch."""
    logits = scale * queries.numpy() @ keys.numpy().T
    if scaling == "relative":
        rows = logsumexp(logits, axis=1, keepdims=True)
    else:
        rows = logits.max(axis=1, keepdims=True)
    mass = np.exp(logits - rows)
    return mass[:, kept], mass.sum(axis=1)


# --- attention ------------------------------------------------------------------------------


def test_attention_over_the_full_cache_matches_scipy(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_ELEMENTS", 500)  # several blocks, the last one short
    keys, values, queries = layer(0)
    got = full_attention(keys, queries, 0.4, values)
    for h in range(2):
        logits = 0.4 * queries[h].numpy() @ keys[h].numpy().T
        weights = softmax(logits, axis=1)
        np.testing.assert_allclose(got.log_mass[h], logsumexp(logits, axis=1), rtol=1e-12)
        np.testing.assert_allclose(got.row_max[h], logits.max(axis=1), rtol=1e-12)
        np.testing.assert_allclose(got.rms_weight[h], np.sqrt((weights**2).mean(axis=0)))
        np.testing.assert_allclose(got.output[h], weights @ values[h].numpy(), atol=1e-12)


def test_attention_output_applies_the_bias_of_each_head():
    keys, values, queries = layer(1)
    bias = torch.randn(2, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = attention_output(queries, keys, values, 0.4, bias)
    for h in range(2):
        logits = 0.4 * queries[h].numpy() @ keys[h].numpy().T + bias[h].numpy()
        np.testing.assert_allclose(got[h], softmax(logits, axis=1) @ values[h].numpy(), atol=1e-12)


def test_queries_are_pooled_with_the_kv_head_that_serves_them():
    # The oracle is the head map of transformers' attention itself.
    from transformers.models.llama.modeling_llama import repeat_kv

    kv_heads, groups, n, d = 3, 2, 5, 4
    rng = torch.Generator().manual_seed(0)
    queries = torch.randn(kv_heads * groups, n, d, generator=rng)
    keys = torch.randn(kv_heads, 7, d, generator=rng)
    logits = queries @ repeat_kv(keys[None], groups)[0].mT
    pooled = pool_queries(queries, kv_heads) @ keys.mT
    assert torch.equal(pooled, logits.reshape(kv_heads, groups * n, 7))
    interleaved = queries.view(groups, kv_heads, n, d).transpose(0, 1).reshape(kv_heads, -1, d)
    assert not torch.allclose(interleaved @ keys.mT, logits.reshape(kv_heads, groups * n, 7))


def test_pooling_refuses_heads_that_cannot_be_grouped():
    with pytest.raises(UsageError, match="kv_heads is 2"):
        pool_queries(torch.zeros(3, 1, 1), 2)


# --- selection ------------------------------------------------------------------------------


def test_highest_attention_keeps_the_keys_of_largest_rms_weight():
    keys, _, queries = layer(2)
    got = highest_attention_keys(keys, queries, 5, 0.4)
    for h in range(2):
        weights = softmax(0.4 * queries[h].numpy() @ keys[h].numpy().T, axis=1)
        best = np.argsort(-np.sqrt((weights**2).mean(axis=0)))[:5]
        assert got[h].tolist() == sorted(best.tolist())


def test_among_equal_keys_the_earlier_ones_are_kept():
    keys = torch.ones(1, 6, 3)
    assert highest_attention_keys(keys, torch.ones(1, 4, 3), 2, 1.0).tolist() == [[0, 1]]


def pursue(design, target, budget, upper, drop_below=-7.0, refills=3):
    """Matching pursuit of one head from its full design matrix, with scipy's bounded solver."""
    banned, chosen, weights = set(), [], np.zeros(0)
    for attempt in range(refills + 1):
        while len(chosen) < budget:
            fitted = design[:, chosen] @ weights
            gain = design.T @ (target - fitted)
            gain[[*chosen, *banned]] = -np.inf
            chosen.append(int(gain.argmax()))
            weights = solve_bounded(design[:, chosen], target, 1e-12, np.exp(upper))
        low = [k for k, w in zip(chosen, weights, strict=True) if w < np.exp(drop_below)]
        free = design.shape[1] - len(chosen) - len(banned)
        if attempt == refills or not low or len(low) > free:
            return sorted(chosen)
        banned |= set(low)
        chosen = [k for k in chosen if k not in low]
        weights = np.zeros(0)
        if chosen:
            weights = solve_bounded(design[:, chosen], target, 1e-12, np.exp(upper))
    return None


def solve_bounded(design, target, lower, upper):
    return lsq_linear(design, target, (lower, upper), method="bvls", tol=1e-15).x


@pytest.mark.parametrize("scaling", ["relative", "rowmax"])
@pytest.mark.parametrize("seed", range(6))
def test_matching_pursuit_matches_a_plain_one_per_head(seed, scaling):
    keys, _, queries = layer(seed, heads=3, length=30, n=80)
    got = omp_keys(keys, queries, 7, 0.4, row_scaling=scaling)
    for h in range(3):
        design, target = mass_problem(keys[h], queries[h], slice(None), 0.4, scaling)
        assert got[h].tolist() == pursue(design, target, 7, 7.0)


def test_matching_pursuit_drops_keys_and_refills_heads_of_different_need():
    # A high threshold makes dropping frequent, and different in each head.
    keys, _, queries = layer(11, heads=4, length=40, n=90, spread=1.0)
    got = omp_keys(keys, queries, 9, 0.4, drop_below=0.6)
    dropped = 0
    for h in range(4):
        design, target = mass_problem(keys[h], queries[h], slice(None), 0.4, "relative")
        expected = pursue(design, target, 9, 7.0, drop_below=0.6)
        assert got[h].tolist() == expected
        dropped += expected != pursue(design, target, 9, 7.0)
    assert dropped >= 2


def test_matching_pursuit_of_all_keys_keeps_all_keys():
    keys, _, queries = layer(3, length=8)
    assert omp_keys(keys, queries, 8, 0.4).tolist() == [list(range(8))] * 2


# --- bias -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", ["relative", "rowmax"])
@pytest.mark.parametrize("seed", range(20))
def test_bias_matches_lsq_linear_within_bounds(seed, scaling):
    keys, _, queries = layer(seed, heads=3, n=50 + seed)
    index = highest_attention_keys(keys, queries, 6, 0.4)
    bias = fit_bias(keys, queries, index, 0.4, -1.0, 1.0, scaling)
    assert bias.min() >= -1
    assert bias.max() <= 1
    for h in range(3):
        design, target = mass_problem(keys[h], queries[h], index[h].numpy(), 0.4, scaling)
        expected = np.log(solve_bounded(design, target, np.exp(-1), np.exp(1)))
        np.testing.assert_allclose(bias[h], expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_without_bounds_in_reach_the_solver_matches_nnls(seed):
    rng = np.random.default_rng(seed)
    design, target = rng.normal(size=(40, 8)), rng.normal(size=40)
    a = torch.tensor(design)[None]
    b = torch.tensor(target)[None]
    gram, moment = a.mT @ a, (b.unsqueeze(1) @ a).squeeze(1)
    got = bounded_least_squares(gram, moment, 0.0, 1e6, torch.ones_like(moment))
    expected, _ = nnls(design, target)
    assert (expected == 0).any()  # so that the bound matters
    np.testing.assert_allclose(got[0], expected, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, columns=st.integers(1, 12), rows=st.integers(1, 20), copies=st.booleans())
def test_the_solver_is_optimal_even_where_the_optimum_is_not_unique(seed, columns, rows, copies):
    rng = np.random.default_rng(seed)
    a = torch.tensor(np.exp(3 * rng.normal(size=(2, rows, columns))))
    if copies:
        a = torch.cat([a, a], dim=-1)  # singular: every column twice
    b = a.sum(-1) * torch.tensor(np.exp(rng.normal(size=(2, rows))))
    start = torch.ones(2, a.shape[-1], dtype=torch.float64)
    moment = (a.mT @ b.unsqueeze(-1)).squeeze(-1)
    x = bounded_least_squares(a.mT @ a, moment, 0.1, 3.0, start)
    assert ((x >= 0.1) & (x <= 3.0)).all()
    # By convexity no feasible point is better by more than this; no optimum is needed.
    gradient = (a.mT @ ((a @ x.unsqueeze(-1)).squeeze(-1) - b).unsqueeze(-1)).squeeze(-1)
    gap = torch.maximum(gradient * (x - 0.1), gradient * (x - 3.0)).sum(-1)
    assert (gap <= 1e-8 * b.square().sum(-1)).all()


def test_a_kept_key_without_mass_has_no_bias():
    keys = torch.tensor([[[0.0], [1.0], [-2000.0]]])
    queries = torch.ones(1, 4, 1)
    bias = fit_bias(keys, queries, torch.tensor([[1, 2]]), 1.0)
    assert bias[0, 1] == 0
    assert bias[0, 0] == pytest.approx(math.log(1 + math.exp(-1)), abs=1e-6)


def test_a_bias_of_numbers_that_are_not_finite_is_refused():
    keys = torch.zeros(1, 3, 2)
    keys[0, 0, 0] = torch.nan
    with pytest.raises(RunError, match="not finite"):
        fit_bias(keys, torch.ones(1, 4, 2), torch.tensor([[0, 1]]), 1.0)


# --- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("with_bias", [True, False])
def test_values_match_lstsq_on_the_stacked_problem(monkeypatch, with_bias):
    monkeypatch.setattr(attention, "BLOCK_ELEMENTS", 200)
    keys, values, queries = layer(4)
    targets = full_attention(keys, queries, 0.4, values).output
    bias = torch.linspace(-1, 1, 10, dtype=torch.float64).tile(4)[:12].view(2, 6)
    bias = bias if with_bias else None
    got = fit_values(keys[:, :6], bias, queries, targets, 0.4, ridge=1e-3)
    for h in range(2):
        logits = 0.4 * queries[h].numpy() @ keys[h, :6].numpy().T
        p = softmax(logits + (bias[h].numpy() if with_bias else 0), axis=1)
        root = np.sqrt(1e-3) * np.linalg.norm(p, 2)
        stacked = np.vstack([p, root * np.eye(6)])
        wanted = np.vstack([targets[h].numpy(), np.zeros((6, 6))])
        expected = np.linalg.lstsq(stacked, wanted, rcond=None)[0]
        np.testing.assert_allclose(got[h], expected, atol=1e-9)


def test_a_singular_value_fit_without_ridge_is_refused():
    keys = torch.ones(1, 3, 2)
    with pytest.raises(RunError, match=r"heads \[0\] is singular"):
        fit_values(keys, None, torch.ones(1, 2, 2), torch.ones(1, 2, 2), 1.0, ridge=0.0)


# --- all together ---------------------------------------------------------------------------


@pytest.mark.parametrize("selection", ["highest_attention", "omp"])
def test_keeping_all_keys_gives_full_attention(selection):
    keys, values, queries = layer(5, length=12, n=200)
    got = attention_matching(keys, values, queries, 12, 0.4, selection, ridge=1e-12)
    assert got.index.tolist() == [list(range(12))] * 2
    torch.testing.assert_close(got.bias, torch.zeros_like(got.bias), atol=1e-7, rtol=0)
    output = attention_output(queries, got.keys, got.values, 0.4, got.bias)
    expected = attention_output(queries, keys, values, 0.4)
    torch.testing.assert_close(output, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("selection", ["highest_attention", "omp"])
def test_two_merged_keys_are_found_again(selection):
    # Every key occurs three times, so that a third of the keys with bias log 3 is exact.
    base, values, queries = layer(6, length=5, n=100)
    keys, values = base.repeat_interleave(3, 1), values.repeat_interleave(3, 1)
    got = attention_matching(keys, values, queries, 15, 0.4, selection, ridge=1e-12)
    third = fit_bias(keys, queries, torch.arange(0, 15, 3).expand(2, -1), 0.4)
    torch.testing.assert_close(third, torch.full_like(third, math.log(3)), atol=1e-6, rtol=0)
    output = attention_output(queries, got.keys, got.values, 0.4, got.bias)
    torch.testing.assert_close(
        output, attention_output(queries, keys, values, 0.4), atol=1e-6, rtol=0
    )


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, selection=st.sampled_from(["highest_attention", "omp"]))
def test_the_order_of_the_keys_does_not_matter(seed, selection):
    keys, values, queries = layer(seed, length=16)
    order = torch.tensor(np.random.default_rng(seed).permutation(16))
    got = attention_matching(keys, values, queries, 5, 0.4, selection)
    moved = attention_matching(keys[:, order], values[:, order], queries, 5, 0.4, selection)
    back = order[moved.index].sort(-1)
    assert torch.equal(back.values, got.index)
    for field in ("bias", "values"):
        a, b = getattr(got, field), getattr(moved, field)
        at = back.indices if b.dim() == 2 else back.indices.unsqueeze(-1).expand_as(b)
        torch.testing.assert_close(b.gather(1, at), a, atol=1e-6, rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, factor=st.floats(0.01, 100))
def test_scaling_the_values_scales_the_fitted_values(seed, factor):
    keys, values, queries = layer(seed, length=16)
    got = attention_matching(keys, values, queries, 5, 0.4)
    scaled = attention_matching(keys, factor * values, queries, 5, 0.4)
    assert torch.equal(scaled.bias, got.bias)
    torch.testing.assert_close(scaled.values, factor * got.values, atol=1e-8, rtol=1e-8)


def test_a_shared_full_attention_changes_nothing():
    keys, values, queries = layer(7)
    shared = full_attention(keys, queries, 0.4, values)
    a = attention_matching(keys, values, queries, 6, 0.4)
    b = attention_matching(keys, values, queries, 6, 0.4, attention=shared)
    for field in ("keys", "bias", "values", "index"):
        assert torch.equal(getattr(a, field), getattr(b, field))


def test_single_precision_agrees_with_double():
    keys, values, queries = layer(8)
    double = attention_matching(keys, values, queries, 6, 0.4)
    single = attention_matching(keys.float(), values.float(), queries.float(), 6, 0.4)
    assert {single.keys.dtype, single.bias.dtype, single.values.dtype} == {torch.float32}
    assert torch.equal(single.index, double.index)
    torch.testing.assert_close(single.values.double(), double.values, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("budget", [0, 25])
def test_a_budget_outside_the_context_is_refused(budget):
    keys, values, queries = layer(9)
    with pytest.raises(UsageError, match=f"budget is {budget} keys, expected 1 to"):
        attention_matching(keys, values, queries, budget, 0.4)


def test_unknown_choices_are_refused():
    keys, values, queries = layer(9)
    with pytest.raises(UsageError, match="selection is 'best'"):
        attention_matching(keys, values, queries, 3, 0.4, "best")
    with pytest.raises(UsageError, match="row_scaling is 'none'"):
        attention_matching(keys, values, queries, 3, 0.4, row_scaling="none")
