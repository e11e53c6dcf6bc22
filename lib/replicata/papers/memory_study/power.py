"""What the registered tests and bounds can decide, by simulation, before the protocol is frozen.

``python -m replicata.papers.memory_study.power WORLDS > protocols/memory_study/power.json``. Worlds
are drawn independently, and within a world the four choices behind an interaction are independent
coin flips at the given rates; so nothing is gained from pairing, and real worlds should do better.
"""

import json
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from replicata.papers.memory_study.method import ALPHA, BOUND
from replicata.statistics.bounds import plus_one_bound
from replicata.statistics.calibration import a_a, rejection_rate
from replicata.statistics.exact import sign_flip_p_values

SEED = 0
STUDIES = 2_000
#: Rates of the worse tool: Y(F, own), Y(F, irr), Y(S, own), Y(S, irr).
RATES: dict[str, tuple[float, float, float, float]] = {
    "paper, as pooled": (0.116, 0.004, 0.004, 0.004),
    "paper, independence stated": (0.046, 0.004, 0.004, 0.004),
    "pilots 4 to 6": (0.364, 0.159, 0.068, 0.136),
    "half of that effect": (0.2615, 0.159, 0.102, 0.136),
    "no effect, quiet endpoint": (0.004, 0.004, 0.004, 0.004),
    "no effect, as noisy as the pilots": (0.159, 0.159, 0.136, 0.136),
    "effect at the bound, quiet": (0.10, 0.0, 0.0, 0.0),
    "effect at the bound, noisy": (0.259, 0.159, 0.136, 0.136),
}


def interactions(
    rates: tuple[float, float, float, float], worlds: int, rng: np.random.Generator, studies: int
) -> npt.NDArray[np.int64]:
    """Draw interactions of independent choices, shape (studies, worlds)."""
    flips = rng.random((4, studies, worlds)) < np.array(rates)[:, None, None]
    own_f, irr_f, own_s, irr_s = flips.astype(np.int64)
    return (own_f - irr_f) - (own_s - irr_s)


def table(worlds: int) -> list[dict[str, Any]]:
    """Return, for each set of rates, how often the test rejects and how often a bound is met.

    ``rejects`` is the share of studies with p <= alpha, ``a_a`` the same after random signs, with
    its 99 % interval, and ``bounded`` the share whose upper bound is below 0.10.
    """
    rows = []
    for name, rates in RATES.items():

        def draw(
            rng: np.random.Generator, studies: int, rates: tuple[float, ...] = rates
        ) -> npt.NDArray[np.int64]:
            return interactions(rates, worlds, rng, studies)

        options = {"alpha": ALPHA, "n_studies": STUDIES, "seed": SEED}
        power = rejection_rate(draw, _p_values, **options)
        size = rejection_rate(a_a(draw), _p_values, **options)
        data = draw(np.random.default_rng(SEED), STUDIES)
        bounded = np.mean(
            [plus_one_bound(d, "upper", alpha=ALPHA, extreme=2) < BOUND for d in data]
        )
        rows.append(
            {
                "rates": name,
                "effect": round(rates[0] - rates[1] - rates[2] + rates[3], 6),
                "rejects": power.rate,
                "a_a": size.rate,
                "a_a_interval": [round(size.low, 4), round(size.high, 4)],
                "bounded": float(bounded),
            }
        )
    return rows


def _p_values(data: npt.NDArray) -> npt.NDArray[np.float64]:
    return sign_flip_p_values(data, "greater")


if __name__ == "__main__":
    worlds = int(sys.argv[1])
    found = {"worlds": worlds, "studies": STUDIES, "seed": SEED, "table": table(worlds)}
    print(json.dumps(found, indent=2))
