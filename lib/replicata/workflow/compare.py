"""A rerun beside the reference: claim by claim, by prediction interval instead of by tolerance."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from replicata.errors import UsageError, VerificationError
from replicata.workflow import receipts
from replicata.workflow.files import atomic_write, pretty_json
from replicata.workflow.layout import Room

IDENTICAL = "identical"
WITHIN = "within the 95 % prediction interval"
DRIFTED = "drifted"
NOT_RUN = "not run"

_SHOWN = ("verdict", "estimate", "interval", "p_value", "n")


class ReferenceRun(BaseModel):
    """Estimates of one finished run on some machine, by claim id."""

    model_config = ConfigDict(extra="forbid")

    name: str
    environment: dict[str, Any]
    claims: dict[str, float | None]


class ReferenceRuns(BaseModel):
    """What results/<profile>/<paper>/reference_runs.json holds."""

    model_config = ConfigDict(extra="forbid")

    runs: list[ReferenceRun] = []


@dataclass(frozen=True)
class Comparison:
    """One claim of a rerun beside the reference.

    Attributes
    ----------
    claim
        The claim's id.
    category
        ``IDENTICAL`` (verdict, estimate, interval, p-value and n are equal), ``WITHIN``,
        ``DRIFTED``, or ``NOT_RUN`` (here or in the reference, which leaves nothing to compare).
    verdict, reference_verdict
        Of the rerun and of the reference.
    detail
        The numbers, in words.
    estimate, reference_estimate
        Of the rerun and of the reference.
    """

    claim: str
    category: str
    verdict: str
    reference_verdict: str
    detail: str
    estimate: float | None
    reference_estimate: float | None

    @property
    def same_verdict(self) -> bool:
        """Whether both have the same verdict."""
        return self.verdict == self.reference_verdict

    @property
    def holds(self) -> bool:
        """Whether the rerun agrees with the reference; a claim not run is no disagreement."""
        if self.category == NOT_RUN:
            return True
        return self.same_verdict and self.category != DRIFTED

    def line(self) -> str:
        """Return the comparison as one line of text."""
        same = "same verdict" if self.same_verdict else "another verdict"
        verdicts = self.verdict
        if not self.same_verdict:
            verdicts = f"{self.reference_verdict} -> {self.verdict}"
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.claim}: {self.category}, {same}: {verdicts}{detail}"


def read_claims(room: Room) -> dict[str, dict[str, Any]]:
    """Return the decisions in a paper's claims.json by claim id; empty where there is none.

    Raises
    ------
    VerificationError
        If the file is there and cannot be read.
    """
    try:
        document = json.loads(room.claims_json.read_text(encoding="utf-8"))
        return {claim["id"]: claim for claim in document["claims"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VerificationError(
            f"claims.json of {room.paper} ({room.profile}) cannot be read: {error}"
        ) from None


def compare(rerun: Room, reference: Room) -> list[Comparison]:
    """Compare a rerun with the reference, in the order of the rerun's claims.

    Parameters
    ----------
    rerun, reference
        The same paper and profile under two roots.

    Raises
    ------
    VerificationError
        If claims.json or reference_runs.json cannot be read.
    """
    old, runs = read_claims(reference), _reference_runs(reference).runs
    return [
        _compare_claim(claim, old[name], runs)
        for name, claim in read_claims(rerun).items()
        if name in old
    ]


def _compare_claim(
    new: dict[str, Any], old: dict[str, Any], runs: Iterable[ReferenceRun]
) -> Comparison:
    name = new["id"]

    def result(category: str, detail: str = "") -> Comparison:
        numbers = (new.get("estimate"), old.get("estimate"))
        return Comparison(name, category, new["verdict"], old["verdict"], detail, *numbers)

    if any(claim["verdict"].startswith(NOT_RUN) for claim in (new, old)):
        return result(NOT_RUN)
    if all(new.get(key) == old.get(key) for key in _SHOWN):
        return result(IDENTICAL)
    estimate, before = new.get("estimate"), old.get("estimate")
    if estimate is None or before is None:
        return result(DRIFTED)
    values = [before, *(run.claims.get(name) for run in runs)]
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if len(numbers) < 2:
        return result(DRIFTED, f"{estimate:.6g}, reference {before:.6g}, no other reference run")
    from replicata.statistics.agreement import prediction_interval

    expected = prediction_interval(numbers)
    inside = expected.contains(estimate)
    return result(
        WITHIN if inside else DRIFTED,
        f"{estimate:.6g}, expected {expected.low:.6g} to {expected.high:.6g} "
        f"from {len(numbers)} reference runs",
    )


def write_comparison(base: Path, found: Mapping[str, Iterable[Comparison]]) -> None:
    """Write ``comparison.json``, which the report reads; papers not in ``found`` stay in it.

    Parameters
    ----------
    base
        The rerun's root/profile.
    found
        Comparisons by paper.

    Raises
    ------
    VerificationError
        If the file is there and is no JSON.
    """
    path = base / "comparison.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        document = {}
    except ValueError as error:
        raise VerificationError(f"comparison.json is no JSON: {error}") from None
    for paper, comparisons in found.items():
        document[paper] = {
            comparison.claim: {
                "status": comparison.category,
                "reference": comparison.reference_estimate,
                "rerun": comparison.estimate,
                "same_verdict": comparison.same_verdict,
            }
            for comparison in comparisons
        }
    atomic_write(path, pretty_json(document))


def _runs_path(room: Room) -> Path:
    return room.dir / "reference_runs.json"


def _reference_runs(room: Room) -> ReferenceRuns:
    try:
        text = _runs_path(room).read_bytes()
    except FileNotFoundError:
        return ReferenceRuns()
    try:
        return ReferenceRuns.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise VerificationError(
            f"reference_runs.json of {room.paper}: {where}: {first['msg']}"
        ) from None


def add_reference(run: Room, reference: Room, name: str) -> None:
    """Append a finished run's estimates to the reference runs of its paper.

    Parameters
    ----------
    run
        The finished run.
    reference
        Whose reference_runs.json is extended.
    name
        What to call the run; no two have the same name.

    Raises
    ------
    UsageError
        If the run has no claims.json, is the reference itself, or the name is taken.
    VerificationError
        If a file cannot be read.
    """
    if run.dir.resolve() == reference.dir.resolve():
        raise UsageError("--root is the reference itself, expected another run's results root")
    claims = read_claims(run)
    receipt = receipts.read(run.receipt_path("claims"))
    if not claims or receipt is None:
        raise UsageError(f"{run.paper} has no finished run under {run.root}/{run.profile}")
    known = _reference_runs(reference)
    if name in [entry.name for entry in known.runs]:
        raise UsageError(f"--name {name!r} is taken in {run.paper}'s reference_runs.json")
    estimates = {key: claim.get("estimate") for key, claim in claims.items()}
    entry = ReferenceRun(name=name, environment=receipt.environment, claims=estimates)
    document = ReferenceRuns(runs=[*known.runs, entry])
    atomic_write(_runs_path(reference), pretty_json(document.model_dump()))
