"""Exact label permutation tests: two samples, also within strata and by whole clusters.

Under the null hypothesis that group labels were dealt at random, every choice of the treated units
is equally likely, within each stratum. The statistic is the sum over the treated units; with the
group sizes fixed it orders choices as the difference of means does. Counting is exact: 0/1 data (or
any two values) by the hypergeometric law, other whole or rational numbers by dynamic programming.
"""

import math
from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from replicata.statistics.checks import ALTERNATIVES, one_of, whole
from replicata.statistics.exact import MAX_WORK, ExactTest, cluster_sums, combine
from replicata.statistics.lattice import choice_poly, count_from, to_lattice

DRAW_BATCH = 1 << 22

Stratum = tuple[list[int], int]
"""Values shifted so that the least is 0, and how many of them are treated."""


def label_permutation_exact(
    values: Any,
    treated: Sequence[bool],
    alternative: str,
    *,
    strata: Sequence[Hashable] | None = None,
    clusters: Sequence[Hashable] | None = None,
    resolution: Any = None,
    seed: int | None = None,
    n_resamples: int = 99_999,
) -> ExactTest:
    """Test that the labels of two groups carry no information about the values.

    Parameters
    ----------
    values
        Shape (n,): whole numbers, ``Fraction``s, ``Decimal``s, or floats with a ``resolution``.
    treated
        Shape (n,): True for the first group. Both groups need a member.
    alternative
        ``greater`` (the treated are larger), ``less`` or ``two-sided``.
    strata
        Shape (n,): labels are permuted within equal strata only; with several, the statistic is
        the sum over all treated, which weights strata by their number of treated.
    clusters
        Shape (n,): units of one cluster share one label, and it moves with the whole cluster.
        Clusters must be of equal size, or the sum would not order choices as the means do.
    resolution, seed, n_resamples
        As for `sign_flip_exact`.

    Returns
    -------
    ExactTest
        Its estimate is the difference of means, treated minus rest.

    Raises
    ------
    ValueError
        If the data are not exact, shapes differ, a group is empty, a cluster is split between
        groups or strata or differs in size, or counting is too dear and there is no seed.
    """
    one_of(alternative, "alternative", ALTERNATIVES)
    steps, step = to_lattice(values, resolution)
    flags = [bool(flag) for flag in treated]
    if len(flags) != len(steps):
        raise ValueError(f"treated has {len(flags)} labels, expected one for each of {len(steps)}.")
    chosen = sum(flags)
    if not 0 < chosen < len(flags):
        raise ValueError(f"treated has {chosen} of {len(flags)} True, expected both groups.")
    blocks = list(strata) if strata is not None else [0] * len(steps)
    if len(blocks) != len(steps):
        raise ValueError(f"strata has {len(blocks)} labels, expected one for each of {len(steps)}.")
    first = sum(item for item, flag in zip(steps, flags, strict=True) if flag)
    estimate = Fraction(first, chosen) - Fraction(sum(steps) - first, len(steps) - chosen)
    if clusters is not None:
        steps, flags, blocks = _by_cluster(steps, flags, blocks, clusters)
    parts, observed = _parts(steps, flags, blocks)
    method, tails, patterns = _tails(parts, observed, seed, n_resamples)
    p_fraction, smallest = combine(alternative, *tails)
    return ExactTest(
        estimate=float(estimate * step),
        p_value=float(p_fraction),
        p_fraction=p_fraction,
        smallest_p=float(smallest),
        alternative=alternative,
        n=len(steps),
        n_moving=sum(len(items) for items, _ in parts),
        method=method,
        n_patterns=patterns,
    )


def _by_cluster(
    steps: list[int], flags: list[bool], blocks: list[Hashable], clusters: Sequence[Hashable]
) -> tuple[list[int], list[bool], list[Hashable]]:
    sums = cluster_sums(steps, clusters, "values")
    label: dict[Hashable, tuple[bool, Hashable]] = {}
    size: dict[Hashable, int] = {}
    for cluster, flag, block in zip(clusters, flags, blocks, strict=True):
        if label.setdefault(cluster, (flag, block)) != (flag, block):
            raise ValueError(f"cluster {cluster!r} is split between groups or strata.")
        size[cluster] = size.get(cluster, 0) + 1
    if len(set(size.values())) > 1:
        raise ValueError(
            f"clusters have {min(size.values())} to {max(size.values())} units, expected equal "
            "sizes: average within clusters and pass one value each."
        )
    return sums, [flag for flag, _ in label.values()], [block for _, block in label.values()]


