"""Arms: a name stands for one schedule, in every group and profile."""

from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from replicata.papers.uta_lrd.baselines import make_baseline
from replicata.papers.uta_lrd.method import UTASchedule


@dataclass(frozen=True)
class Arm:
    """A schedule: a baseline by its name, or UTA with settings (``uta`` not None)."""

    name: str
    baseline: str | None = None
    uta: dict[str, Any] = field(default_factory=dict)


#: Spec 3.5; (a), phi frozen, is the baseline uba0.3.
ABLATIONS = {
    "uta_no_noise": {"use_noise": False},
    "uta_no_drift": {"use_drift": False},
    "uta_no_lag": {"lag_correction": False},
    "uta_m1": {"m": 1},
    "uta_no_matching": {"match_phase": False},
    "uta_scale": {"scale_alpha": 0.5},
    "uta_lin": {"drift": "lin"},
}


def arm(name: str) -> Arm:
    """Return the arm of a name: ``uta``, ``uta@3`` (phi0 = 3), an ablation, or a baseline."""
    if name.startswith("uta@"):
        return Arm(name, uta={"phi0": float(name[4:])})
    if name == "uta" or name in ABLATIONS:
        return Arm(name, uta=ABLATIONS.get(name, {}))
    return Arm(name, baseline=name)


def make_scheduler(
    own: Arm, optimizer: Optimizer, total_steps: int, warmup: int, final_ratio: float
) -> LRScheduler:
    """Return the arm's scheduler."""
    if own.baseline is not None:
        return make_baseline(own.baseline, optimizer, total_steps, warmup, final_ratio)
    return UTASchedule(optimizer, total_steps, warmup, final_ratio, **own.uta)
