"""Agreement: whether a rerun falls where the reference runs say it should."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from replicata.statistics.checks import between, vector


@dataclass(frozen=True)
class PredictionInterval:
    """Where the next run is expected: ``low`` to ``high``, ends included."""

    low: float
    high: float
    mean: float
    sd: float
    k: int
    confidence: float

    def contains(self, value: float) -> bool:
        """Say whether ``value`` lies in the interval; compared exactly, NaN never does."""
        return self.low <= value <= self.high


def prediction_interval(values: npt.ArrayLike, confidence: float = 0.95) -> PredictionInterval:
    """Return the interval in which one more run of the same kind falls.

    mean ± t_{k-1} s √(1 + 1/k), for k independent normal runs (Hahn and Meeker 1991, section 4.7).
    Runs that all gave the same number give an interval of that one number: bit-identical reruns
    are inside, and anything else, however near, is not.

    Parameters
    ----------
    values
        Shape (k,): one number per reference run, k >= 2.
    confidence
        In (0, 1).

    Raises
    ------
    ValueError
        If there are fewer than 2 values, one is not finite, or the confidence is out of range.
    """
    data = vector(values, "values", 2)
    level = between(confidence, "confidence", 0, 1)
    k = data.size
    if np.all(data == data[0]):
        # The mean of k equal floats need not be that float; the interval must hold it.
        value = float(data[0])
        return PredictionInterval(value, value, value, 0.0, k, level)
    mean, sd = float(np.mean(data)), float(np.std(data, ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, k - 1)) * sd * math.sqrt(1 + 1 / k)
    return PredictionInterval(mean - half, mean + half, mean, sd, k, level)
