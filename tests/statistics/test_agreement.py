"""Oracles: a value from t tables, coverage by simulation, the exactness of the degenerate case."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicata.statistics.agreement import prediction_interval


def test_by_hand():
    # mean 2, s = 1, k = 3, t_{.975, 2} = 4.30265: 2 ± 4.30265 √(4/3).
    result = prediction_interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 * math.sqrt(4 / 3)
    assert (result.low, result.high) == pytest.approx((2 - half, 2 + half), rel=1e-9)
    assert (result.mean, result.sd, result.k) == (2.0, 1.0, 3)


@pytest.mark.parametrize("k", [2, 3, 10])
def test_the_next_run_falls_inside_as_often_as_promised(k):
    rng = np.random.default_rng(k)
    runs = 3000
    hits = sum(prediction_interval(x[:k]).contains(x[k]) for x in rng.normal(size=(runs, k + 1)))
    assert abs(hits / runs - 0.95) < 4 * math.sqrt(0.95 * 0.05 / runs)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(2, 9))
def test_equal_runs_admit_their_value_and_nothing_else(value, k):
    result = prediction_interval([value] * k)
    assert result.contains(value)
    assert not result.contains(math.nextafter(value, math.inf))
    assert not result.contains(math.nextafter(value, -math.inf))


def test_nan_is_never_inside():
    assert not prediction_interval([1.0, 2.0]).contains(math.nan)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [[1.0, 2.0]]])
def test_bad_values_end_in_a_sentence(values):
    with pytest.raises(ValueError, match="values"):
        prediction_interval(values)


def test_bad_confidence_ends_in_a_sentence():
    with pytest.raises(ValueError, match="confidence is 95"):
        prediction_interval([1.0, 2.0], confidence=95)
