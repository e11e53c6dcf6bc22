"""How many keys each head keeps (spec 3.6), and padding heads of different sizes to one length.

Everything here counts keys: budgets are integer arrays ``(L, H)`` (or ``(heads,)``), between
``FLOOR`` and the context's length.
"""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from replicata.errors import UsageError
from replicata.papers.kvfold.attention import gather_rows
from replicata.papers.kvfold.attention_matching import Compacted

FLOOR = 4
"""Fewest keys of a head (ours): a head left with fewer can't express any distribution."""


def uniform(length: int, ratio: float, heads: int) -> NDArray[np.int64]:
    """Give every head ``round(ratio * length)`` keys, at least one: ``(heads,)``.

    Raises
    ------
    UsageError
        If the ratio is outside (0, 1].
    """
    _check_ratio(ratio)
    return np.full(heads, max(1, round(ratio * length)), dtype=np.int64)


def proportions_to_budgets(
    proportions: NDArray[np.float64], ratio: float, length: int
) -> NDArray[np.int64]:
    """Turn each head's share of all kept keys into a number of keys.

    A head with proportion p gets ``p * heads * ratio * length`` keys, capped at the context's
    length and raised to ``FLOOR``; what capping frees, or raising takes, is spread over the other
    heads in proportion to theirs. Rounding keeps the total, so that unequal budgets are compared
    with equal ones at the same size: the largest remainders are rounded up.

    Parameters
    ----------
    proportions
        ``(L, H)``, non-negative, summing to 1.
    ratio
        Kept share of the cache, in (0, 1].
    length
        T.

    Returns
    -------
    ndarray
        ``(L, H)`` integers that sum to ``round(heads * ratio * length)``, or to what the floor
        takes if that is more.

    Raises
    ------
    UsageError
        If a proportion is negative or not finite, or they do not sum to 1; or by the ratio.
    """
    _check_ratio(ratio)
    shares = np.asarray(proportions, dtype=np.float64)
    if not (np.isfinite(shares).all() and (shares >= 0).all()):
        raise UsageError("a head's proportion is negative or not finite, expected at least 0")
    if abs(shares.sum() - 1) > 1e-6:
        raise UsageError(f"proportions of heads sum to {shares.sum():.6g}, expected 1")
    low, high = min(FLOOR, length), length
    total = max(round(shares.size * ratio * length), shares.size * low)
    exact = _clipped_shares(shares.ravel(), total, low, high)
    budgets = np.floor(exact + 1e-9).astype(np.int64)
    remainder = np.where(budgets < high, exact - budgets, -1.0)
    up = np.argsort(-remainder, kind="stable")[: total - budgets.sum()]
    budgets[up] += 1
    return budgets.reshape(shares.shape)


def _clipped_shares(
    shares: NDArray[np.float64], total: float, low: float, high: float
) -> NDArray[np.float64]:
    """Find ``clip(c * shares, low, high)`` with the factor c for which they sum to ``total``.

    The sum grows with c, piecewise linearly; heads of share 0 stay at ``low`` unless all others are
    at ``high``.
    """
    shares = np.maximum(shares, shares.max() * 1e-12)  # a total near the cap needs every head
    least, most = 0.0, high / shares.min()
    for _ in range(200):
        middle = 0.5 * (least + most)
        if np.clip(middle * shares, low, high).sum() < total:
            least = middle
        else:
            most = middle
    return np.clip(most * shares, low, high)


