"""A candidate pool from a file, one JSON object a line (docs/cacc.md has the format)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replicata.errors import UsageError
from replicata.papers.cacc.pool import Asked, Candidate, Mode, Question
from replicata.papers.cacc.tasks import LETTERS


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
