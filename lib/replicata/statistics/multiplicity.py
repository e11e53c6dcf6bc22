"""Multiplicity: Holm's step-down adjustment."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from statsmodels.stats.multitest import multipletests

from replicata.statistics.checks import between, vector


@dataclass(frozen=True)
class HolmResult:
    """Adjusted p-values and rejections, in the order given."""

    adjusted: tuple[float, ...]
    rejected: tuple[bool, ...]
    alpha: float


def holm(p_values: npt.ArrayLike, alpha: float = 0.05) -> HolmResult:
    """Adjust p-values for their number, controlling the chance of any false rejection.

    The i-th smallest of m becomes max over j <= i of min(1, (m-j+1) p_(j)) (Holm 1979, Scand. J.
    Statist. 6, 65-70); rejected where that is <= alpha. Holds under any dependence.

    Parameters
    ----------
    p_values
        Shape (m,), each in [0, 1], m >= 1.
    alpha
        Familywise level, in (0, 1).

    Raises
    ------
    ValueError
        If a p-value is not in [0, 1] or there are none, or alpha is out of range.
    """
    values = vector(p_values, "p_values", 1)
    level = between(alpha, "alpha", 0, 1)
    outside = np.flatnonzero((values < 0) | (values > 1))
    if outside.size:
        first = outside[0]
        raise ValueError(f"p_values[{first}] is {values[first]}, expected a number in [0, 1].")
    adjusted = multipletests(values, level, method="holm")[1]
    # Compared with the adjusted values themselves, so that the two never disagree by a rounding.
    return HolmResult(
        tuple(float(p) for p in adjusted), tuple(bool(p <= level) for p in adjusted), level
    )
