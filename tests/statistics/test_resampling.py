"""Oracles: all resamples enumerated, coverage by simulation beside the t interval, invariants."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from replicata.statistics.resampling import cluster_bootstrap, cluster_means


def test_cluster_means_by_hand():
    frame = pd.DataFrame({"unit": ["b", "a", "b", "a", "c"], "value": [1.0, 2.0, 4.0, 6.0, 9.0]})
    means = cluster_means(frame, "unit", "value")
    assert list(means.items()) == [("a", 4.0), ("b", 2.5), ("c", 9.0)]
    assert (means.index.name, means.name) == ("unit", "value")


def test_cluster_means_leave_out_categories_without_rows():
    units = pd.Categorical(["a", "a", "c"], categories=["a", "b", "c"])
    frame = pd.DataFrame({"unit": units, "value": [1, 3, 5]})
    assert cluster_means(frame, "unit", "value").to_dict() == {"a": 2.0, "c": 5.0}


def test_cluster_means_do_not_follow_the_index():
    frame = pd.DataFrame({"unit": ["a", "b"], "value": [1.0, 2.0]}, index=[7, 7])
    assert cluster_means(frame, "unit", "value").to_dict() == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ({"unit": ["a"]}, "no column 'value', only unit"),
        ({"unit": [], "value": []}, "at least 1"),
        ({"unit": ["a", "b"], "value": [1.0, math.nan]}, r"value\[1\] is nan"),
        ({"unit": ["a", None], "value": [1.0, 2.0]}, "unit has no label in row 1"),
        ({"unit": ["a"], "value": ["x"]}, "real numbers"),
    ],
)
def test_bad_frames_end_in_a_sentence(frame, words):
    with pytest.raises(ValueError, match=words):
        cluster_means(pd.DataFrame(frame), "unit", "value")


def test_percentile_interval_is_that_of_all_resamples():
    # 5^5 resamples of 5 clusters can be listed; the drawn quantiles must be theirs.
    means = [0.1, 0.4, 0.5, 0.9, 1.6]
    every = np.sort([np.mean(draw) for draw in itertools.product(means, repeat=5)])
    result = cluster_bootstrap(means, seed=1, n_resamples=40_000)
    for end, share in zip(result.interval, (0.025, 0.975), strict=True):
        assert abs(np.mean(every <= end) - share) < 0.006
    assert result.estimate == pytest.approx(0.7)
    assert result.standard_error == pytest.approx(np.std(every), rel=0.02)


def test_clusters_weigh_the_same_whatever_their_size():
    values = [0.0] * 100 + [1.0, 2.0, 2.0]
    clusters = ["a"] * 100 + ["b", "c", "c"]
    result = cluster_bootstrap(values, clusters, seed=0)
    assert result.estimate == 1.0
    assert (result.n_clusters, result.n_values) == (3, 103)
    assert result.describe("texts") == "95 % cluster bootstrap (percentile) over 3 texts"
    alone = cluster_bootstrap([0.0, 1.0, 2.0], seed=0)
    assert alone.interval == result.interval


def test_values_within_a_cluster_are_no_evidence_of_their_own():
    rng = np.random.default_rng(2)
    means = rng.normal(size=8)
    copies = cluster_bootstrap(np.repeat(means, 50), np.repeat(np.arange(8), 50), seed=0)
    once = cluster_bootstrap(means, seed=0)
    assert copies.interval == pytest.approx(once.interval, rel=1e-12)


@pytest.mark.parametrize("k", [4, 8, 16])
def test_coverage_of_new_clusters_beside_the_t_interval(k):
    # The docstring quotes these: about .80, .88 and .92 where the t interval has .95.
    stated = {4: 0.80, 8: 0.88, 16: 0.92}[k]
    rng = np.random.default_rng(100 + k)
    runs, hits, t_hits = 1500, 0, 0
    for run in range(runs):
        data = rng.normal(size=k)
        low, high = cluster_bootstrap(data, seed=run, n_resamples=499).interval
        hits += low <= 0 <= high
        t_hits += abs(stats.ttest_1samp(data, 0.0).statistic) <= stats.t.ppf(0.975, k - 1)
    assert abs(t_hits / runs - 0.95) < 4 * math.sqrt(0.95 * 0.05 / runs)
    assert abs(hits / runs - stated) < 0.03


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_many_clusters_give_the_normal_interval(method):
    data = np.random.default_rng(4).normal(3.0, 2.0, 400)
    low, high = cluster_bootstrap(data, seed=0, method=method).interval
    half = 1.96 * data.std(ddof=1) / 20
    assert low == pytest.approx(data.mean() - half, abs=0.03)
    assert high == pytest.approx(data.mean() + half, abs=0.03)


def test_bca_leans_towards_the_long_tail():
    data = np.random.default_rng(6).exponential(size=25) ** 2
    plain = cluster_bootstrap(data, seed=0).interval
    corrected = cluster_bootstrap(data, seed=0, method="BCa").interval
    assert corrected[0] > plain[0]
    assert corrected[1] > plain[1]


def test_another_statistic():
    data = [1.0, 2.0, 3.0, 10.0, 11.0]
    result = cluster_bootstrap(data, seed=0, statistic=np.median)
    assert result.estimate == 3.0
    assert set(result.interval) <= set(data)


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_equal_clusters_give_a_point_and_say_so(method):
    result = cluster_bootstrap([0.5, 0.5, 0.5], seed=0, method=method)
    assert result.degenerate
    assert (result.interval, result.standard_error) == ((0.5, 0.5), 0.0)


@settings(max_examples=30, deadline=None)
@given(
    data=st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=3, max_size=8),
    shift=st.integers(-64, 64),
)
def test_shift_scale_and_seed(data, shift):
    def run(values):
        return cluster_bootstrap(values, seed=9, n_resamples=200)

    base = run(data)
    assert run(data) == base
    low, high = base.interval
    assert min(data) - 1e-9 <= low <= high <= max(data) + 1e-9
    assert run([d + shift for d in data]).interval == pytest.approx(
        (low + shift, high + shift), abs=1e-9
    )
    assert run([-d for d in data]).interval == pytest.approx((-high, -low), abs=1e-9)


def test_rows_in_another_order_give_the_same_interval():
    rng = np.random.default_rng(0)
    values, clusters = rng.normal(size=40), rng.integers(0, 7, 40)
    order = rng.permutation(40)
    first = cluster_bootstrap(values, clusters, seed=0)
    second = cluster_bootstrap(values[order], clusters[order], seed=0)
    assert second.interval == pytest.approx(first.interval, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"values": []}, "at least 1"),
        ({"values": [1.0, math.nan]}, "finite"),
        ({"values": [1.0, 2.0], "clusters": ["a"]}, r"shape \(1,\)"),
        ({"values": [1.0, 2.0], "clusters": ["a", "a"]}, "at least 2 clusters, got 1"),
        ({"values": [1.0, 2.0], "clusters": ["a", None]}, "no label"),
        ({"values": [1.0, 2.0], "method": "bca"}, "percentile, BCa"),
        ({"values": [1.0, 2.0], "confidence": 95}, "confidence is 95"),
        ({"values": [1.0, 2.0], "n_resamples": 1e3}, "whole number"),
    ],
)
def test_bad_input_ends_in_a_sentence(arguments, words):
    with pytest.raises(ValueError, match=words):
        cluster_bootstrap(**arguments, seed=0)
