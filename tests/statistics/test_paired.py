"""Oracles: enumeration in exact fractions, binomial closed forms, statsmodels where it is scipy."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.weightstats import ttost_paired

from replicata.statistics.paired import mcnemar_exact, sign_flip_test, tost_paired

ALTERNATIVES = ("two-sided", "greater", "less")


def enumerated(differences: list[Fraction], alternative: str) -> Fraction:
    """The p-value by definition: all 2^n sign patterns, zeros included, in exact arithmetic."""
    observed = sum(differences)
    sums = [
        sum(sign * d for sign, d in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    greater = Fraction(sum(s >= observed for s in sums), len(sums))
    less = Fraction(sum(s <= observed for s in sums), len(sums))
    both = min(Fraction(1), 2 * min(greater, less))
    return {"greater": greater, "less": less, "two-sided": both}[alternative]


@settings(max_examples=60, deadline=None)
@given(
    tenths=st.lists(st.integers(-7, 7), min_size=1, max_size=9),
    denominator=st.sampled_from([1, 3, 7, 10, 1000]),
    alternative=st.sampled_from(ALTERNATIVES),
)
def test_sign_flip_is_the_enumeration_in_fractions(tenths, denominator, alternative):
    # Small numerators over one denominator tie all the time, and few of them are binary fractions.
    exact = [Fraction(t, denominator) for t in tenths]
    result = sign_flip_test([t / denominator for t in tenths], alternative, seed=0)
    assert result.exact
    assert result.p_value == float(enumerated(exact, alternative))
    assert result.estimate == pytest.approx(float(sum(exact) / len(exact)), abs=1e-15)


def test_sign_flip_with_twelve_untied_values():
    rng = np.random.default_rng(3)
    values = [Fraction(int(v), 1009) for v in rng.integers(-5000, 9000, 12)]
    for alternative in ALTERNATIVES:
        result = sign_flip_test([float(v) for v in values], alternative, seed=0)
        assert result.p_value == float(enumerated(values, alternative))


def test_sign_flip_of_signs_is_the_binomial():
    data = [1] * 9 + [-1] * 2 + [0] * 5
    result = sign_flip_test(data, "greater", seed=0)
    assert result.p_value == 0.03271484375  # P(Bin(11, 1/2) >= 9) = 67/2048
    assert result.smallest_p == 2**-11
    assert result.n == 16
    assert sign_flip_test(data, "two-sided", seed=0).p_value == 2 * 0.03271484375


def test_a_sum_that_should_be_zero_ties_with_zero():
    # 0.1 + 0.2 - 0.3 is 5.6e-17 in floats; in decimals it is 0, where every pattern or its mirror
    # is at least as large: P(S >= 0) = 5/8.
    data = [0.1, 0.2, -0.3]
    assert sum(data) != 0
    expected = enumerated([Fraction(1, 10), Fraction(2, 10), Fraction(-3, 10)], "greater")
    assert sign_flip_test(data, "greater", seed=0).p_value == float(expected) == 5 / 8


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1.0, 1e300, 1.7e308])
def test_sign_flip_at_the_ends_of_the_float_range(scale):
    result = sign_flip_test([scale] * 6, "greater", seed=0)
    assert result.p_value == 2**-6
    assert result.estimate == pytest.approx(scale, rel=1e-15, abs=0)


@pytest.mark.parametrize(("data", "p"), [([2.0], 0.5), ([0.0], 1.0), ([0.0, 0.0], 1.0)])
def test_sign_flip_of_next_to_nothing(data, p):
    result = sign_flip_test(data, "greater", seed=0)
    assert (result.p_value, result.smallest_p) == (p, p)
    assert sign_flip_test(data, "two-sided", seed=0).p_value == 1.0


def test_sixteen_differences_are_enumerated_and_seventeen_are_drawn():
    ones = np.ones(16)
    result = sign_flip_test(ones, "greater", seed=0)
    assert (result.exact, result.n_patterns, result.p_value) == (True, 2**16, 2**-16)
    result = sign_flip_test(np.ones(17), "greater", seed=0)
    assert (result.exact, result.n_patterns) == (False, 99_999)
    assert result.smallest_p == 1 / 100_000
    assert result.smallest_p <= result.p_value <= 6 / 100_000  # 2^-17 is 0.76 of 99,999 draws


def test_zeros_do_not_use_up_the_enumeration():
    data = [0.0] * 30 + [1.0] * 11 + [-1.0]
    result = sign_flip_test(data, "greater", seed=0)
    assert (result.exact, result.n_patterns, result.n) == (True, 2**12, 42)
    assert result.p_value == 13 / 2**12  # P(Bin(12, 1/2) >= 11)


def test_monte_carlo_agrees_with_the_binomial_and_counts_itself():
    data = [1] * 26 + [-1] * 14
    exact = stats.binom.sf(25, 40, 0.5)
    result = sign_flip_test(data, "greater", seed=11)
    assert not result.exact
    spread = math.sqrt(exact * (1 - exact) / result.n_patterns)
    assert abs(result.p_value - exact) < 4 * spread
    hits = result.p_value * 100_000
    assert hits == pytest.approx(round(hits), abs=1e-6)  # (b+1)/(m+1)
    assert sign_flip_test(data, "greater", seed=11) == result
    assert sign_flip_test(data, "greater", seed=12) != result


def test_monte_carlo_p_is_never_zero():
    result = sign_flip_test(np.ones(60), "two-sided", seed=0, n_resamples=99)
    assert result.p_value == result.smallest_p == 2 / 100


floats = st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 6))


@settings(max_examples=40, deadline=None)
@given(data=st.lists(floats, min_size=1, max_size=10), order=st.randoms(use_true_random=False))
def test_order_of_clusters_zeros_scale_and_sign(data, order):
    p = {a: sign_flip_test(data, a, seed=0).p_value for a in ALTERNATIVES}
    shuffled = data.copy()
    order.shuffle(shuffled)
    for alternative in ALTERNATIVES:
        assert sign_flip_test(shuffled, alternative, seed=0).p_value == p[alternative]
        assert sign_flip_test([*data, 0.0], alternative, seed=0).p_value == p[alternative]
        assert sign_flip_test([8 * d for d in data], alternative, seed=0).p_value == p[alternative]
    negated = [-d for d in data]
    assert sign_flip_test(negated, "less", seed=0).p_value == p["greater"]
    assert sign_flip_test(negated, "greater", seed=0).p_value == p["less"]
    assert sign_flip_test(negated, "two-sided", seed=0).p_value == p["two-sided"]


@settings(max_examples=30, deadline=None)
@given(data=st.lists(floats, min_size=2, max_size=9), shift=st.floats(0, 50))
def test_a_shift_upwards_never_weakens_greater(data, shift):
    before = sign_flip_test(data, "greater", seed=0)
    after = sign_flip_test([d + shift for d in data], "greater", seed=0)
    # Zeros that start to count halve the smallest p, so compare where none appear or vanish.
    if 0 not in data and 0 not in [d + shift for d in data]:
        assert after.p_value <= before.p_value


def test_false_positive_rate_is_at_most_alpha():
    rng = np.random.default_rng(20)
    p = [sign_flip_test(rng.normal(size=8), "greater", seed=0).p_value for _ in range(1500)]
    for alpha in (1 / 256, 0.05, 0.1, 0.25):
        # Exactly floor(256 alpha)/256 under the null; 4 standard errors of 1,500 runs.
        level = math.floor(256 * alpha) / 256
        assert abs(np.mean(np.array(p) <= alpha) - level) < 4 * math.sqrt(level / 1500)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "at least 1"),
        ([1.0, float("nan")], r"differences\[1\] is nan"),
        ([1.0, float("inf")], "finite"),
        ([[1.0, 2.0]], r"shape \(1, 2\)"),
        (3.0, "one-dimensional"),
        (["a", "b"], "real numbers"),
        ([1.0, None], "real numbers"),
        ([1 + 2j], "real numbers"),
    ],
)
def test_bad_differences_end_in_a_sentence(data, words):
    with pytest.raises(ValueError, match=words):
        sign_flip_test(data, "greater", seed=0)


@pytest.mark.parametrize(
    "options",
    [
        {"alternative": "larger", "seed": 0},
        {"alternative": "less", "seed": -1},
        {"alternative": "less", "seed": 0.5},
        {"alternative": "less", "seed": 0, "n_resamples": 0},
        {"alternative": "less", "seed": 0, "n_resamples": True},
    ],
)
def test_bad_options_end_in_a_sentence(options):
    with pytest.raises(ValueError, match="expected"):
        sign_flip_test([1.0, 2.0], **options)


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 5), (5, 1), (0, 6), (4, 4), (13, 30), (700, 650)])
def test_mcnemar_is_the_binomial_by_hand(a, b):
    n, k = a + b, min(a, b)
    tail = Fraction(sum(math.comb(n, i) for i in range(k + 1)), 2**n)
    result = mcnemar_exact(a, b)
    assert result.p_value == pytest.approx(float(min(Fraction(1), 2 * tail)), rel=1e-10)
    assert result.smallest_p == (1.0 if n == 0 else 2.0 ** (1 - n))


@pytest.mark.parametrize(("a", "b"), [(-1, 2), (1.5, 2), (True, 2), (None, 1)])
def test_mcnemar_refuses_what_is_no_count(a, b):
    with pytest.raises(ValueError, match="only_a is"):
        mcnemar_exact(a, b)


def test_tost_is_that_of_statsmodels():
    rng = np.random.default_rng(5)
    for n in (2, 5, 40):
        data = rng.normal(0.01, 0.05, n)
        expected = ttost_paired(data, np.zeros(n), -0.05, 0.05)
        result = tost_paired(data, 0.05)
        assert result.p_value == pytest.approx(expected[0], rel=1e-9)
        assert result.p_lower == pytest.approx(expected[1][1], rel=1e-9)
        assert result.p_upper == pytest.approx(expected[2][1], rel=1e-9)
        half = stats.t.isf(0.05, n - 1) * np.std(data, ddof=1) / math.sqrt(n)
        assert result.interval == pytest.approx((data.mean() - half, data.mean() + half))


@settings(max_examples=100, deadline=None)
@given(
    data=st.lists(st.integers(-100, 100).map(lambda i: i / 997), min_size=2, max_size=12),
    alpha=st.sampled_from([0.01, 0.05, 0.2]),
)
def test_tost_is_equivalent_exactly_when_the_interval_is_inside(data, alpha):
    result = tost_paired(data, 0.05, alpha)
    if result.interval is not None:
        low, high = result.interval
        assert result.equivalent == (low > -0.05 and high < 0.05)
    mirrored = tost_paired([-d for d in data], 0.05, alpha)
    assert mirrored.p_upper == pytest.approx(result.p_lower)
    assert mirrored.equivalent == result.equivalent


@pytest.mark.parametrize(
    ("data", "p", "equivalent"),
    [
        ([0.0] * 4, 1 / 16, False),
        ([0.0] * 5, 1 / 32, True),
        ([0.02] * 5, 1 / 32, True),
        ([0.05] * 50, 1.0, False),  # on the margin is not inside it
        ([-0.05] * 50, 1.0, False),
        ([-0.2] * 50, 1.0, False),
        ([0.3 - 0.2, 0.2 - 0.1, 0.5 - 0.4, 0.1, 0.1], 1.0, False),  # differ in last bits only
    ],
)
def test_tost_without_variance_is_a_sign_test(data, p, equivalent):
    result = tost_paired(data, 0.05)
    assert (result.method, result.interval) == ("sign", None)
    assert (result.p_value, result.equivalent) == (p, equivalent)


@pytest.mark.parametrize(
    ("data", "margin", "alpha"),
    [
        ([0.1], 0.05, 0.05),
        ([0.1, math.nan], 0.05, 0.05),
        ([0.1, 0.2], 0.0, 0.05),
        ([0.1, 0.2], -1.0, 0.05),
        ([0.1, 0.2], math.inf, 0.05),
        ([0.1, 0.2], 0.05, 0.5),
        ([0.1, 0.2], 0.05, "5%"),
    ],
)
def test_tost_refuses_bad_input(data, margin, alpha):
    with pytest.raises(ValueError, match=r"expected|at least"):
        tost_paired(data, margin, alpha)
