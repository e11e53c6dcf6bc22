"""What the audit's checks share: the files of one study, each read once."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from replicata.errors import VerificationError
from replicata.preregistration.analysis import observations
from replicata.preregistration.canonical import canonical, parse, read_bytes
from replicata.preregistration.chain import read_chain_bytes
from replicata.preregistration.collect import planned_cells
from replicata.preregistration.places import Places
from replicata.preregistration.registration import Registration, load_registration
from replicata.preregistration.seal import ReadShard, read_shards
from replicata.preregistration.study import Observation, PlannedCell, Study, load_study

Verdict = tuple[str, str]
"""Status and detail."""
PASS = "PASS"
FINISHED = ("answer", "missing")


class Needs(Exception):
    """An item that cannot be checked yet, or because another one failed: SKIP and why."""


@dataclass
class Context:
    """One audit in progress."""

    places: Places
    expected_protocol: str | None
    expected_seal: str | None
    block_headers: Mapping[int, str]
    replay_share: float
    statuses: dict[str, str] = field(default_factory=dict)

    def needs(self, *items: str) -> None:
        """Skip the current item if one of these has failed or was skipped.

        Raises
        ------
        Needs
            Naming the first.
        """
        for item in items:
            if self.statuses.get(item) in ("FAIL", "SKIP"):
                raise Needs(f"needs {item}")

    @cached_property
    def registration(self) -> Registration:
        """The registration, digests and lineage checked."""
        return load_registration(self.places)

    @cached_property
    def shards(self) -> dict[str, ReadShard]:
        """All planned shards, every link checked."""
        return read_shards(self.registration)

    @cached_property
    def study(self) -> Study:
        """The study's functions, from this repository and from no other copy of it."""
        study = load_study(self.registration.protocol.analysis.entry_point)
        for name, path in self.registration.manifest["modules"].items():
            loaded = getattr(sys.modules.get(name), "__file__", None)
            here = self.places.root / path
            if loaded and here.exists() and Path(loaded).read_bytes() != here.read_bytes():
                raise VerificationError(f"{path}: another copy is imported here, {loaded}")
        return study

    @cached_property
    def cells(self) -> dict[str, PlannedCell]:
        """The planned cells by id."""
        return {cell.id: cell for cell in planned_cells(self.registration)}

    @cached_property
    def results(self) -> dict[str, Any]:
        """The content of results.json."""
        if not self.places.results_json.exists():
            raise Needs("not analysed yet")
        return parse(read_bytes(self.places.results_json), "results.json")

    @cached_property
    def observed(self) -> list[Observation]:
        """Every planned cell with what was recorded of it."""
        return observations(list(self.cells.values()), self.shards)

    def records(self) -> Iterator[tuple[ReadShard, int, dict[str, Any]]]:
        """Yield shard, line number and record, in order."""
        for shard in self.shards.values():
            for line, record in enumerate(shard.chain.records, 1):
                yield shard, line, record

    def lines(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Yield file, line number and record of whatever can be read, whether it is linked or not.

        For what must be said of records even where their chain is broken.
        """
        for name in self.registration.planned["shards"]:
            path = self.places.shard_path(name)
            data = read_chain_bytes(path) if path.exists() else b""
            for number, line in enumerate(data.split(b"\n"), 1):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    yield path.name, number, record

    def finished(self) -> Iterator[tuple[ReadShard, int, dict[str, Any], PlannedCell]]:
        """Yield shard, line, record and cell of every finished cell."""
        cells = self.cells
        for shard, line, record in self.records():
            if record["kind"] in FINISHED:
                yield shard, line, record, cells[record["cell"]]


def fail(shard: ReadShard, line: int, what: str) -> VerificationError:
    """Return the error that names the file and line of a record."""
    return VerificationError(f"{shard.shown}, line {line}: {what}")


def same(left: Any, right: Any) -> bool:
    """Say whether two JSON values are the same; 1, 1.0 and true are not."""
    if type(left) is type(right) and isinstance(left, str | int | None):
        return left == right
    return canonical(left) == canonical(right)


def close(left: Any, right: Any, where: str) -> str | None:
    """Return where two JSON values differ by more than 1e-12, or None."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted({*left, *right}):
            if key not in left or key not in right:
                return f"{where}.{key}"
            found = close(left[key], right[key], f"{where}.{key}")
            if found:
                return found
        return None
    numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in (left, right)]
    if all(numbers):
        return None if abs(left - right) <= 1e-12 * max(1.0, abs(left)) else where
    return None if type(left) is type(right) and left == right else where