def _parts(
    steps: list[int], flags: list[bool], blocks: list[Hashable]
) -> tuple[list[Stratum], int]:
    """Return the strata whose labels can change the sum, and the observed sum over them."""
    members: dict[Hashable, list[tuple[int, bool]]] = {}
    for block, item, flag in zip(blocks, steps, flags, strict=True):
        members.setdefault(block, []).append((item, flag))
    parts, observed = [], 0
    for pairs in members.values():
        least = min(item for item, _ in pairs)
        count = sum(flag for _, flag in pairs)
        items = [item - least for item, _ in pairs]
        if any(items) and 0 < count < len(items):
            parts.append((items, count))
            observed += sum(item - least for item, flag in pairs if flag)
    common = math.gcd(*(item for items, _ in parts for item in items)) or 1
    return [([i // common for i in items], k) for items, k in parts], observed // common


Tails = tuple[Fraction, Fraction, tuple[Fraction, Fraction]]


def _tails(
    parts: list[Stratum], observed: int, seed: int | None, n_resamples: int
) -> tuple[str, Tails, int]:
    one = Fraction(1)
    if not parts:
        return "hypergeometric", (one, one, (one, one)), 1
    patterns = math.prod(math.comb(len(items), count) for items, count in parts)
    width = patterns.bit_length() + 1
    work = sum(sum(items) * width * len(items) * min(k, len(items) - k) for items, k in parts)
    lowest = sum(sum(sorted(items)[:count]) for items, count in parts)
    highest = sum(sum(sorted(items)[-count:]) for items, count in parts)
    if len(parts) == 1 and max(parts[0][0]) == 1:
        at_least = _hypergeometric(*parts[0])
        method = "hypergeometric"
    elif work <= MAX_WORK:
        poly = 1
        for items, count in parts:
            poly *= _stratum_poly(items, count, width)

        def at_least(threshold: int) -> int:
            return count_from(poly, threshold, width)

        method = "dynamic programming"
    elif seed is None:
        raise ValueError(
            f"{patterns:.3g} ways to deal the labels on this grid are too many to count: give a "
            "seed for Monte Carlo, or a coarser resolution."
        )
    else:
        return "Monte Carlo", _drawn(parts, observed, seed, n_resamples), n_resamples
    up = Fraction(at_least(observed), patterns)
    down = Fraction(patterns - at_least(observed + 1), patterns)
    top = Fraction(at_least(highest), patterns)
    bottom = Fraction(patterns - at_least(lowest + 1), patterns)
    return method, (up, down, (top, bottom)), patterns


def _stratum_poly(items: list[int], count: int, width: int) -> int:
    """Return the packed counts of sums of ``count`` items, choosing the smaller side.

    Leaving out n - count items of sum r is choosing count of sum total - r; reversing the sums is
    choosing from largest - item instead, which needs no reversal of the packed integer.
    """
    if 2 * count <= len(items):
        return choice_poly(items, count, width)
    largest, rest = max(items), len(items) - count
    # total - r = total - rest * largest + sum over the rest of (largest - item)
    shift = sum(items) - rest * largest
    poly = choice_poly([largest - item for item in items], rest, width)
    return poly << shift * width if shift >= 0 else poly >> -shift * width


def _hypergeometric(items: list[int], count: int) -> Any:
    ones, n = sum(items), len(items)

    def at_least(threshold: int) -> int:
        reachable = range(max(threshold, count - (n - ones), 0), min(ones, count) + 1)
        return sum(math.comb(ones, k) * math.comb(n - ones, count - k) for k in reachable)

    return at_least


def _drawn(parts: list[Stratum], observed: int, seed: int, n_resamples: int) -> Tails:
    draws = whole(n_resamples, "n_resamples", 1)
    rng = np.random.default_rng(whole(seed, "seed", 0))
    sums = np.zeros(draws, dtype=np.int64)
    for items, count in parts:
        sums += _drawn_sums(np.array(items, dtype=np.int64), count, draws, rng)
    up = int(np.count_nonzero(sums >= observed))
    down = int(np.count_nonzero(sums <= observed))
    least = Fraction(1, draws + 1)
    return Fraction(up + 1, draws + 1), Fraction(down + 1, draws + 1), (least, least)


def _drawn_sums(
    items: npt.NDArray[np.int64], count: int, draws: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return the sums of ``draws`` uniformly random ``count``-subsets of ``items``.

    The first positions of Fisher and Yates' shuffle, for all draws at once; of the smaller side.
    """
    small = min(count, items.size - count)
    sums = np.empty(draws, dtype=np.int64)
    batch = max(1, DRAW_BATCH // items.size)
    for start in range(0, draws, batch):
        rows = min(batch, draws - start)
        deck = np.repeat(items[:, None], rows, axis=1)
        column = np.arange(rows)
        total = np.zeros(rows, dtype=np.int64)
        for position in range(small):
            pick = rng.integers(position, items.size, size=rows)
            total += deck[pick, column]
            deck[pick, column] = deck[position]
        sums[start : start + rows] = total
    return sums if small == count else int(items.sum()) - sums
