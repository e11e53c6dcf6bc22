"""One-sided bounds that stay honest on sparse data: the plus-one t bound."""

import math

import numpy.typing as npt
from scipy import special

from replicata.statistics.checks import between, one_of, vector


def plus_one_bound(
    values: npt.ArrayLike, side: str, *, alpha: float = 0.05, extreme: float = 1.0
) -> float:
    """Return a one-sided 1 - ``alpha`` bound of a mean, from one pseudo-world more than was seen.

    One value at the unfavourable end of the scale is appended (+extreme for an upper bound,
    -extreme for a lower), and the one-sided t bound of the n + 1 values is taken:
    m ± t(1-alpha, n) s/√(n+1). A percentile bootstrap of all-zero data bounds the mean by 0
    whatever n is; this one gives 0.0411, 0.0206 and 0.0103 at n = 64, 128 and 256 with alpha 0.05,
    and holds its level for rare events, where the t bound and the bootstrap reject up to three
    times too often.

    Parameters
    ----------
    values
        Shape (n,), n >= 1: one number per world, each within ±``extreme``.
    side
        ``upper`` or ``lower``.
    alpha
        In (0, 0.5).
    extreme
        The largest size a value can have, > 0, in the unit of the data.

    Raises
    ------
    ValueError
        If values are missing, not finite or outside ±extreme, or an option is out of range.
    """
    data = vector(values, "values", 1)
    one_of(side, "side", ("upper", "lower"))
    level = between(alpha, "alpha", 0, 0.5)
    edge = between(extreme, "extreme", 0, math.inf)
    # Differences of means of 0/1 outcomes may miss the edge by their last bit.
    if float(abs(data).max()) > edge * (1 + 1e-12):
        raise ValueError(f"values reach {float(abs(data).max())}, expected sizes up to {edge}.")
    sign = 1.0 if side == "upper" else -1.0
    n = data.size + 1
    mean = (math.fsum(data) + sign * edge) / n
    squares = math.fsum((value - mean) ** 2 for value in data) + (sign * edge - mean) ** 2
    spread = math.sqrt(squares / (n - 1) / n)
    return mean + sign * float(special.stdtrit(n - 1, 1 - level)) * spread
