"""The decomposition of anybody's candidate pool: where right answers get lost, with examples.

Of CACC it runs what needs no model: alignment and noise removal. Repair continues texts by the
model that wrote them, which a file of texts does not have.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from replicata.errors import UsageError
from replicata.papers.cacc.decomposition import (
    Decomposition,
    Outcome,
    chance_coverage,
    decompose,
    tax_cause,
)
from replicata.papers.cacc.grading import Grader, marked
from replicata.papers.cacc.interfaces import Interface, Style
from replicata.papers.cacc.method import CaccConfig, cacc
from replicata.papers.cacc.pool import Asked, Candidate, Consumable, Mode
from replicata.papers.cacc.pool_file import Pooled
from replicata.papers.cacc.selectors import majority, plurality_share
from replicata.statistics.paired import mcnemar_exact

#: The strict parser of each mode, unless the user names one.
DEFAULT_STYLE: dict[Mode, Style] = {"number": "hash", "latex": "boxed", "letter": "letter-first"}


@dataclass(frozen=True)
class Lost:
    """A right candidate that the strict parser could not read, and why."""

    question: str
    cause: str
    text: str
    recovered: bool


@dataclass(frozen=True)
class Report:
    """What became of a pool.

    Attributes
    ----------
    questions, candidates
        Their numbers.
    modes
        Questions by mode.
    strict, aligned
        Candidates that the strict parser reads, and that it or alignment reads.
    timeouts
        Texts on which math-verify was given up.
    unreadable_gold
        Questions whose gold answer math-verify does not read: every candidate counts as wrong.
    before, after
        The decomposition under the strict interface, and after alignment and noise removal; None
        without gold answers.
    expected_before, expected_after
        Accuracy under uniform tie-breaks.
    gained, given_up, p_value
        Questions right only afterwards, only before, and the exact two-sided McNemar test.
    causes
        Questions with a right candidate and none selectable, by cause.
    chance
        Oracle coverage of uniform guesses on the questions with letters.
    lost
        Right candidates that the strict parser could not read.
    unread
        Texts that nothing could read, by question id.
    """

    questions: int
    candidates: int
    modes: dict[str, int]
    strict: int
    aligned: int
    timeouts: int
    unreadable_gold: list[str]
    before: Decomposition | None
    after: Decomposition | None
    expected_before: float | None
    expected_after: float | None
    gained: int
    given_up: int
    p_value: float | None
    causes: dict[str, int]
    chance: float | None
    lost: list[Lost]
    unread: list[tuple[str, str]]


def make_report(pool: Sequence[Pooled], grader: Grader, style: Style | None = None) -> Report:
    """Decompose a pool under the strict interface and after alignment and noise removal.

    Parameters
    ----------
    pool
        At least one question. Gold answers are used for all questions or for none.
    grader
        Reads and grades.
    style
        The strict parser; by default that of each question's mode.

    Raises
    ------
    UsageError
        If some questions have a gold answer and others not, or the parser does not fit a mode.
    """
    known = sum(one.question.gold is not None for one in pool)
    if known not in (0, len(pool)):
        raise UsageError(
            f"pool: {known} of {len(pool)} questions have a gold answer, expected all or none"
        )
    rows = [_row(one, grader, style) for one in pool]
    graded = [row for row in rows if row["before"] is not None]
    before = [row["before"] for row in graded]
    after = [row["after"] for row in graded]
    gained = sum(b.acc > a.acc for a, b in zip(before, after, strict=True))
    given_up = sum(a.acc > b.acc for a, b in zip(before, after, strict=True))
    chances = [
        chance_coverage(len(one.question.asked.options), len(one.candidates))
        for one in pool
        if one.question.asked.options
    ]
    return Report(
        questions=len(pool),
        candidates=sum(len(one.candidates) for one in pool),
        modes=dict(Counter(one.question.asked.mode for one in pool)),
        strict=sum(row["strict"] for row in rows),
        aligned=sum(row["aligned"] for row in rows),
        timeouts=grader.timeouts,
        unreadable_gold=_unreadable_gold(pool, grader),
        before=decompose(before) if graded else None,
        after=decompose(after) if graded else None,
        expected_before=sum(one.acc_expected for one in before) / len(graded) if graded else None,
        expected_after=sum(one.acc_expected for one in after) / len(graded) if graded else None,
        gained=gained,
        given_up=given_up,
        p_value=mcnemar_exact(given_up, gained).p_value if gained + given_up else None,
        causes=dict(Counter(row["cause"] for row in graded if row["cause"])),
        chance=sum(chances) / len(chances) if chances else None,
        lost=[one for row in graded for one in row["lost"]],
        unread=[one for row in rows for one in row["unread"]],
    )


def _unreadable_gold(pool: Sequence[Pooled], grader: Grader) -> list[str]:
    """Return the questions whose gold answer nothing can equal."""
    return [
        one.question.asked.id
        for one in pool
        if one.question.asked.mode != "letter"
        and one.question.gold is not None
        and grader.parse_keys([marked(one.question.asked, one.question.gold)])[0] is None
    ]


def _no_model(asked: Asked, candidates: Sequence[tuple[int, Candidate]]) -> dict[int, Any]:
    return {}


def _row(one: Pooled, grader: Grader, style: Style | None) -> dict[str, Any]:
    """Return what a report needs of one question."""
    asked, pool = one.question.asked, one.candidates
    interface = Interface(style or DEFAULT_STYLE[asked.mode], asked.mode, grader)

    def construct(**on: bool) -> list[Consumable]:
        config = CaccConfig(**({"align": False, "repair": False, "denoise": False} | on))
        return cacc(asked, pool, config, interface=interface, reader=grader, repairer=_no_model)

    strict, aligned = construct(), construct(align=True)
    readable = {consumable.parent for consumable in aligned}
    row: dict[str, Any] = {
        "strict": len(strict),
        "aligned": len(aligned),
        "before": None,
        "unread": [(asked.id, c.text) for i, c in enumerate(pool) if i not in readable],
    }
    if one.question.gold is None:
        return row
    gold, kept = one.question.gold, construct(align=True, denoise=True)
    keys = list(dict.fromkeys(c.key for c in (*aligned, *strict)))
    right = dict(zip(keys, grader.equal(asked, gold, keys), strict=True))
    contains = [grader.contains(asked, gold, candidate.text) for candidate in pool]
    usable = {c.parent for c in strict}
    raw = any(contains) or any(right[c.key] for c in strict)
    row["before"] = _outcome(asked.id, strict, right, raw)
    row["after"] = _outcome(asked.id, kept, right, raw)
    cause = None
    if raw and not row["before"].sel:
        cause = tax_cause(pool, contains, [i in readable for i in range(len(pool))])
    row["cause"] = cause
    row["lost"] = [
        Lost(
            asked.id,
            tax_cause([candidate], [True], [index in readable]),
            candidate.text,
            index in {c.parent for c in kept},
        )
        for index, candidate in enumerate(pool)
        if contains[index] and index not in usable
    ]
    return row


def _outcome(
    question: str, consumables: Sequence[Consumable], right: dict[str, bool], raw: bool
) -> Outcome:
    selected = majority(consumables)
    sel = any(right[one.key] for one in consumables)
    return Outcome(
        question=question,
        raw=raw or sel,
        sel=sel,
        acc=selected is not None and right[selected],
        acc_expected=sum(p for key, p in plurality_share(consumables).items() if right[key]),
        created=sel and not raw,
    )
