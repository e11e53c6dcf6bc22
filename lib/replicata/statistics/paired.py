"""Paired comparisons: sign-flip permutation, exact McNemar, equivalence by TOST."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from replicata.statistics.checks import ALTERNATIVES, between, constant, one_of, vector, whole

# Sums of signed differences closer than this, relative to the sum of sizes, count as tied. It is
# far above rounding (n * 2^-53) and far below any gap that means something.
TIE = 1e-12


@dataclass(frozen=True)
class SignFlipResult:
    """What a sign-flip test found.

    Attributes
    ----------
    estimate
        Mean difference, in the unit of the data.
    p_value
        Never 0.
    smallest_p
        The smallest p these data could give in this direction, had all differences agreed in sign:
        above alpha, the test cannot reject whatever the effect is.
    alternative
        ``two-sided``, ``greater`` (mean > 0) or ``less``.
    n
        Differences, zeros included.
    exact
        Whether all sign patterns were enumerated.
    n_patterns
        Sign patterns enumerated or drawn.
    """

    estimate: float
    p_value: float
    smallest_p: float
    alternative: str
    n: int
    exact: bool
    n_patterns: int

    @property
    def description(self) -> str:
        """The test in words, for ``Evidence.test``."""
        how = "exact" if self.exact else "Monte Carlo"
        return f"{how} sign-flip test, {self.alternative}, {self.n_patterns} sign patterns"


def sign_flip_test(
    differences: npt.ArrayLike, alternative: str, *, seed: int, n_resamples: int = 99_999
) -> SignFlipResult:
    """Test that paired differences are symmetric about 0 by flipping their signs.

    Under the null hypothesis each difference is as likely as its negative, independently. With S
    the sum of the differences and S' its value under random signs, p = P(S' >= S) for ``greater``,
    P(S' <= S) for ``less``, and twice the smaller of the two, at most 1, for ``two-sided``
    (Fisher 1935, The Design of Experiments, section 21). All 2^m patterns of the m non-zero
    differences are enumerated if 2^m <= ``n_resamples``; otherwise patterns are drawn and
    p = (b+1)/(n_resamples+1) (Phipson and Smyth 2010, doi 10.2202/1544-6115.1585).

    Differences of exactly 0 are left out of the enumeration: they change no sum, so p is the same.

    Ties: scipy compares with a tolerance relative to the observed sum, which is no tolerance at
    all when that sum should be 0 and comes out as 1e-17. So the null distribution is scipy's and
    the count is ours: sums within 1e-12 of the sum of sizes are tied, and a tie counts against
    the claim. For data like 0.1, 0.2, 0.3 this gives the p-value of exact arithmetic. Pass
    differences in double precision: numbers rounded to float32 are not tied any more.

    Parameters
    ----------
    differences
        Shape (n,): one number per cluster (average within a cluster first), n >= 1.
    alternative
        ``two-sided``, ``greater`` or ``less``.
    seed
        For the drawn patterns; without effect when enumeration is exact.
    n_resamples
        Largest number of patterns to enumerate, and the number to draw.

    Raises
    ------
    ValueError
        If the differences are empty, not finite or not one-dimensional, or an option is unknown.
    """
    data = vector(differences, "differences", 1)
    one_of(alternative, "alternative", ALTERNATIVES)
    limit = whole(n_resamples, "n_resamples", 1)
    rng = np.random.default_rng(whole(seed, "seed", 0))

    # A power of two changes no digits, and keeps sums of huge or tiny numbers in range.
    exponent = int(np.frexp(np.max(np.abs(data)))[1])
    scaled = np.ldexp(data, -exponent)
    estimate = math.ldexp(math.fsum(scaled) / data.size, exponent)

    moving = scaled[scaled != 0]
    exact = 2**moving.size <= limit
    null = _null_sums(moving, 2**moving.size if exact else limit, rng)
    tie = TIE * float(np.sum(np.abs(moving)))
    observed = float(np.sum(moving))
    added = 0 if exact else 1

    def share(count: int) -> float:
        return (int(count) + added) / (null.size + added)

    greater = share(np.count_nonzero(null >= observed - tie))
    less = share(np.count_nonzero(null <= observed + tie))
    extreme = share(np.count_nonzero(null >= np.max(null) - tie) if exact else 0)
    if alternative == "two-sided":
        p_value, smallest = min(1.0, 2 * min(greater, less)), min(1.0, 2 * extreme)
    else:
        p_value, smallest = (greater if alternative == "greater" else less), extreme
    return SignFlipResult(estimate, p_value, smallest, alternative, data.size, exact, null.size)


def _null_sums(
    moving: npt.NDArray[np.float64], n_patterns: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return the sums of ``moving`` (m,) under all, or ``n_patterns`` drawn, sign patterns."""
    if moving.size < 2:  # scipy wants two observations or more
        return np.concatenate([moving, -moving]) if moving.size else np.zeros(1)
    result = stats.permutation_test(
        (moving,),
        lambda x, axis: np.sum(x, axis=axis),
        permutation_type="samples",
        n_resamples=n_patterns,
        batch=max(1, 1_000_000 // moving.size),
        rng=rng,
    )
    return result.null_distribution


@dataclass(frozen=True)
class McNemarResult:
    """Exact McNemar test: ``p_value`` (two-sided) and the ``smallest_p`` these counts allow.

    ``only_a`` and ``only_b`` are the questions that one arm alone got right.
    """

    only_a: int
    only_b: int
    p_value: float
    smallest_p: float


def mcnemar_exact(only_a: int, only_b: int) -> McNemarResult:
    """Test that two arms answer paired questions equally well: exact McNemar, two-sided.

    p = min(1, 2 P(X <= min(a, b))) with X ~ Binomial(a+b, 1/2) (McNemar 1947,
    doi 10.1007/BF02295996). It takes questions as independent, so questions that share a context
    make it optimistic; the cluster-level companion is `sign_flip_test`.

    Parameters
    ----------
    only_a, only_b
        Questions that only arm a, or only arm b, got right. With none of either, p = 1.

    Raises
    ------
    ValueError
        If a count is negative or not a whole number.
    """
    a, b = whole(only_a, "only_a", 0), whole(only_b, "only_b", 0)
    p_value = float(mcnemar([[0, a], [b, 0]], exact=True).pvalue)
    return McNemarResult(a, b, p_value, min(1.0, 2.0 * 0.5 ** (a + b)))


@dataclass(frozen=True)
class TostResult:
    """What two one-sided tests found.

    Attributes
    ----------
    estimate
        Mean difference.
    p_lower, p_upper
        Of the null hypotheses mean <= -margin and mean >= margin.
    p_value
        The larger of the two.
    interval
        The 1 - 2 alpha interval of the mean difference; None if the differences do not vary.
    equivalent
        Whether ``p_value <= alpha``.
    method
        ``t``, or ``sign`` if the differences do not vary.
    margin, alpha, n
        As given; n is the number of differences.
    """

    estimate: float
    p_lower: float
    p_upper: float
    p_value: float
    interval: tuple[float, float] | None
    equivalent: bool
    method: str
    margin: float
    alpha: float
    n: int

    @property
    def description(self) -> str:
        """The test in words, for ``Evidence.test``."""
        how = "t" if self.method == "t" else "sign test, as the differences do not vary"
        return f"TOST ({how}), margin ±{self.margin:g}, alpha {self.alpha:g}"


def tost_paired(differences: npt.ArrayLike, margin: float, alpha: float = 0.05) -> TostResult:
    """Test that the mean paired difference lies within ±margin: two one-sided t tests.

    t = (mean ∓ margin) / (s/√n) on n-1 degrees of freedom, one test per bound; equivalent if both
    reject, which is the same as the 1 - 2 alpha interval lying inside the margins (Schuirmann
    1987, doi 10.1007/BF01068419).

    Differences that do not vary (often: all 0, because no answer changed) give the t test no
    variance, and its p-value of 0 would claim certainty from a handful of clusters. Then both
    hypotheses are tested by the exact sign test instead: all n differences lie on the inner side
    of a bound, p = 2^-n, or at least not inside it, p = 1. So four identical clusters do not
    show equivalence at alpha = 0.05, and five do.

    Parameters
    ----------
    differences
        Shape (n,): one number per cluster, n >= 2.
    margin
        Largest difference that does not matter, > 0, in the unit of the data.
    alpha
        Level of each one-sided test, in (0, 0.5).

    Raises
    ------
    ValueError
        If the differences are fewer than 2, not finite or not one-dimensional, or an option is
        out of range.
    """
    data = vector(differences, "differences", 2)
    bound = between(margin, "margin", 0, math.inf)
    level = between(alpha, "alpha", 0, 0.5)
    mean = float(np.mean(data))
    if constant(data, bound):
        inside = 0.5**data.size
        p_lower = inside if np.all(data > -bound) else 1.0
        p_upper = inside if np.all(data < bound) else 1.0
        interval, method = None, "sign"
    else:
        p_lower = float(stats.ttest_1samp(data, -bound, alternative="greater").pvalue)
        p_upper = float(stats.ttest_1samp(data, bound, alternative="less").pvalue)
        ends = stats.ttest_1samp(data, 0.0).confidence_interval(1 - 2 * level)
        interval, method = (float(ends.low), float(ends.high)), "t"
    p_value = max(p_lower, p_upper)
    return TostResult(
        estimate=mean,
        p_lower=p_lower,
        p_upper=p_upper,
        p_value=p_value,
        interval=interval,
        equivalent=p_value <= level,
        method=method,
        margin=bound,
        alpha=level,
        n=data.size,
    )
