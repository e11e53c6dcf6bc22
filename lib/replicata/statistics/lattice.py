"""Exact counting on whole numbers: data on a common grid, and how many sums reach a threshold.

A distribution of sums is kept as one big integer, a fixed number of bits per sum (Kronecker
substitution): adding an item of size a is ``poly += poly << a * width``. So dynamic programming
is a few shifts of machine words, and no count is ever rounded.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

FITS = 1e-6
"""A float may lie this far from its grid point, in grid steps, besides its own rounding."""


def to_lattice(values: Any, resolution: Any = None, name: str = "values") -> tuple[list, Fraction]:
    """Write data as whole multiples of one step, exactly.

    Parameters
    ----------
    values
        Shape (n,), n >= 1: whole numbers, bools, ``Fraction``s, ``Decimal``s, or floats.
    resolution
        The step that floats are multiples of, such as ``"1/64"`` or ``"0.001"``; needed for
        floats, because 0.1 + 0.2 - 0.3 is not 0 in them, and refused for the rest.
    name
        What the error sentences call the data.

    Returns
    -------
    whole : list[int]
        Divided by their greatest common divisor, so that counting is as cheap as it can be.
    step : Fraction
        ``values[i] == whole[i] * step``.

    Raises
    ------
    ValueError
        If there are no values, one is no real finite number, floats come without a resolution, or
        a float is no multiple of it.
    """
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise ValueError(f"{name} must be one-dimensional, got shape {values.shape}.")
        values = values.tolist()
    items = list(values)
    if not items:
        raise ValueError(f"{name} needs at least 1 value, got 0.")
    kinds = set(map(type, items))
    if kinds <= {int, bool} and resolution is None:
        step = Fraction(1)
        whole = [int(item) for item in items]
    elif kinds <= {int, bool, float, np.float64, np.float32} and resolution is not None:
        step = _step(resolution)
        whole = [_on_grid(item, step, f"{name}[{i}]") for i, item in enumerate(items)]
    else:
        exact = [_fraction(item, f"{name}[{i}]", resolution) for i, item in enumerate(items)]
        scale = math.lcm(*(item.denominator for item in exact))
        step = Fraction(1, scale)
        whole = [int(item * scale) for item in exact]
    common = math.gcd(*whole)
    if common > 1:
        whole, step = [item // common for item in whole], step * common
    return whole, step


def _step(resolution: Any) -> Fraction:
    try:
        step = Fraction(str(resolution) if isinstance(resolution, float) else resolution)
    except (TypeError, ValueError, ZeroDivisionError):
        step = Fraction(0)
    if step <= 0:
        raise ValueError(f"resolution is {resolution!r}, expected a positive number like '1/64'.")
    return step


def _on_grid(item: float, step: Fraction, name: str) -> int:
    if not math.isfinite(item):
        raise ValueError(f"{name} is {item}, expected a finite number.")
    steps = Fraction(item) / step
    nearest = round(steps)
    # Twice the rounding of a double of this size; from a quarter of a step on, it tells nothing.
    if abs(steps - nearest) > min(FITS + abs(steps) * 2.0**-51, 0.25):
        raise ValueError(f"{name} is {item!r}, expected a multiple of the resolution {step}.")
    return nearest


def _fraction(item: Any, name: str, resolution: Any) -> Fraction:
    if isinstance(item, float | np.floating):
        raise ValueError(
            f"{name} is the float {item!r}: ties between sums of floats are luck; pass whole "
            "numbers or Fractions, or declare the resolution that the floats are multiples of."
        )
    if resolution is not None:
        raise ValueError(f"{name} is {item!r}, which is exact: expected no resolution.")
    if isinstance(item, Decimal) and not item.is_finite():
        raise ValueError(f"{name} is {item}, expected a finite number.")
    if not isinstance(item, int | np.integer | Fraction | Decimal):
        raise ValueError(f"{name} is {item!r}, expected a real number.")
    return Fraction(int(item)) if isinstance(item, np.integer) else Fraction(item)


def subset_poly(sizes: Sequence[int], width: int) -> int:
    """Return the packed counts of all subset sums of ``sizes`` (each >= 0), ``width`` bits each."""
    poly = 1
    for size in sorted(sizes):
        poly += poly << size * width
    return poly


def choice_poly(sizes: Sequence[int], chosen: int, width: int) -> int:
    """Return the packed counts of the sums of all ``chosen``-subsets of ``sizes`` (each >= 0)."""
    rows = [1] + [0] * chosen
    for seen, size in enumerate(sorted(sizes)):
        for count in range(min(chosen, seen + 1), 0, -1):
            if rows[count - 1]:
                rows[count] += rows[count - 1] << size * width
    return rows[chosen]


def count_from(poly: int, threshold: int, width: int) -> int:
    """Return how many of the packed sums are >= ``threshold``.

    Digits in base 2^width add up to the number's remainder modulo 2^width - 1, as long as their
    sum is smaller than that.
    """
    return (poly >> max(threshold, 0) * width) % ((1 << width) - 1)


def count_subsets_from(sizes: Sequence[int], threshold: int) -> int:
    """Return how many subsets of ``sizes`` have a sum >= ``threshold``, listing two halves.

    All 2^(m/2) sums of each half are listed and the pairs counted by bisection (Horowitz and
    Sahni 1974, doi 10.1145/321812.321823): 2^20 sums for 40 items. Sums must fit 62 bits.
    """
    half = len(sizes) // 2
    left, right = _all_sums(sizes[:half]), np.sort(_all_sums(sizes[half:]))
    below = np.searchsorted(right, threshold - left, side="left")
    return int(left.size * right.size - int(np.sum(below, dtype=np.int64)))


def _all_sums(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    sums = np.zeros(1, dtype=np.int64)
    for size in sizes:
        sums = np.concatenate([sums, sums + size])
    return sums
