"""The coverage-conversion decomposition and the vote arithmetic behind it (spec 3.2, 3.4, 3.5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from replicata.errors import RunError
from replicata.papers.cacc.pool import Candidate

Cause = Literal["incomplete", "mode mismatch", "unparsable"]


@dataclass(frozen=True)
class Outcome:
    """What became of one question in one arm.

    Attributes
    ----------
    question
        Its id.
    raw
        A right answer is in some text (liberal reader or strict parser), or was created.
    sel
        Some consumable is right.
    acc
        The selected key is right.
    acc_expected
        Probability of that under uniform tie-breaks.
    created
        Selectable now, although no text held a right answer before.

    Raises
    ------
    RunError
        If not raw >= sel >= acc: then a reader or the bookkeeping is wrong.
    """

    question: str
    raw: bool
    sel: bool
    acc: bool
    acc_expected: float
    created: bool

    def __post_init__(self) -> None:
        if not self.raw >= self.sel >= self.acc:
            raise RunError(
                f"question {self.question}: raw {self.raw}, sel {self.sel}, acc {self.acc}, "
                "expected raw >= sel >= acc"
            )


@dataclass(frozen=True)
class Decomposition:
    """Shares over questions: coverage, its loss at the interface and at the selector.

    ``kappa`` is the conversion A / C_sel, None where nothing is selectable.
    """

    c_raw: float
    c_sel: float
    accuracy: float
    n: int

    @property
    def tau(self) -> float:
        """Interface tax."""
        return self.c_raw - self.c_sel

    @property
    def sigma(self) -> float:
        """Selection loss."""
        return self.c_sel - self.accuracy

    @property
    def kappa(self) -> float | None:
        """Conversion of selectable coverage."""
        return self.accuracy / self.c_sel if self.c_sel else None


def decompose(outcomes: Sequence[Outcome]) -> Decomposition:
    """Return the shares of some questions; an empty pool counts as a wrong answer, not as none."""
    n = len(outcomes)
    if n == 0:
        raise RunError("decomposition: no questions, expected at least one")
    return Decomposition(
        sum(one.raw for one in outcomes) / n,
        sum(one.sel for one in outcomes) / n,
        sum(one.acc for one in outcomes) / n,
        n,
    )


def tax_cause(
    candidates: Sequence[Candidate], contains: Sequence[bool], readable: Sequence[bool]
) -> Cause:
    """Say why a question's right candidates could not be used: by the best of them.

    Parameters
    ----------
    candidates
        The pool.
    contains
        Whether the liberal reader finds the answer in each.
    readable
        Whether alignment gives each a key: its answer stands in another mode or dress.
    """
    right = [i for i, found in enumerate(contains) if found]
    if any(not candidates[i].finished for i in right) and not any(
        candidates[i].finished and readable[i] for i in right
    ):
        return "incomplete"
    return "mode mismatch" if any(readable[i] for i in right) else "unparsable"


def pivotal_gain(a: float, b: float, margin: dict[int, float]) -> float:
    """Return the change of accuracy by one more vote, with a single rival (spec 3.4).

    Parameters
    ----------
    a, b
        Probability that the vote is for the right answer, and for the rival.
    margin
        Probability of each lead of the right answer over the rival; -1, 0 and 1 matter.
    """
    behind, even, ahead = (margin.get(d, 0.0) for d in (-1, 0, 1))
    return a / 2 * (even + behind) - b / 2 * (even + ahead)


def plurality_accuracy(votes: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return accuracy and coverage of a plurality vote, by enumeration.

    Parameters
    ----------
    votes
        Class probabilities of each independent vote; class 0 is right. What is missing to 1 is no
        vote.
    """
    accuracy, covered = [], []
    choices = [[*enumerate(one), (-1, 1 - sum(one))] for one in votes]
    for outcome in product(*choices):
        probability = math.prod(p for _, p in outcome)
        counts: dict[int, int] = {}
        for chosen, _ in outcome:
            if chosen >= 0:
                counts[chosen] = counts.get(chosen, 0) + 1
        if 0 not in counts:
            continue
        covered.append(probability)
        most = max(counts.values())
        if counts[0] == most:
            accuracy.append(probability / sum(count == most for count in counts.values()))
    return math.fsum(accuracy), math.fsum(covered)


def chance_coverage(m: int, k: int) -> float:
    """Return the oracle coverage of k uniform guesses among m options: 1 - (1 - 1/m)^k."""
    return 1 - (1 - 1 / m) ** k
