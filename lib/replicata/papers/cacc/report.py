"""The decomposition of anybody's candidate pool: where right answers get lost, with examples.

Of CACC it runs what needs no model: alignment and noise removal. Repair continues texts by the
model that wrote them, which a file of texts does not have.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
from replicata.papers.cacc.pool import Asked, Candidate, Consumable, Mode, Question
from replicata.papers.cacc.selectors import majority, plurality_share
from replicata.papers.cacc.tasks import LETTERS
from replicata.statistics.paired import mcnemar_exact

#: The strict parser of each mode, unless the user names one.
DEFAULT_STYLE: dict[Mode, Style] = {"number": "hash", "latex": "boxed", "letter": "letter-first"}
#: Characters of a text that an example shows, from its end: answers stand there.
SHOWN = 70
SHOWN_IDS = 5


class _CandidateLine(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    text: str
    finished: bool = True
    n_tokens: int = Field(default=0, ge=0)
    sum_logprob: float | None = None
    source: str = "plain"


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    question: str
    mode: Mode
    options: tuple[str, ...] = ()
    gold: str | None = None
    candidates: list[Annotated[str | _CandidateLine, Field()]]


@dataclass(frozen=True)
class Pooled:
    """A question and its candidates."""

    question: Question
    candidates: tuple[Candidate, ...]


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


def read_pool(path: Path) -> list[Pooled]:
    """Read a pool, a JSON object a line (docs/cacc.md has the format).

    Raises
    ------
    UsageError
        Naming the file, the line, and what was expected.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    pool, seen = [], set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        pooled = _pooled(line, where)
        identity = pooled.question.asked.id
        if identity in seen:
            raise UsageError(f"{where}: id {identity!r} occurs twice, expected one line a question")
        seen.add(identity)
        pool.append(pooled)
    if not pool:
        raise UsageError(f"{path}: no questions, expected one JSON object a line")
    return pool


def _pooled(line: str, where: str) -> Pooled:
    try:
        one = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "line"
        raise UsageError(f"{where}: {key}: {first['msg']}") from None
    options = tuple(option.strip() for option in one.options)
    if (one.mode == "letter") != bool(options):
        raise UsageError(f"{where}: options: expected for mode letter, and for no other mode")
    if len(options) > len(LETTERS):
        raise UsageError(
            f"{where}: options: {len(options)} of question {one.id}, expected at most 26"
        )
    if len({option.casefold() for option in options}) < len(options):
        raise UsageError(f"{where}: options: two of question {one.id} are the same")
    if one.gold is not None and one.mode == "letter" and one.gold not in LETTERS[: len(options)]:
        raise UsageError(
            f"{where}: gold: {one.gold!r}, expected a letter from A to {LETTERS[len(options) - 1]}"
        )
    candidates = [
        _CandidateLine(text=given) if isinstance(given, str) else given for given in one.candidates
    ]
    return Pooled(
        Question(Asked(one.id, one.question, one.mode, options), one.gold),
        tuple(Candidate(**given.model_dump()) for given in candidates),
    )


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


def as_text(report: Report, examples: int) -> str:
    """Return the report as lines for a terminal, with up to ``examples`` texts of each kind."""
    modes = ", ".join(f"{n} {mode}" for mode, n in report.modes.items())
    lines = [
        f"{report.questions} questions ({modes}), {report.candidates} candidates.",
        f"Read by the strict parser: {_share(report.strict, report.candidates)}; with alignment: "
        f"{_share(report.aligned, report.candidates)}; unread by both: "
        f"{_share(report.candidates - report.aligned, report.candidates)}.",
    ]
    if report.timeouts:
        lines.append(f"math-verify was given up on {report.timeouts} texts; they count as unread.")
    if report.unreadable_gold:
        lines.append(
            f"The gold answer of {len(report.unreadable_gold)} questions cannot be read, so they "
            f"count as wrong: {', '.join(report.unreadable_gold[:SHOWN_IDS])}"
            + ("…" if len(report.unreadable_gold) > SHOWN_IDS else ".")
        )
    if report.before is not None and report.after is not None:
        lines += _decomposition_lines(report)
    else:
        lines.append("No gold answers: coverage and accuracy cannot be told.")
    if examples and report.lost:
        lines += ["", "Right answers that the strict parser could not read:"]
        lines += [
            f"  {one.question}: {one.cause}, {'read' if one.recovered else 'not read'} after "
            f"alignment and noise removal: {_end(one.text)}"
            for one in report.lost[:examples]
        ]
        lines += _more(len(report.lost), examples)
    if examples and report.unread:
        lines += ["", "Texts that nothing could read:"]
        lines += [f"  {name}: {_end(text)}" for name, text in report.unread[:examples]]
        lines += _more(len(report.unread), examples)
    return "\n".join(lines)


def _decomposition_lines(report: Report) -> list[str]:
    before, after = report.before, report.after
    assert before is not None
    assert after is not None
    rows = [
        ("raw oracle coverage", before.c_raw, after.c_raw),
        ("selectable coverage", before.c_sel, after.c_sel),
        ("accuracy (majority)", before.accuracy, after.accuracy),
        ("accuracy, ties uniform", report.expected_before, report.expected_after),
        ("interface tax", before.tau, after.tau),
        ("selection loss", before.sigma, after.sigma),
        ("conversion", before.kappa, after.kappa),
    ]
    lines = ["", f"{'':24}{'strict':>8}{'aligned, cleaned':>19}"]
    lines += [f"{name:24}{_number(a):>8}{_number(b):>19}" for name, a, b in rows]
    if report.p_value is None:
        lines.append("No question's answer changed from wrong to right or back.")
    else:
        lines.append(
            f"Right only afterwards: {report.gained}, only before: {report.given_up} of "
            f"{before.n} questions (exact McNemar p {report.p_value:.3g})."
        )
    if report.causes:
        causes = ", ".join(f"{n} {cause}" for cause, n in sorted(report.causes.items()))
        lines.append(f"Questions lost at the interface: {causes}.")
    if report.chance is not None:
        lines.append(
            f"Uniform guesses would cover {report.chance:.3f} of the questions with letters."
        )
    lines.append("Repair needs the model that wrote the texts, and is not part of this report.")
    return lines


def as_json(report: Report) -> str:
    """Return the report's numbers as JSON."""
    fields = {**vars(report), "lost": [vars(one) for one in report.lost]}
    for name in ("before", "after"):
        own: Decomposition | None = fields[name]
        if own is not None:
            derived = {"tau": own.tau, "sigma": own.sigma, "kappa": own.kappa}
            fields[name] = {**vars(own), **derived}
    return json.dumps(fields, indent=2)


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "0"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _end(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= SHOWN else "…" + flat[-SHOWN:])


def _more(total: int, shown: int) -> list[str]:
    return [f"  and {total - shown} more (--examples)"] if total > shown else []
