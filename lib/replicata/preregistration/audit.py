"""The audit: everything a protocol promised, derived again from the raw files, line by line.

``replicata audit <study>`` prints one line per item and ends with an error if one FAILs.

==== ==========================================================================
item what is checked
==== ==========================================================================
A1   frozen.json and amendments have the recorded (and the expected) digests
A2   they, and the seal, are canonical JSON, fit the schema and name their parents
A3   the manifest's files are the frozen ones, and the archive holds the protocol
A4   timestamp tokens verify: signature, pinned roots, imprint, nonce
A5   time order: stamp, records, seal, analysis
A6   OpenTimestamps proof
A7   the git anchor is an ancestor of HEAD and holds the same protocol
A8   every link of every chain
A9   counts and heads equal the seal's
A10  planned cells = answers + declared missing, no extras, no duplicates
A11  every record carries the protocol's digest and the pinned model
A12  requests, rendered again, equal the logged ones
A13  requests that use earlier answers use the logged ones
A14  outcomes, derived again from responses
A15  results and verdicts, computed again from the records
A16  exclusions and missing cells follow the rule
A17  deviations are listed and referenced
A18  no pilot unit among the records
A19  labels: nothing is called more than it is
A20  deterministic endpoints, asked again
==== ==========================================================================
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from replicata.errors import ReplicataError
from replicata.preregistration import audit_protocol, audit_records, audit_results
from replicata.preregistration.auditing import Context, Needs, Verdict
from replicata.preregistration.places import Places

CHECKS: dict[str, tuple[str, Callable[[Context], Verdict]]] = {
    "A1": ("frozen digest", audit_protocol.frozen_digest),
    "A2": ("canonical form", audit_protocol.canonical_form),
    "A3": ("manifest files", audit_protocol.manifest_files),
    "A4": ("timestamp tokens", audit_protocol.tokens),
    "A5": ("time order", audit_protocol.time_order),
    "A6": ("OpenTimestamps", audit_protocol.ots),
    "A7": ("git anchor", audit_protocol.git_anchor),
    "A8": ("chain links", audit_records.chain_links),
    "A9": ("seal", audit_records.sealed),
    "A10": ("sample as planned", audit_records.sample),
    "A11": ("protocol and model", audit_records.pins),
    "A12": ("requests", audit_records.requests),
    "A13": ("earlier answers", audit_records.earlier_answers),
    "A14": ("outcomes", audit_records.outcomes),
    "A15": ("results", audit_results.results),
    "A16": ("exclusions", audit_results.exclusions),
    "A17": ("deviations", audit_results.deviations),
    "A18": ("pilot units", audit_results.pilot),
    "A19": ("labels", audit_results.labelled),
    "A20": ("replay", audit_results.replay),
}


@dataclass(frozen=True)
class Item:
    """One line of the audit; ``status`` is PASS, FAIL, NOT INDEPENDENT, PENDING or SKIP."""

    id: str
    name: str
    status: str
    detail: str

    def __str__(self) -> str:
        detail = f"  {self.detail}" if self.detail else ""
        return f"{self.id:<4}{self.status:<16} {self.name}{detail}"


@dataclass(frozen=True)
class Audit:
    """All items of one study."""

    study: str
    items: tuple[Item, ...]

    @property
    def failed(self) -> bool:
        """Whether any item is FAIL."""
        return any(item.status == "FAIL" for item in self.items)

    def status(self, item_id: str) -> str:
        """Return the status of one item."""
        return next(item.status for item in self.items if item.id == item_id)

    def to_json(self) -> dict:
        """Return the audit as JSON values."""
        items = [asdict(item) for item in self.items]
        return {"study": self.study, "failed": self.failed, "items": items}


def audit(
    places: Places,
    *,
    expected_protocol: str | None = None,
    expected_seal: str | None = None,
    block_headers: Mapping[int, str] | None = None,
    replay_share: float = 0.01,
) -> Audit:
    """Check everything that can be checked from the files.

    Parameters
    ----------
    places
        The study's files.
    expected_protocol, expected_seal
        Digests of frozen.json and seal.json that the auditor got from elsewhere.
    block_headers
        Bitcoin block headers by height, 80 bytes of hex each, for A6.
    replay_share
        Share of replayable cells to ask again for A20, at least one.
    """
    context = Context(places, expected_protocol, expected_seal, block_headers or {}, replay_share)
    with _no_collection():
        return Audit(places.study, tuple(_items(context)))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector, which would walk all records again and again for no cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _items(context: Context) -> Iterator[Item]:
    for item_id, (name, check) in CHECKS.items():
        try:
            status, detail = check(context)
        except Needs as needs:
            status, detail = "SKIP", str(needs)
        except ReplicataError as error:
            status, detail = "FAIL", " ".join(str(error).split())
        except (Exception, SystemExit) as error:
            # Whatever a changed file makes this code or the study's run into, it is a finding.
            text = " ".join(f"{type(error).__name__}: {error}".split())
            status, detail = "FAIL", f"cannot be checked: {text}"
        context.statuses[item_id] = status
        yield Item(item_id, name, status, detail)