def load_public_budgets(path: Path) -> NDArray[np.float64]:
    """Read published proportions of heads, ``{"L{layer}H{head}": proportion}``: ``(L, H)``.

    The format of ``head_budgets/<model>/optimized_agnostic.json`` in the public code of Attention
    Matching.

    Raises
    ------
    UsageError
        If the file can't be read, a key is malformed or missing, or proportions don't sum to 1.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(table, dict) or not table:
        raise UsageError(f"{path}: expected an object of proportions by head, like 'L0H0'")
    found: dict[tuple[int, int], float] = {}
    for key, value in table.items():
        match = re.fullmatch(r"L(\d+)H(\d+)", key)
        if not match:
            raise UsageError(f"{path}: key {key!r}, expected 'L<layer>H<head>'")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise UsageError(f"{path}: {key} is {value!r}, expected a number of at least 0")
        found[int(match[1]), int(match[2])] = float(value)
    layers = 1 + max(layer for layer, _ in found)
    heads = 1 + max(head for _, head in found)
    missing = [(i, j) for i in range(layers) for j in range(heads) if (i, j) not in found]
    if missing:
        raise UsageError(f"{path}: no proportion for 'L{missing[0][0]}H{missing[0][1]}'")
    shares = np.array([[found[i, j] for j in range(heads)] for i in range(layers)])
    if abs(shares.sum() - 1) > 1e-3:
        raise UsageError(f"{path}: proportions sum to {shares.sum():.6g}, expected 1")
    return shares / shares.sum()


def greedy_exchange(
    errors: NDArray[np.float64], grid: Sequence[int], total: int
) -> NDArray[np.int64]:
    """Share ``total`` keys among heads so that their errors sum to the least.

    Errors between grid points are interpolated linearly. Each curve is replaced by its lower convex
    hull, and keys go one segment of a hull at a time to whoever gains most per key.

    Where the curves are convex (errors fall ever more slowly with more keys, the usual case) the
    result is optimal: exchanging any key between two heads loses. Otherwise every head but at most
    one ends on a corner of its hull, where hull and curve agree, so that the excess over the
    optimum is at most that one head's distance from its hull.

    Parameters
    ----------
    errors
        Error of each head at each budget of the grid, ``(heads, len(grid))``, for example AM's
        output error on a calibration context.
    grid
        Increasing numbers of keys, the first at least ``FLOOR``; the last caps a head.
    total
        Keys of all heads together.

    Returns
    -------
    ndarray
        ``(heads,)`` integers that sum to ``total``.

    Raises
    ------
    UsageError
        If the table does not fit the grid, or the total lies outside what the grid can give.
    """
    errors = np.asarray(errors, dtype=np.float64)
    steps = np.asarray(grid, dtype=np.int64)
    if errors.ndim != 2 or errors.shape[1] != len(steps) or not np.isfinite(errors).all():
        raise UsageError(
            f"errors of shape {errors.shape} for a grid of {len(steps)} budgets, expected finite "
            "numbers (heads, budgets)"
        )
    if steps[0] < FLOOR or (np.diff(steps) <= 0).any():
        raise UsageError(f"grid is {list(grid)}, expected increasing budgets from {FLOOR} keys on")
    heads = len(errors)
    least, most = heads * int(steps[0]), heads * int(steps[-1])
    if not least <= total <= most:
        raise UsageError(f"total is {total} keys, expected {least} to {most} for {heads} heads")
    budgets = np.full(heads, steps[0], dtype=np.int64)
    segments = [
        (slope, head, keys)
        for head in range(heads)
        for slope, keys in _hull_segments(steps, errors[head])
    ]
    left = total - least
    for _, head, keys in sorted(segments, key=lambda segment: segment[0]):
        taken = min(keys, left)
        budgets[head] += taken
        left -= taken
    return budgets


def _hull_segments(x: NDArray[np.int64], y: NDArray[np.float64]) -> list[tuple[float, int]]:
    """Slopes (ascending) and lengths of the segments of the lower convex hull of a curve."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2:]
            if (y[b] - y[a]) * (x[i] - x[b]) < (y[i] - y[b]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return [(float((y[b] - y[a]) / (x[b] - x[a])), int(x[b] - x[a])) for a, b in pairwise(hull)]


def split_padding(compacted: Compacted, length: int) -> Compacted:
    """Pad each head to ``length`` keys by splitting, which leaves AM's output exactly as it is.

    A key of bias β is the same as m copies of it with bias ``β - log m``. Each added copy goes to
    the key whose copies have the largest bias, so that the largest bias falls as far as it can (and
    with it, unless it gets below the smallest one, folding's error).

    Raises
    ------
    UsageError
        If a head has more than ``length`` keys already.
    """
    t = compacted.bias.shape[1]
    if length < t:
        raise UsageError(f"padded length is {length} keys, expected at least the {t} there are")
    copies = torch.ones_like(compacted.bias)
    for _ in range(length - t):
        most = (compacted.bias - copies.log()).argmax(-1, keepdim=True)
        copies.scatter_add_(1, most, torch.ones_like(most, dtype=copies.dtype))
    source = torch.stack(
        [torch.arange(t, device=row.device).repeat_interleave(row) for row in copies.long()]
    )
    return Compacted(
        keys=gather_rows(compacted.keys, source),
        bias=(compacted.bias - copies.log()).gather(1, source),
        values=gather_rows(compacted.values, source),
        index=compacted.index.gather(1, source),
    )


def _check_ratio(ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise UsageError(f"budget ratio is {ratio}, expected above 0 and at most 1")
