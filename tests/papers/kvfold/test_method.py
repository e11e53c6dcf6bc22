"""Folding and its bounds against closed forms, least squares and sharp cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from replicata.errors import RunError, UsageError
from replicata.papers.kvfold.attention_matching import (
    Compacted,
    attention_matching,
    attention_output,
)
from replicata.papers.kvfold.baselines import drop_bias
from replicata.papers.kvfold.method import (
    error_bound,
    first_order_error,
    first_order_weights,
    fold_direction,
    fold_keys,
    fold_layer,
    fold_report,
    kl_bound,
    linear_bound,
    projection,
)

SEEDS = st.integers(0, 2**31 - 1)


def random(seed, *shape, dtype=torch.float64):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape), dtype=dtype)


def compacted_case(seed, heads=2, t=7, d=5):
    keys, values = random(seed, heads, t, d), random(seed + 1, heads, t, d)
    bias = 1.5 * random(seed + 2, heads, t)
    return Compacted(keys, bias, values, torch.arange(t).expand(heads, -1))


def log_weights(queries, keys, scale, bias=0):
    """Logarithms of the attention weights of one head, by scipy."""
    return log_softmax(scale * queries.numpy() @ keys.numpy().T + np.asarray(bias), axis=1)


# --- the direction --------------------------------------------------------------------------


def test_direction_equals_least_squares_on_the_stacked_queries():
    queries = random(0, 3, 40, 6) + random(1, 3, 1, 6)
    got = fold_direction(queries, ridge=1e-2)
    for h in range(3):
        q = queries[h].numpy()
        penalty = 1e-2 * np.trace(q.T @ q / 40) / 6
        stacked = np.vstack([q, math.sqrt(40 * penalty) * np.eye(6)])
        target = np.concatenate([np.ones(40), np.zeros(6)])
        expected = np.linalg.lstsq(stacked, target, rcond=None)[0]
        np.testing.assert_allclose(got[h], expected, atol=1e-10)
        gradient = q.T @ (q @ got[h].numpy() - 1) / 40 + penalty * got[h].numpy()
        assert np.linalg.norm(gradient) < 1e-10


def test_projection_error_is_one_over_one_plus_the_separation_of_the_mean():
    queries = random(2, 2, 50, 4) + 2 * random(3, 2, 1, 4)
    projected = projection(queries, fold_direction(queries, ridge=0.0))
    for h in range(2):
        mean = queries[h].numpy().mean(axis=0)
        cloud = np.cov(queries[h].numpy().T, bias=True)
        rho = mean @ np.linalg.solve(cloud, mean)
        assert (projected[h] - 1).square().mean().item() == pytest.approx(1 / (1 + rho), rel=1e-9)
        assert projected[h].mean().item() == pytest.approx(rho / (1 + rho), rel=1e-9)


def test_unit_mean_is_the_same_direction_with_mean_projection_one():
    queries = random(4, 2, 50, 4) + random(5, 2, 1, 4)
    plain, unit = fold_direction(queries), fold_direction(queries, variant="unit_mean")
    torch.testing.assert_close(projection(queries, unit).mean(-1), torch.ones(2).double())
    cosine = torch.nn.functional.cosine_similarity(plain, unit, dim=-1)
    torch.testing.assert_close(cosine, torch.ones(2).double())
    # the closed form without a ridge
    got = fold_direction(queries, ridge=0.0, variant="unit_mean")
    mean = queries[0].numpy().mean(axis=0)
    solved = np.linalg.solve(np.cov(queries[0].numpy().T, bias=True), mean)
    np.testing.assert_allclose(got[0], solved / (mean @ solved), rtol=1e-8)


def test_integer_weights_are_repeated_queries():
    queries = random(6, 1, 12, 3)
    counts = torch.tensor([[0, 1, 2, 3] * 3])
    weighted = fold_direction(queries, variant="weighted", weights=counts)
    repeated = fold_direction(queries[:, torch.arange(12).repeat_interleave(counts[0])])
    torch.testing.assert_close(weighted, repeated)


def test_a_head_without_first_order_error_is_fitted_with_equal_weights():
    queries = random(7, 2, 12, 3)
    got = fold_direction(queries, variant="weighted", weights=torch.zeros(2, 12))
    torch.testing.assert_close(got, fold_direction(queries))


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, factor=st.floats(0.01, 100))
def test_scaling_the_queries_scales_the_direction_back(seed, factor):
    queries = random(seed, 2, 20, 4) + random(seed + 1, 2, 1, 4)
    torch.testing.assert_close(
        factor * fold_direction(factor * queries), fold_direction(queries), rtol=1e-8, atol=1e-10
    )


def test_bad_directions_are_refused():
    queries = random(8, 2, 3, 4)
    with pytest.raises(RunError, match=r"heads \[0, 1\] do not span the head dimension 4"):
        fold_direction(torch.cat([queries[:, :1]] * 3, 1), ridge=0.0)
    with pytest.raises(RunError, match="not finite"):
        fold_direction(queries / 0)
    with pytest.raises(RunError, match="mean query of a head is 0"):
        fold_direction(torch.stack([queries[:, 0], -queries[:, 0]], 1), variant="unit_mean")
    with pytest.raises(UsageError, match="variant is 'best'"):
        fold_direction(queries, variant="best")
    with pytest.raises(UsageError, match="weights go with"):
        fold_direction(queries, variant="weighted")
    with pytest.raises(UsageError, match="weights go with"):
        fold_direction(queries, weights=torch.ones(2, 3))


# --- folding --------------------------------------------------------------------------------


def test_logits_gain_the_bias_times_the_projection():
    case, queries, u = compacted_case(0), random(9, 2, 11, 5), random(10, 2, 5)
    folded = fold_keys(case.keys, case.bias, u, 0.3)
    gained = 0.3 * queries @ (folded - case.keys).mT
    expected = projection(queries, u).unsqueeze(-1) * case.bias.unsqueeze(1)
    torch.testing.assert_close(gained, expected)


def test_folding_is_exact_for_queries_on_a_hyperplane():
    scale, u = 0.4, random(11, 2, 5)
    queries = random(12, 2, 80, 5)
    queries += ((1 - projection(queries, u)) / u.square().sum(-1, keepdim=True)).unsqueeze(
        -1
    ) * u.unsqueeze(1)
    keys, values = random(13, 2, 30, 5), random(14, 2, 30, 5)
    case = attention_matching(keys, values, queries, 6, scale)
    assert case.bias.abs().max() > 0.5
    folded = fold_layer(case, queries, scale, ridge=1e-12)
    biased = attention_output(queries, case.keys, case.values, scale, case.bias)
    plain = attention_output(queries, folded.cache.keys, folded.cache.values, scale)
    torch.testing.assert_close(plain, biased, atol=1e-8, rtol=0)
    assert folded.cache.keys.shape == case.keys.shape


def test_one_more_coordinate_folds_every_query_exactly():
    case, queries, scale = compacted_case(1), random(15, 2, 20, 5), 0.4
    longer = torch.cat([case.keys, case.bias.unsqueeze(-1) / scale], -1)
    asked = torch.cat([queries, torch.ones(2, 20, 1)], -1)
    axis = torch.zeros(2, 6).double()
    axis[:, -1] = 1  # the direction that this extra coordinate is
    zeros = torch.zeros(2, 7, 1)
    folded = fold_keys(torch.cat([case.keys, zeros], -1), case.bias, axis, scale)
    torch.testing.assert_close(folded, longer)
    pad = torch.cat([case.values, zeros], -1)
    output = attention_output(asked, folded, pad, scale)[..., :-1]
    expected = attention_output(queries, case.keys, case.values, scale, case.bias)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_a_bias_folding_changes_no_bit(dtype):
    case = compacted_case(2)
    case = Compacted(case.keys.to(dtype), 0 * case.bias, case.values.to(dtype), case.index)
    folded = fold_layer(case, random(16, 2, 20, 5, dtype=dtype), 0.4)
    assert torch.equal(folded.cache.keys.to(dtype), case.keys)
    assert torch.equal(folded.cache.values, drop_bias(case).values)
    assert torch.equal(folded.cache.keys.to(dtype), drop_bias(case).keys)


def test_half_precision_keys_are_folded_in_single_precision():
    keys = random(17, 1, 3, 4, dtype=torch.bfloat16)
    folded = fold_keys(keys, torch.ones(1, 3), 1e-4 * torch.ones(1, 4), 1.0)
    assert folded.dtype == torch.float32
    torch.testing.assert_close(folded, keys.float() + 1e-4)


def test_a_bias_that_is_not_finite_is_refused():
    with pytest.raises(RunError, match="bias to fold is not finite"):
        fold_keys(torch.ones(1, 1, 2), torch.tensor([[-math.inf]]), torch.ones(1, 2), 1.0)


# --- bounds ---------------------------------------------------------------------------------


def served_error(case, queries, u, scale, others=None):
    """|õ - o| and KL(p ‖ p̃) per query by scipy; others: keys and values without a bias."""
    errors, divergences = [], []
    for h in range(len(case.keys)):
        k, v, b = case.keys[h], case.values[h], case.bias[h]
        if others is not None:
            k, v = torch.cat([k, others[0][h]]), torch.cat([v, others[1][h]])
            b = torch.cat([b, torch.zeros(len(others[0][h])).double()])
        folded = k + torch.outer(b / scale, u[h])
        log_p, log_served = (
            log_weights(queries[h], k, scale, b),
            log_weights(queries[h], folded, scale),
        )
        p = np.exp(log_p)
        errors.append(np.linalg.norm((np.exp(log_served) - p) @ v.numpy(), axis=1))
        divergences.append((p * (log_p - log_served)).sum(axis=1))
    return torch.tensor(np.array(errors)), torch.tensor(np.array(divergences))


@settings(max_examples=250, deadline=None)  # times 2 heads and 4 queries: 2,000 cases
@given(
    seed=SEEDS,
    size=st.floats(0.01, 30),
    t=st.integers(1, 6),
    others=st.sampled_from([0, 1, 4]),
)
def test_no_error_exceeds_its_bound(seed, size, t, others):
    scale = 0.5
    case = compacted_case(seed, t=t)
    case = Compacted(case.keys, size * case.bias, case.values, case.index)
    queries, u = 2 * random(seed + 3, 2, 4, 5), random(seed + 4, 2, 5)
    rest = (random(seed + 5, 2, others, 5), 3 * random(seed + 6, 2, others, 5)) if others else None
    error, divergence = served_error(case, queries, u, scale, rest)
    epsilon = projection(queries, u) - 1
    values = rest[1] if rest else None
    bound = error_bound(case.bias, case.values, epsilon, bool(rest), values)
    linear = linear_bound(case.bias, case.values, epsilon, bool(rest), values)
    assert (error <= bound * (1 + 1e-9) + 1e-12).all()
    assert (bound <= linear * (1 + 1e-9)).all()
    assert (divergence <= kl_bound(case.bias, epsilon, bool(rest)) * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("epsilon", [-1.0, -0.3, 0.001, 0.5, 2.0])
@pytest.mark.parametrize("reach", [0.1, 2.0, 6.0])
def test_the_bound_is_attained_by_two_balanced_keys(epsilon, reach):
    # Biases ±R/2 and AM logits ∓εR/4: weights that folding turns into their mirror image.
    float64 = torch.float64
    half = epsilon * reach / 4
    bias = torch.tensor([[reach / 2, -reach / 2]], dtype=float64)
    u = torch.tensor([[1.0, 0.0]], dtype=float64)
    query = torch.tensor([[[1 + epsilon, 1.0]]], dtype=float64)
    logits = torch.tensor([-half, half], dtype=float64)
    keys = torch.stack([torch.zeros(2, dtype=float64), logits - bias[0]], -1)[None]
    values = torch.tensor([[[3.0], [-1.0]]], dtype=float64)
    case = Compacted(keys, bias, values, torch.tensor([[0, 1]]))
    error, _ = served_error(case, query, u, 1.0)
    bound = error_bound(bias, values, projection(query, u) - 1)
    assert error.item() / bound.item() == pytest.approx(1, abs=1e-6)
    assert bound.item() == pytest.approx(4 * math.tanh(abs(epsilon) * reach / 4), rel=1e-12)


def test_tokens_that_were_not_compacted_widen_the_bound():
    bias = torch.tensor([[2.0, 3.0]]).double()
    values = torch.tensor([[[0.0], [1.0]]]).double()
    epsilon = torch.tensor([[1.0]]).double()
    inside = error_bound(bias, values, epsilon)
    assert inside.item() == pytest.approx(math.tanh(1 / 4))
    outside = error_bound(bias, values, epsilon, True, torch.tensor([[[-4.0]]]))
    assert outside.item() == pytest.approx(5 * math.tanh(3 / 4))
    assert kl_bound(bias, epsilon).item() == pytest.approx(1 / 8)
    assert kl_bound(bias, epsilon, True).item() == pytest.approx(9 / 8)
    with pytest.raises(UsageError, match="other_values are missing"):
        error_bound(bias, values, epsilon, True)
    with pytest.raises(UsageError, match="other_values are given"):
        error_bound(bias, values, epsilon, other_values=values)


def test_first_order_error_is_the_derivative_of_the_output():
    case, scale, u = compacted_case(3), 0.4, random(18, 2, 5)
    queries = random(19, 2, 6, 5)
    queries += ((1 - projection(queries, u)) / u.square().sum(-1, keepdim=True)).unsqueeze(
        -1
    ) * u.unsqueeze(1)
    epsilon = 1e-5
    shifted = case.bias * (1 + epsilon)
    up = attention_output(queries, case.keys, case.values, scale, shifted)
    down = attention_output(queries, case.keys, case.values, scale, case.bias * (1 - epsilon))
    slope = (up - down) / (2 * epsilon)
    ones = torch.ones(2, 6).double()
    torch.testing.assert_close(
        first_order_error(case, queries, ones, scale), slope, atol=1e-8, rtol=1e-6
    )
    torch.testing.assert_close(
        first_order_weights(case, queries, scale), slope.square().sum(-1), atol=1e-8, rtol=1e-6
    )


# --- the report -----------------------------------------------------------------------------


def test_report_counts_by_head_and_names_the_unreliable():
    u = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    queries = torch.ones(2, 200, 2).double()  # two query heads of 100 queries each
    queries[0, :100, 0] = 1.5
    queries[1, :3, 0] = -1.0
    report = fold_report(queries, u, groups=2)
    expected = torch.tensor([[0.5, 0.0], [math.sqrt(12 / 100), 0.0]]).double()
    torch.testing.assert_close(report.rms_epsilon, expected)
    assert report.min_projection.tolist() == [1.0, -1.0]
    assert report.share_nonpositive.tolist() == [0.0, 0.015]
    assert report.unreliable_heads == [1]
    assert not report.rank_deficient
    assert "layer 3: over 1% of the queries of KV heads [1]" in report.warnings(3)[0]


def test_one_percent_of_bad_queries_is_tolerated_and_a_lack_of_queries_reported():
    u = torch.tensor([[1.0, 0.0]]).double()
    queries = torch.ones(1, 100, 2).double()
    queries[0, 0, 0] = 0.0
    assert fold_report(queries, u).unreliable_heads == []
    few = fold_report(queries[:, 50:51], u)
    assert few.rank_deficient
    assert few.warnings(0) == ["layer 0: fewer queries than head dimensions, the ridge decides u"]


def test_weighted_layers_are_folded_with_their_own_first_order_weights():
    case, scale = compacted_case(4), 0.4
    queries = random(20, 2, 40, 5) + 1
    got = fold_layer(case, queries, scale, variant="weighted")
    slope = [
        np.array(
            [
                sum(
                    p[j] * (case.bias[h, j].item() - p @ case.bias[h].numpy()) * case.values[h, j]
                    for j in range(7)
                ).numpy()
                for p in np.exp(log_weights(queries[h], case.keys[h], scale, case.bias[h]))
            ]
        )
        for h in range(2)
    ]
    weights = torch.tensor(np.square(slope).sum(-1))
    expected = fold_direction(queries, variant="weighted", weights=weights)
    torch.testing.assert_close(got.direction, expected)
