"""Exact sign-flip tests: p-values by counting, without floating-point luck.

Under the null hypothesis that each cluster's difference is as likely as its negative, all 2^m sign
patterns of the m non-zero differences are equally likely (Fisher 1935, The Design of Experiments,
section 21). With P the sum of the positive sizes, a pattern's sum is at least the observed one
exactly if its subset of sizes adds up to at least P, so a p-value is a count of subsets. The count
is made in whole numbers, by the cheapest of four ways:

=================== ============================================ =========================
method              when                                         cost
=================== ============================================ =========================
binomial            all sizes equal (0/±1 outcomes: McNemar)     microseconds
dynamic programming sums on a small enough grid                  milliseconds
enumeration         up to 40 non-zero differences                up to half a second
Monte Carlo         the rest: (b+1)/(B+1), needs a seed          milliseconds
=================== ============================================ =========================

Ties are equalities of whole numbers. ``scipy.stats.permutation_test`` can miss a tie where the mean
is not 0 but small: its tolerance is relative to the observed statistic, and the rounding error is
relative to the summands. For [37, -31, -35, 49, 18, 2, -17, 34, -56] / 10 it says 0.498; exact
arithmetic, and `sign_flip_exact`, say 1/2.

    >>> sign_flip_exact([1] * 9 + [-1] * 2 + [0] * 5, "greater").p_value
    0.03271484375
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from replicata.statistics.checks import ALTERNATIVES, one_of, whole
from replicata.statistics.lattice import (
    count_from,
    count_subsets_from,
    subset_poly,
    to_lattice,
)

MAX_WORK = 2 * 10**10
"""Bits moved by dynamic programming before it counts as too dear: about a second."""
MAX_ENUMERATED = 40


@dataclass(frozen=True)
class ExactTest:
    """What a permutation test found.

    Attributes
    ----------
    estimate
        The mean difference (over units for a sign flip, between groups for labels).
    p_value
        Never 0.
    p_fraction
        The same as an exact ratio; for Monte Carlo the ratio (b+1)/(B+1).
    smallest_p
        The smallest p these data could give in this direction; above alpha the test cannot reject.
    alternative
        ``greater``, ``less`` or ``two-sided`` (twice the smaller of the two, at most 1).
    n
        Units that were permuted: clusters, where clusters were given.
    n_moving
        Those that can change the statistic.
    method
        ``binomial``, ``hypergeometric``, ``dynamic programming``, ``enumeration`` or
        ``Monte Carlo``.
    n_patterns
        Patterns counted or drawn.
    """

    estimate: float
    p_value: float
    p_fraction: Fraction
    smallest_p: float
    alternative: str
    n: int
    n_moving: int
    method: str
    n_patterns: int

    @property
    def exact(self) -> bool:
        """Whether the p-value is the exact one."""
        return self.method != "Monte Carlo"


def sign_flip_exact(
    differences: Any,
    alternative: str,
    *,
    clusters: Sequence[Hashable] | None = None,
    resolution: Any = None,
    seed: int | None = None,
    n_resamples: int = 99_999,
) -> ExactTest:
    """Test that paired differences are symmetric about 0, exactly where that is affordable.

    Signs are independent between units, so there is nothing to stratify: balancing blocks does
    not change the null distribution. Differences of 0 never matter.

    Parameters
    ----------
    differences
        Shape (n,): whole numbers, ``Fraction``s, ``Decimal``s, or floats with a ``resolution``.
    alternative
        ``greater`` (mean > 0), ``less`` or ``two-sided``.
    clusters
        Shape (n,): units that share a label flip together, and their differences are added up
        first. A pooled test over endpoints that see the same world clusters by world.
    resolution
        The step that floats are multiples of; see `to_lattice`.
    seed
        For Monte Carlo; without one, data too large to count are refused.
    n_resamples
        Patterns to draw for Monte Carlo, B; then p = (b+1)/(B+1) (Phipson and Smyth 2010,
        doi 10.2202/1544-6115.1585).

    Raises
    ------
    ValueError
        If the data are empty or not exact, the labels are not one per difference, an option is
        unknown, or counting is too dear and there is no seed.
    """
    one_of(alternative, "alternative", ALTERNATIVES)
    steps, step = to_lattice(differences, resolution, "differences")
    total, units = sum(steps), len(steps)
    if clusters is not None:
        steps = cluster_sums(steps, clusters, "differences")
    sizes = [abs(item) for item in steps if item]
    positive = sum(item for item in steps if item > 0)
    method, (up, down, top), patterns = _tails(sizes, positive, seed, n_resamples)
    p_fraction, smallest = combine(alternative, up, down, top)
    return ExactTest(
        estimate=float(total * step / units),
        p_value=float(p_fraction),
        p_fraction=p_fraction,
        smallest_p=float(smallest),
        alternative=alternative,
        n=len(steps),
        n_moving=len(sizes),
        method=method,
        n_patterns=patterns,
    )


def combine(
    alternative: str, up: Fraction, down: Fraction, top: tuple[Fraction, Fraction]
) -> tuple[Fraction, Fraction]:
    """Return the p-value and the smallest possible one from both tails and their extremes."""
    if alternative == "greater":
        return up, top[0]
    if alternative == "less":
        return down, top[1]
    return min(Fraction(1), 2 * min(up, down)), min(Fraction(1), 2 * min(top))


def cluster_sums(values: Sequence[int], clusters: Sequence[Hashable], name: str) -> list[int]:
    """Return the sums of ``values`` over equal labels, in order of first appearance."""
    if len(clusters) != len(values):
        raise ValueError(
            f"clusters has {len(clusters)} labels, expected one for each of {len(values)} {name}."
        )
    sums: dict[Hashable, int] = {}
    for label, value in zip(clusters, values, strict=True):
        sums[label] = sums.get(label, 0) + value
    return list(sums.values())


def _tails(
    sizes: list[int], positive: int, seed: int | None, n_resamples: int
) -> tuple[str, tuple[Fraction, Fraction, tuple[Fraction, Fraction]], int]:
    """Return the method, P(S >= s), P(S <= s) with the smallest of each, and the pattern count."""
    m, total = len(sizes), sum(sizes)
    patterns = 1 << m
    if m == 0:
        one = Fraction(1)
        return "binomial", (one, one, (one, one)), 1
    # By symmetry P(S <= s) = P(S >= -s), whose positive sizes are the rest.
    thresholds = (positive, total - positive)
    if min(sizes) == max(sizes):
        counts = [_binomial_tail(m, t // sizes[0]) for t in thresholds]
        method = "binomial"
    elif total * (m + 1) * m <= MAX_WORK:
        width = m + 1
        poly = subset_poly(sizes, width)
        counts = [count_from(poly, t, width) for t in thresholds]
        method = "dynamic programming"
    elif m <= MAX_ENUMERATED and total < 2**62:
        counts = [count_subsets_from(sizes, t) for t in thresholds]
        method = "enumeration"
    elif seed is None:
        raise ValueError(
            f"{m} non-zero differences with sizes up to {max(sizes)} steps are too many to count: "
            "give a seed for Monte Carlo, or a coarser resolution."
        )
    else:
        return "Monte Carlo", _drawn_tails(sizes, thresholds, seed, n_resamples), n_resamples
    up, down = (Fraction(count, patterns) for count in counts)
    extreme = Fraction(1, patterns)
    return method, (up, down, (extreme, extreme)), patterns


def _binomial_tail(m: int, successes: int) -> int:
    """Return how many subsets of m items have at least ``successes`` members."""
    if 2 * successes <= m:
        return (1 << m) - sum(_row(m, successes))
    return sum(_row(m, m - successes + 1))


def _row(m: int, stop: int) -> list[int]:
    """Return C(m, 0) ... C(m, stop - 1)."""
    row, value = [], 1
    for k in range(stop):
        row.append(value)
        value = value * (m - k) // (k + 1)
    return row


def _drawn_tails(
    sizes: list[int], thresholds: tuple[int, int], seed: int, n_resamples: int
) -> tuple[Fraction, Fraction, tuple[Fraction, Fraction]]:
    draws = whole(n_resamples, "n_resamples", 1)
    rng = np.random.default_rng(whole(seed, "seed", 0))
    if sum(sizes) >= 2**62:
        raise ValueError("differences span more than 62 bits of steps: use a coarser resolution.")
    sums = drawn_subset_sums(sizes, draws, rng)
    total = sum(sizes)
    up = int(np.count_nonzero(sums >= thresholds[0]))
    down = int(np.count_nonzero(sums <= total - thresholds[1]))
    least = Fraction(1, draws + 1)
    return Fraction(up + 1, draws + 1), Fraction(down + 1, draws + 1), (least, least)


def drawn_subset_sums(
    sizes: Sequence[int], draws: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return the sums of ``draws`` uniformly random subsets of ``sizes``, shape (draws,).

    Twelve items at a time: their 4096 sums are tabulated, and 12 random bits pick one.
    """
    sums = np.zeros(draws, dtype=np.int64)
    for start in range(0, len(sizes), 12):
        table = np.zeros(1, dtype=np.int64)
        for size in sizes[start : start + 12]:
            table = np.concatenate([table, table + size])
        picks = rng.integers(0, table.size, size=draws, dtype=np.uint16)
        sums += table.take(picks)
    return sums


