"""Input checks that all statistics share; each failure is one ``ValueError`` sentence."""

from typing import Any

import numpy as np
import numpy.typing as npt

ALTERNATIVES = ("two-sided", "greater", "less")


def vector(values: npt.ArrayLike, name: str, minimum: int) -> npt.NDArray[np.float64]:
    """Return ``values`` as a finite float64 array of shape (n,), n >= ``minimum``.

    Raises
    ------
    ValueError
        If it is not one-dimensional, not numeric, too short, or holds NaN or infinity.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}.")
    if array.size < minimum:
        raise ValueError(f"{name} needs at least {minimum} value(s), got {array.size}.")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be real numbers, got values of type {array.dtype}.")
    array = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise ValueError(f"{name}[{bad[0]}] is {array[bad[0]]}, expected a finite number.")
    return array


def whole(value: Any, name: str, minimum: int) -> int:
    """Return ``value`` as an int >= ``minimum``; a float or a bool is refused."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ValueError(f"{name} is {value!r}, expected a whole number >= {minimum}.")
    return int(value)


def between(value: Any, name: str, low: float, high: float) -> float:
    """Return ``value`` as a float strictly between ``low`` and ``high``."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not low < value < high:
        raise ValueError(f"{name} is {value!r}, expected a number strictly in ({low}, {high}).")
    return float(value)


def one_of(value: Any, name: str, known: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of the ``known`` words."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(known)}.")
    return value


def constant(values: npt.NDArray[np.float64], scale: float) -> bool:
    """Say whether all values are the same but for rounding (1e-12 of ``scale``, the largest size).

    Means of equal numbers differ in their last bits, and a spread made of last bits is no spread.
    """
    return bool(np.ptp(values) <= 1e-12 * max(scale, float(np.max(np.abs(values)))))
