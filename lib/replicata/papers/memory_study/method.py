"""Estimands, tests and decision flags of the memory study (spec 3.4 to 3.6).

Y is 1 where the worse tool is chosen, 1/2 at a tie. For each world, after a chance failure of the
better tool (scenario ``unlucky``), with F and S the outcome that both sessions saw:

* carry        C = Y(F, own) - Y(F, irr)
* swap         X = Y(F, own) - Y(F, opp)
* interaction  D = [Y(F, own) - Y(F, irr)] - [Y(S, own) - Y(S, irr)]

and after a chance success of the worse tool (``lucky``) with F and S exchanged. D cancels what the
shown outcome does in every arm, and a liking for a name or a place. Worlds are what is generalised
over: signs are flipped per world, and bounds take a world as one value.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from replicata.papers.memory_study.prompts import Log, Outcome, Scenario, opposite
from replicata.statistics.bounds import plus_one_bound
from replicata.statistics.exact import sign_flip_exact

ALPHA = 0.05
BOUND = Fraction(1, 10)
"""The paper's bound on an effect that is called small."""
NO_HARM = 0.05
TIE = 1e-6
"""Scores closer than this, in nats, are a tie."""

Values = dict[str, Fraction]
"""One number per world."""


class Arm(NamedTuple):
    """Where a choice was made: all but the world."""

    endpoint: str
    scenario: Scenario
    log: Log
    outcome: Outcome
    memory: str


@dataclass(frozen=True)
class Choice:
    """One choice: 0, 1/2 or 1 for the worse tool, and the probability given to it."""

    world: str
    arm: Arm
    worse: Fraction
    p_worse: float


class Choices:
    """All choices of a study, by arm and world."""

    def __init__(self, choices: Iterable[Choice]) -> None:
        self._worse: dict[Arm, Values] = {}
        self._p: dict[Arm, dict[str, float]] = {}
        for choice in choices:
            self._worse.setdefault(choice.arm, {})[choice.world] = choice.worse
            self._p.setdefault(choice.arm, {})[choice.world] = choice.p_worse

    def arms(self, endpoint: str) -> list[Arm]:
        """Return the arms of an endpoint, sorted."""
        return sorted(arm for arm in self._worse if arm.endpoint == endpoint)

    def worse(self, arm: Arm) -> Values:
        """Return Y of an arm by world; empty if it was not planned."""
        return self._worse.get(arm, {})

    def p_worse(self, arm: Arm) -> Values:
        """Return the probability of the worse tool by world, as exact fractions of the floats."""
        return {world: Fraction(p) for world, p in self._p.get(arm, {}).items()}


def less(left: Values, right: Values) -> Values:
    """Return left - right over the worlds that both have."""
    return {world: left[world] - right[world] for world in left if world in right}


def lucky_one(scenario: Scenario) -> Outcome:
    """Return the outcome that is luck: failure of the better tool, success of the worse."""
    return "F" if scenario == "unlucky" else "S"


@dataclass(frozen=True)
class Contrasts:
    """The contrasts of one endpoint, scenario and log version, each a value per world.

    ``scale`` is ``worse`` for choices, the registered scale, or ``p_worse`` for probabilities.
    """

    choices: Choices
    endpoint: str
    scenario: Scenario = "unlucky"
    log: Log = "indep"
    scale: str = "worse"

    def y(self, outcome: Outcome, memory: str) -> Values:
        """Return Y(outcome, memory)."""
        arm = Arm(self.endpoint, self.scenario, self.log, outcome, memory)
        return getattr(self.choices, self.scale)(arm)

    def carry(self, memory: str = "own") -> Values:
        """Return C: a memory against the irrelevant one, after the outcome that is luck."""
        luck = lucky_one(self.scenario)
        return less(self.y(luck, memory), self.y(luck, "irr"))

    def swap(self, memory: str = "own", other: str = "opp") -> Values:
        """Return X: the lesson against that of the opposite outcome, the same outcome shown."""
        luck = lucky_one(self.scenario)
        return less(self.y(luck, memory), self.y(luck, other))

    def interaction(self, memory: str = "own") -> Values:
        """Return D: outcome by memory."""
        luck = lucky_one(self.scenario)
        after_luck = less(self.y(luck, memory), self.y(luck, "irr"))
        after_other = less(self.y(opposite(luck), memory), self.y(opposite(luck), "irr"))
        return less(after_luck, after_other)


@dataclass(frozen=True)
class Estimate:
    """A mean over worlds: the exact one-sided test against 0, and plus-one bounds at ``ALPHA``."""

    mean: float
    p_value: float
    smallest_p: float
    lower: float
    upper: float
    n: int

    @property
    def bounded(self) -> bool:
        """Whether the one-sided upper bound is below the paper's bound."""
        return self.upper < BOUND


def bounds(
    values: Mapping[str, Fraction], extreme: int, alpha: float = ALPHA
) -> tuple[float, float]:
    """Return the lower and the upper one-sided plus-one bound of a mean over worlds.

    Parameters
    ----------
    values
        One per world, at least one.
    extreme
        The largest size a value can have: 1 for a difference, 2 for an interaction.
    alpha
        Level of each bound.
    """
    numbers = [float(value) for value in values.values()]
    return (
        plus_one_bound(numbers, "lower", alpha=alpha, extreme=extreme),
        plus_one_bound(numbers, "upper", alpha=alpha, extreme=extreme),
    )


def estimate(values: Mapping[str, Fraction], extreme: int, seed: int) -> Estimate:
    """Test and bound a contrast; ``seed`` is for data with too many patterns to count."""
    test = sign_flip_exact(list(values.values()), "greater", seed=seed)
    lower, upper = bounds(values, extreme)
    return Estimate(test.estimate, test.p_value, test.smallest_p, lower, upper, len(values))


@dataclass(frozen=True)
class Mitigation:
    """Rule H for one mitigation on one endpoint (spec 3.5), with what each part of it rests on."""

    reduction: Estimate
    carry: Estimate
    own_carry: float
    harm: Estimate

    @property
    def halved(self) -> bool:
        """(ii) The point estimate is at most half of that without mitigation."""
        return self.carry.mean <= 0.5 * self.own_carry

    @property
    def harmless(self) -> bool:
        """(iv) After a success it adds less than ``NO_HARM`` to the choice of the worse tool."""
        return self.harm.upper < NO_HARM

    def passes(self, p_adjusted: float) -> bool:
        """Return whether all four parts hold; ``p_adjusted`` is that of the reduction, (i)."""
        return p_adjusted <= ALPHA and self.halved and self.carry.bounded and self.harmless


def mitigate(contrasts: Contrasts, memory: str, seed: int) -> Mitigation:
    """Apply rule H to the lessons written with a mitigation.

    Parameters
    ----------
    contrasts
        Of the endpoint, scenario ``unlucky``.
    memory
        ``note`` or ``shared``.
    seed
        As for `estimate`.
    """
    own, mitigated = contrasts.carry("own"), contrasts.carry(memory)
    harm = less(contrasts.y("S", memory), contrasts.y("S", "own"))
    return Mitigation(
        reduction=estimate(less(own, mitigated), 1, seed),
        carry=estimate(mitigated, 1, seed),
        own_carry=float(sum(own.values()) / len(own)),
        harm=estimate(harm, 1, seed),
    )
