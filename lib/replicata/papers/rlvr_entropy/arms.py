"""Arms: how rollouts are drawn, how advantages are made, and what is differentiated."""

from dataclasses import dataclass
from typing import Literal

from replicata.papers.rlvr_entropy.baselines import Ratio
from replicata.papers.rlvr_entropy.method import LossNorm, Rule

#: Samplers whose rule is tested at the two largest shifts only.
OTHER_SAMPLERS = ("topk", "minp", "cool", "hot")
_DEFAULTS = ("plain", "none", "token")


@dataclass(frozen=True)
class Arm:
    """One arm: how rollouts are drawn, how advantages are made, what is differentiated."""

    sampler: str
    rule: Rule
    shift: float = 0.0
    learner: Literal["plain", "renorm"] = "plain"
    ratio: Ratio = "none"
    norm: LossNorm = "token"

    @property
    def name(self) -> str:
        """A short name, unique among arms."""
        parts = [self.sampler, self.rule]
        if self.shift:
            parts.append(f"{self.shift:+g}")
        parts += [x for x in (self.learner, self.ratio, self.norm) if x not in _DEFAULTS]
        return "-".join(parts)


def null_arms(shifts: list[float], optimizer: str) -> list[Arm]:
    """Return the arms of the null-reward runs; the rule makes N equal to the shift."""
    ends = (min(shifts), max(shifts))
    arms = [Arm(s, "zeronet", shift) for s in ("topp", "exact") for shift in shifts]
    arms += [Arm("topp", "zeronet", c, ratio="sampler") for c in ends]
    arms += [Arm("topp", "zeronet", c, learner="renorm") for c in ends]
    if optimizer == "sgd":
        arms += [Arm("cool", "zeronet", c, ratio=r) for r in ("none", "sampler") for c in ends]
        return arms
    return arms + [Arm(s, "zeronet", shift) for s in OTHER_SAMPLERS for shift in ends]


def learn_arms() -> list[Arm]:
    """Return the arms with a real reward, for each variant of the task.

    Under exact sampling ``sharp`` is ``zeronet``: there is no gap to weigh by.
    """
    arms = []
    for sampler in ("topp", "exact"):
        arms += [Arm(sampler, rule) for rule in ("fail", "mask", "zeronet")]
        arms.append(Arm(sampler, "fail", norm="seq_mean"))
    return [*arms, Arm("topp", "sharp"), Arm("topp", "fail", learner="renorm")]


def explode_arms() -> list[Arm]:
    """Return the arms of the long runs."""
    arms = []
    for sampler in ("narrow", "exact"):
        arms += [Arm(sampler, "fail"), Arm(sampler, "zeronet"), Arm(sampler, "zeronet", 0.05)]
    return [*arms, Arm("narrow", "sharp"), Arm("narrow", "fail", learner="renorm")]
