"""Deriving everything again from the raw tables: digests, manifests and every verdict."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from replicata.errors import ReplicataError
from replicata.workflow import receipts
from replicata.workflow.files import sha256_file
from replicata.workflow.layout import Room
from replicata.workflow.plan import PaperPlan
from replicata.workflow.run import claims_document

_REASONS = {
    "receipt-damaged": "its receipt cannot be read",
    "no-receipt": "it has no receipt: it has not been run, or not to its end",
    "inputs-changed": "code, params or inputs have changed since it was run",
    "upstream-changed": "a stage before it is not current",
    "output-missing": "an output is missing",
    "output-edited": "an output is not what was recorded when it was written",
    "source-missing": "the notebook's source is missing",
}


@dataclass(frozen=True)
class Check:
    """One line of an audit.

    Attributes
    ----------
    status
        PASS, FAIL, NOT RUN (a cell that could not run where this was made), or EXTRA (a file that
        nothing here made, such as a cell that is no longer planned; it is not used).
    paper, subject
        What was checked.
    detail
        One sentence.
    """

    status: str
    paper: str
    subject: str
    detail: str

    def line(self) -> str:
        """Return the check as one line of text."""
        return f"{self.status:<7} {self.paper} {self.subject}: {self.detail}"


def verify(room: Room) -> list[Check]:
    """Check all results of a paper; nothing is trusted but the raw tables.

    Raises
    ------
    UsageError, RunError
        If params, experiment or ledger cannot be read.
    """
    return [*_stages(room), *_manifest(room), *_claims(room), *_extra(room)]


def _stages(room: Room) -> Iterator[Check]:
    for stage in PaperPlan(room).stages:
        receipt = None
        because = stage.stale
        if because != "receipt-damaged":
            receipt = receipts.read(room.receipt_path(stage.name))
        if because in ("not-run", "upstream-changed") and receipt is not None:
            # The bytes can still be checked, and of a cell not run its reason is the result.
            because = _bytes_changed(room, receipt)
            if because is None and receipt.not_run is not None:
                yield Check("NOT RUN", room.paper, stage.name, receipt.not_run)
                continue
            if because is None and _depends_on_not_run_only(room):
                yield Check("PASS", room.paper, stage.name, "outputs are as recorded")
                continue
            because = because or stage.stale
        if because is None:
            yield Check(
                "PASS", room.paper, stage.name, "outputs, code, params and inputs are as recorded"
            )
        else:
            yield Check("FAIL", room.paper, stage.name, _REASONS.get(because, because))


def _bytes_changed(room: Room, receipt: receipts.Receipt) -> str | None:
    for name, recorded in receipt.outputs.items():
        path = room.dir / name
        if not path.is_file():
            return "output-missing"
        if sha256_file(path) != recorded:
            return "output-edited"
    return None


def _depends_on_not_run_only(room: Room) -> bool:
    """Say whether the only stale cells are those that could not run."""
    plan = PaperPlan(room)
    return all(
        stage.stale in (None, "not-run") for stage in plan.stages if stage.name.startswith("cells/")
    )


def _manifest(room: Room) -> Iterator[Check]:
    subject = "manifest.json"
    try:
        recorded = json.loads(room.manifest_json.read_text(encoding="utf-8"))["outputs"].items()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        yield Check("FAIL", room.paper, subject, "it is missing or cannot be read")
        return
    for name, sha in recorded:
        path = room.dir / name
        if not path.is_file():
            yield Check("FAIL", room.paper, subject, f"{name} is listed and missing")
            return
        if sha256_file(path) != sha:
            yield Check("FAIL", room.paper, subject, f"{name} is not what is listed")
            return
    yield Check("PASS", room.paper, subject, f"all {len(recorded)} outputs are as listed")


def _claims(room: Room) -> Iterator[Check]:
    try:
        written = json.loads(room.claims_json.read_text(encoding="utf-8"))
        entries = {claim["id"]: claim for claim in written["claims"]}
    except (OSError, ValueError, KeyError, TypeError):
        yield Check("FAIL", room.paper, "claims.json", "it is missing or cannot be read")
        return
    try:
        derived = claims_document(room)
    except ReplicataError as error:
        yield Check("FAIL", room.paper, "claims.json", f"it cannot be derived again: {error}")
        return
    for name in ("paper", "profile", "ledger_sha256", "params_sha256"):
        if written.get(name) != derived[name]:
            yield Check("FAIL", room.paper, "claims.json", f"{name} is not what it should be")
    for claim in derived["claims"]:
        there = entries.pop(claim["id"], None)
        wrong = "missing" if there is None else _difference(there, claim)
        if wrong is None:
            detail = f"derived again from the tables: {claim['verdict']}"
            yield Check("PASS", room.paper, claim["id"], detail)
        elif there is None:
            yield Check("FAIL", room.paper, claim["id"], "claims.json does not have it")
        else:
            yield Check("FAIL", room.paper, claim["id"], wrong)
    for name in entries:
        yield Check("FAIL", room.paper, name, "claims.json has it, the ledger does not")


def _difference(written: Any, derived: Any, where: str = "") -> str | None:
    """Return the first difference in words; numbers may differ in the last bits (another CPU)."""
    if isinstance(written, dict) and isinstance(derived, dict):
        for key in sorted(set(written) | set(derived)):
            if (key in written) != (key in derived):
                return f"{where}{key} is in one of claims.json and the tables' result only"
            found = _difference(written[key], derived[key], f"{where}{key}.")
            if found:
                return found
        return None
    if isinstance(written, list) and isinstance(derived, list) and len(written) == len(derived):
        pairs = enumerate(zip(written, derived, strict=True))
        return next(
            (found for i, (a, b) in pairs if (found := _difference(a, b, f"{where}{i}."))), None
        )
    same = written == derived and isinstance(written, bool) == isinstance(derived, bool)
    if not same and isinstance(written, float) and isinstance(derived, int | float):
        same = math.isclose(written, derived, rel_tol=1e-9, abs_tol=1e-12)
    if same:
        return None
    return f"{where.rstrip('.')} is {written!r} in claims.json and {derived!r} from the tables"


def _extra(room: Room) -> Iterator[Check]:
    planned = PaperPlan(room).cells
    for path in sorted(room.cells_dir.glob("*")):
        if path.suffix != ".parquet" or path.stem not in planned:
            yield Check(
                "EXTRA", room.paper, f"cells/{path.name}", "no cell of this name is planned; unused"
            )
