"""Oracles: power by simulating t tests, power by integrating over the spread, tabulated values."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from replicata.statistics.power import minimal_detectable_effect


def data_with(sd: float, n: int) -> np.ndarray:
    values = np.arange(n, dtype=float)
    return sd * (values - values.mean()) / values.std(ddof=1)


def power_by_integration(effect: float, n: int, alpha: float, sides: int) -> float:
    """P(|t| > c) for z ~ N(effect √n, 1) over s ~ chi/√df, without the noncentral t."""
    df, shift = n - 1, effect * math.sqrt(n)
    c = stats.t.isf(alpha / sides, df)

    def given_spread(s: float) -> float:
        scale = s / math.sqrt(df)
        upper = stats.norm.sf(c * scale - shift)
        lower = stats.norm.cdf(-c * scale - shift) if sides == 2 else 0.0
        return (upper + lower) * stats.chi.pdf(s, df)

    # Up to where the chi density is below 1e-30, so that the integrator sees the hump.
    return integrate.quad(given_spread, 0, math.sqrt(df) + 12, limit=200)[0]


@pytest.mark.parametrize("n", [2, 3, 4, 6, 16, 34, 400])
@pytest.mark.parametrize(("alpha", "power"), [(0.05, 0.8), (0.01, 0.95), (0.05, 0.1)])
@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_the_effect_has_the_wanted_power(n, alpha, power, alternative):
    result = minimal_detectable_effect(
        data_with(0.3, n), alternative=alternative, alpha=alpha, power=power
    )
    sides = 2 if alternative == "two-sided" else 1
    reached = power_by_integration(result.effect / 0.3, n, alpha, sides)
    assert reached == pytest.approx(power, abs=1e-6)
    assert result.reason is None
    assert result.sd == pytest.approx(0.3)


def test_a_tabulated_case():
    # Medium effect .5 needs n = 34 pairs for power .80 at .05 two-sided (G*Power; Cohen's tables).
    effects = [
        minimal_detectable_effect(data_with(1.0, n), alternative="two-sided").effect
        for n in (33, 34)
    ]
    assert effects[0] > 0.5 > effects[1]


def test_power_by_simulation():
    effect = minimal_detectable_effect(data_with(1.0, 6), alternative="greater").effect
    draws = np.random.default_rng(8).normal(effect, 1.0, (20_000, 6))
    rejected = stats.ttest_1samp(draws, 0.0, axis=1, alternative="greater").pvalue <= 0.05
    assert abs(rejected.mean() - 0.8) < 4 * math.sqrt(0.16 / 20_000)


def test_it_scales_with_the_data_and_ignores_their_mean():
    data = data_with(0.2, 9)
    base = minimal_detectable_effect(data, alternative="two-sided").effect
    moved = minimal_detectable_effect(data + 5, alternative="two-sided").effect
    scaled = minimal_detectable_effect(1000 * data, alternative="two-sided").effect
    assert moved == pytest.approx(base)
    assert scaled == pytest.approx(1000 * base)


@pytest.mark.parametrize(
    ("data", "smallest_p", "words"),
    [
        ([0.1], None, "one cluster"),
        ([0.1, 0.1, 0.1], None, "do not vary"),
        ([0.1, 0.2, 0.3, 0.1], 1 / 16, "smallest possible p is 0.0625, above alpha = 0.05"),
    ],
)
def test_where_there_is_no_effect_there_is_a_reason(data, smallest_p, words):
    result = minimal_detectable_effect(data, alternative="greater", smallest_p=smallest_p)
    assert result.effect is None
    assert words in result.reason


def test_a_smallest_p_within_alpha_changes_nothing():
    data = [0.1, 0.2, 0.3, 0.1, 0.4]
    with_p = minimal_detectable_effect(data, alternative="greater", smallest_p=1 / 32)
    assert with_p == minimal_detectable_effect(data, alternative="greater")


@pytest.mark.parametrize(
    "options",
    [
        {"alternative": "larger"},
        {"alternative": "less", "alpha": 0.0},
        {"alternative": "less", "alpha": 0.9, "power": 0.8},
        {"alternative": "less", "power": 1.0},
    ],
)
def test_bad_options_end_in_a_sentence(options):
    with pytest.raises(ValueError, match="expected"):
        minimal_detectable_effect([1.0, 2.0], **options)