def sign_flip_p_values(
    differences: npt.ArrayLike, alternative: str = "greater"
) -> npt.NDArray[np.float64]:
    """Return the exact sign-flip p-value of every row of whole numbers, for simulations.

    Rows that hold the same differences in another order are counted once. Rows of 0 and ±1 cost
    one table look-up each.

    Parameters
    ----------
    differences
        Shape (runs, n), whole numbers.
    alternative
        As for `sign_flip_exact`.

    Returns
    -------
    ndarray
        Shape (runs,).

    Raises
    ------
    ValueError
        If it is no matrix of whole numbers, or a row is too dear to count.
    """
    one_of(alternative, "alternative", ALTERNATIVES)
    data = np.asarray(differences)
    if data.ndim != 2 or data.dtype.kind not in "biu" or data.shape[1] == 0:
        raise ValueError(
            f"differences must be a matrix of whole numbers, got {data.dtype} of "
            f"shape {data.shape}."
        )
    data = data.astype(np.int64)
    if np.max(np.abs(data), initial=0) <= 1:
        counts = np.stack([np.sum(data == 1, axis=1), np.sum(data == -1, axis=1)], axis=1)
        rows, inverse = np.unique(counts, axis=0, return_inverse=True)
        samples = [[1] * up + [-1] * down or [0] for up, down in rows.tolist()]
    else:
        rows, inverse = np.unique(np.sort(data, axis=1), axis=0, return_inverse=True)
        samples = rows.tolist()
    p_values = np.array([sign_flip_exact(sample, alternative).p_value for sample in samples])
    return p_values[inverse.ravel()]
