"""Oracles: Wilson's formula by hand, binomial tails in fractions, statsmodels' peers."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from replicata.statistics.proportions import binomial_test, wilson_interval


@st.composite
def counts(draw):
    n = draw(st.integers(1, 300))
    return draw(st.integers(0, n)), n


@given(counts())
def test_wilson_by_hand(pair):
    k, n = pair
    z = 1.959963984540054
    p = k / n
    center = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    result = wilson_interval(k, n)
    assert result.estimate == p
    assert result.interval == pytest.approx((center - half, center + half), abs=1e-12)
    assert result.interval == pytest.approx(proportion_confint(k, n, method="wilson"), abs=1e-12)


def test_wilson_ends():
    assert wilson_interval(0, 6).interval[0] == 0.0
    assert wilson_interval(6, 6).interval[1] == 1.0
    assert wilson_interval(6, 6).interval[0] == pytest.approx(6 / (6 + 1.959964**2))


def tail(k: int, n: int, p: Fraction) -> Fraction:
    return sum((math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1)), Fraction(0))


@given(counts(), st.sampled_from([Fraction(1, 2), Fraction(1, 4), Fraction(9, 10)]))
def test_binomial_tails(pair, chance):
    k, n = pair
    greater = binomial_test(k, n, float(chance), alternative="greater").p_value
    less = binomial_test(k, n, float(chance), alternative="less").p_value
    assert greater == pytest.approx(float(tail(k, n, chance)), rel=1e-9, abs=1e-15)
    assert less == pytest.approx(float(1 - tail(k + 1, n, chance)), rel=1e-9, abs=1e-15)


def test_binomial_twelve_of_twelve():
    assert binomial_test(12, 12, alternative="greater").p_value == 2**-12
    assert binomial_test(12, 12, alternative="two-sided").p_value == 2**-11


@pytest.mark.parametrize(("k", "n"), [(1, 0), (-1, 5), (6, 5), (1.0, 5), (True, 5)])
def test_bad_counts_end_in_a_sentence(k, n):
    with pytest.raises(ValueError, match="expected"):
        wilson_interval(k, n)
    with pytest.raises(ValueError, match="expected"):
        binomial_test(k, n, alternative="greater")


def test_bad_options_end_in_a_sentence():
    with pytest.raises(ValueError, match="confidence is 1"):
        wilson_interval(1, 2, 1)
    with pytest.raises(ValueError, match="probability is 0"):
        binomial_test(1, 2, 0, alternative="less")
    with pytest.raises(ValueError, match="alternative is 'larger'"):
        binomial_test(1, 2, alternative="larger")
