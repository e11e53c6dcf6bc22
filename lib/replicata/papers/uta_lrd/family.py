"""The base family of decays, and what the loop compares (spec 3.3 and 3.4).

f_{phi,m}(p) = 1 / (1 + phi/2 tan(pi p/2)^m): m = 2 is the published UBA (arXiv 2505.24452), and
phi = 2 its cosine.
"""

import numpy as np
import numpy.typing as npt


def factor(p: npt.ArrayLike, phi: npt.ArrayLike, m: int = 2) -> np.ndarray:
    """Return f_{phi,m}(p) of the base family (spec 3.3), elementwise; 1 at p = 0, 0 at p = 1."""
    # cos/sin rather than tan: at p = 1 the tangent of a float is large, and the cosine is not 0.
    cosine = np.maximum(np.cos(np.pi * np.asarray(p, dtype=float) / 2), 0.0)
    sine = np.sin(np.pi * np.asarray(p, dtype=float) / 2)
    value = cosine**m / (cosine**m + np.asarray(phi) / 2 * sine**m)
    return np.where(np.asarray(p) >= 1, 0.0, value)


def phase(f: npt.ArrayLike, phi: npt.ArrayLike, m: int = 2) -> np.ndarray:
    """Return the p in [0, 1] at which ``factor(p, phi, m)`` is f (spec 3.4)."""
    f = np.asarray(f, dtype=float)
    with np.errstate(divide="ignore"):
        tangent = (2 * (1 / f - 1) / phi) ** (1 / m)
    return 2 / np.pi * np.arctan(tangent)


def remaining_gain(
    kind: str,
    slope: npt.ArrayLike,
    t: float,
    remaining: float,
    exponent: npt.ArrayLike = 1.0,
) -> np.ndarray:
    """Return D: what the drift still gains in ``remaining`` steps (spec 3.4).

    Parameters
    ----------
    kind
        ``lin`` (the slope stays), ``log`` (it falls as 1/t) or ``hyp`` (as t^-exponent).
    slope
        Loss gained per step at step ``t``.
    """
    if kind == "lin":
        return slope * remaining
    ratio = np.log1p(np.asarray(remaining) / t)
    power = np.asarray(1.0 - exponent if kind == "hyp" else 0.0)
    small = np.abs(power) < 1e-9
    safe = np.where(small, 1.0, power)
    return slope * t * np.where(small, ratio, np.expm1(safe * ratio) / safe)


def boundary_steps(total_steps: int, warmup: int, boundaries: int) -> list[int]:
    """Return the steps, equally spaced between warmup and budget, at which phi is set."""
    span = total_steps - warmup
    steps = {warmup + round(k * span / (boundaries + 1)) for k in range(1, boundaries + 1)}
    return sorted(t for t in steps if max(warmup, 1) < t < total_steps)
