"""How often a registered test rejects: under no effect (A/A), and under the effect it is for."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from replicata.statistics.checks import between, whole

Draw = Callable[[np.random.Generator, int], npt.NDArray]
"""From a generator and a number of studies to their data, shape (studies, n)."""
PValues = Callable[[npt.NDArray], npt.NDArray[np.float64]]
"""From data of shape (studies, n) to one p-value each, such as `sign_flip_p_values`."""


@dataclass(frozen=True)
class RejectionRate:
    """Share of simulated studies with p <= alpha, and its exact 99 % binomial interval."""

    rate: float
    low: float
    high: float
    alpha: float
    n_studies: int

    @property
    def holds_level(self) -> bool:
        """Whether the simulation is consistent with a rate of at most alpha."""
        return self.low <= self.alpha


def rejection_rate(
    draw: Draw, p_values: PValues, *, alpha: float = 0.05, n_studies: int, seed: int
) -> RejectionRate:
    """Simulate studies and count rejections: the power of a test, or its size under ``draw``.

    Parameters
    ----------
    draw
        Draws the data of all studies at once.
    p_values
        The registered test, over all studies at once.
    alpha
        Level, in (0, 1).
    n_studies
        Studies to simulate, >= 1.
    seed
        For ``draw``.

    Raises
    ------
    ValueError
        If an option is out of range or a function returns another shape.
    """
    level = between(alpha, "alpha", 0, 1)
    count = whole(n_studies, "n_studies", 1)
    data = draw(np.random.default_rng(whole(seed, "seed", 0)), count)
    p = np.asarray(p_values(data))
    if p.shape != (count,):
        raise ValueError(f"p_values returned shape {p.shape}, expected ({count},).")
    hits = int(np.count_nonzero(p <= level))
    interval = stats.binomtest(hits, count).proportion_ci(0.99)
    return RejectionRate(hits / count, float(interval.low), float(interval.high), level, count)


def a_a(draw: Draw) -> Draw:
    """Return ``draw`` with a random sign for every unit: the same noise, and no effect at all.

    The null hypothesis of a sign-flip test holds exactly for what it draws, so the rejection rate
    must not exceed alpha by more than simulation error.
    """

    def null(rng: np.random.Generator, n_studies: int) -> npt.NDArray:
        data = np.asarray(draw(rng, n_studies))
        return data * rng.choice(np.array([-1, 1], dtype=data.dtype), size=data.shape)

    return null
