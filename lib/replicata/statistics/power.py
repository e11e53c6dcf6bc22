"""Power: the smallest effect that a paired comparison would have found."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize
from statsmodels.stats.power import ttest_power

from replicata.statistics.checks import ALTERNATIVES, between, constant, one_of, vector


@dataclass(frozen=True)
class MinimalDetectableEffect:
    """The smallest mean difference found with the wanted power, or why there is none.

    Attributes
    ----------
    effect
        Its size (>= 0) in the unit of the data; None if no size can be given.
    reason
        Why not, in words; None if there is an effect. Exactly one of the two is None, so they go
        into ``Evidence.mde`` and ``Evidence.no_mde`` as they are.
    sd
        Standard deviation of the differences (n-1 in the denominator); None for n = 1.
    n, alpha, power, alternative
        Of the comparison.
    """

    effect: float | None
    reason: str | None
    sd: float | None
    n: int
    alpha: float
    power: float
    alternative: str


def minimal_detectable_effect(
    differences: npt.ArrayLike,
    *,
    alternative: str,
    alpha: float = 0.05,
    power: float = 0.8,
    smallest_p: float | None = None,
) -> MinimalDetectableEffect:
    """Return the mean difference that a paired t test would have found with the given power.

    Solves power(effect / sd, n, alpha) = power, where power is that of the noncentral t
    distribution with noncentrality effect √n / sd (Cohen 1988, section 2.3). It takes sd from the
    data, so it is as uncertain as sd, which from 4 clusters is known within a factor of about
    0.6 to 3.7.
    A sign-flip test of the same clusters has about the power of the t test, except where its
    ``smallest_p`` exceeds alpha: then it never rejects, and no effect is detectable.

    Parameters
    ----------
    differences
        Shape (n,): one number per cluster.
    alternative
        ``two-sided``, ``greater`` or ``less``; the effect is a size either way.
    alpha, power
        0 < alpha < power < 1.
    smallest_p
        Of the test that is really used, if that is a permutation or an exact test.

    Raises
    ------
    ValueError
        If the differences are empty, not finite or not one-dimensional, or an option is out of
        range.

    Notes
    -----
    ``TTestPower.solve_power`` is not used: it returns wrong roots without a word (n = 4, alpha
    .01, power .95: an effect whose power is .77), because scipy's noncentral t has NaN in its far
    lower tail. That tail is the chance to reject on the wrong side; where it is NaN it is below
    1e-12, and taken as 0 here.
    """
    data = vector(differences, "differences", 1)
    one_of(alternative, "alternative", ALTERNATIVES)
    level = between(alpha, "alpha", 0, 1)
    wanted = between(power, "power", level, 1)
    n = data.size
    sd = float(np.std(data, ddof=1)) if n > 1 else None

    effect, reason = None, None
    if smallest_p is not None and smallest_p > level:
        reason = (
            f"no effect of any size is detectable: with n = {n} the smallest possible p is "
            f"{smallest_p:.3g}, above alpha = {level:g}"
        )
    elif sd is None:
        reason = "no effect size can be given: one cluster has no spread"
    elif constant(data, 0.0):
        reason = f"no effect size can be given: the {n} differences do not vary"
    else:
        effect = sd * _standardized_effect(n, level, wanted, alternative)
    return MinimalDetectableEffect(effect, reason, sd, n, level, wanted, alternative)


def _standardized_effect(n: int, alpha: float, power: float, alternative: str) -> float:
    """Return effect/sd at which a one-sample t test of n values has the given power."""
    tail = alpha / 2 if alternative == "two-sided" else alpha

    def excess(effect: float) -> float:
        reached = float(ttest_power(effect, n, tail, alternative="larger"))
        if alternative == "two-sided":
            wrong_side = float(ttest_power(effect, n, tail, alternative="smaller"))
            reached += 0.0 if math.isnan(wrong_side) else wrong_side
        return reached - power

    high = 1 / math.sqrt(n)
    while excess(high) < 0:
        high *= 1.5
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-10))
