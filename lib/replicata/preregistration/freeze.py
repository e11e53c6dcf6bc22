"""Freezing: from a draft to bytes that never change again."""

from pathlib import Path

from replicata.errors import UsageError
from replicata.preregistration.anchor import (
    check_attributes,
    check_clean,
    check_committed,
)
from replicata.preregistration.authority import LocalAuthority
from replicata.preregistration.canonical import canonical, read_bytes
from replicata.preregistration.manifest import build_manifest
from replicata.preregistration.places import Places, require
from replicata.preregistration.protocol import Protocol, load_draft
from replicata.preregistration.registration import describe_plan, digest_path
from replicata.preregistration.study import PlannedCell, load_study
from replicata.preregistration.timestamp import authority_dir
from replicata.workflow.files import atomic_write, sha256_bytes


def freeze(places: Places) -> str:
    """Freeze the draft: write frozen.json and its digest; return the digest.

    Raises
    ------
    UsageError
        If the draft does not fit the schema, the git tree is dirty, a records file exists, a file's
        line ends are unprotected, or the plan is not the one the draft counts.
    """
    require(places, "freeze")
    if any(places.records_dir.glob("*")):
        raise UsageError(f"freeze refuses: there are records in {places.shown(places.records_dir)}")
    protocol = load_draft(places.draft)
    if (protocol.study, protocol.profile) != (places.study, places.profile):
        raise UsageError(
            f"draft.yaml is of study {protocol.study}, profile {protocol.profile}; expected "
            f"{places.study}, {places.profile}"
        )
    commit = check_clean(places.root)
    manifest = build_manifest(protocol, places.root)
    protected = [places.frozen, places.roots, digest_path(places.frozen), places.deviations]
    check_attributes(places.root, [*manifest["files"], *map(places.shown, protected)])
    check_committed(places.root, manifest["files"])
    planned = describe_plan(check_fresh(protocol, check_plan(protocol)))
    roots = _roots(protocol, places)
    content = canonical(
        {
            "commit": commit,
            "manifest": manifest,
            "planned": planned,
            "protocol": protocol.to_json(),
            "roots_sha256": sha256_bytes(roots),
            "schema": 1,
        },
        "the protocol",
    )
    atomic_write(places.roots, roots)
    atomic_write(places.deviations, b"")
    write_frozen(places.frozen, content)
    return sha256_bytes(content)


def write_frozen(path: Path, content: bytes) -> None:
    """Write a frozen file after its digest: the file itself is what says that it is frozen."""
    atomic_write(digest_path(path), f"{sha256_bytes(content)}  {path.name}\n")
    atomic_write(path, content)


def check_plan(protocol: Protocol) -> list[PlannedCell]:
    """Return the study's planned cells if they are what the protocol says.

    Raises
    ------
    UsageError
        If the counts differ, an id is there twice, an endpoint is unknown, or a cell needs one that
        does not come before it in its shard.
    """
    cells = list(load_study(protocol.analysis.entry_point).planned_cells(protocol))
    if len(cells) != protocol.sample.planned_cells:
        raise UsageError(
            f"sample.planned_cells is {protocol.sample.planned_cells}, but the study generates "
            f"{len(cells)}"
        )
    units = len({cell.unit for cell in cells})
    if units != protocol.sample.units:
        raise UsageError(
            f"sample.units is {protocol.sample.units}, but the study generates {units}"
        )
    shard_of: dict[str, str] = {}
    for cell in cells:
        if cell.id in shard_of:
            raise UsageError(f"planned cell {cell.id!r} is there twice")
        if cell.endpoint not in protocol.endpoints:
            raise UsageError(f"planned cell {cell.id!r} has an unknown endpoint {cell.endpoint!r}")
        for need in cell.needs:
            if shard_of.get(need) != cell.shard:
                raise UsageError(
                    f"planned cell {cell.id!r} needs {need!r}, which does not come before it in "
                    f"shard {cell.shard!r}"
                )
        shard_of[cell.id] = cell.shard
    return cells


def check_fresh(protocol: Protocol, cells: list[PlannedCell]) -> list[PlannedCell]:
    """Return ``cells`` if none uses a pilot unit.

    Raises
    ------
    UsageError
        If one does.
    """
    for cell in cells:
        if protocol.pilot.covers(cell.unit):
            raise UsageError(f"planned cell {cell.id!r} uses the pilot unit {cell.unit!r}")
    return cells


def _roots(protocol: Protocol, places: Places) -> bytes:
    if protocol.timestamp.roots is None:
        return LocalAuthority(authority_dir(places)).create()
    return read_bytes(places.protocol_dir / protocol.timestamp.roots)
