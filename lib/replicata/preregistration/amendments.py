"""Amendments: a change of plan is a new frozen file; what was frozen before stays as it is."""

import json
from pathlib import Path
from typing import Any

from replicata.errors import UsageError
from replicata.preregistration.anchor import check_attributes, check_clean
from replicata.preregistration.canonical import canonical, read_canonical
from replicata.preregistration.chain import read_chain_bytes
from replicata.preregistration.freeze import check_fresh, check_plan, write_frozen
from replicata.preregistration.manifest import build_manifest
from replicata.preregistration.places import Places, require
from replicata.preregistration.protocol import Protocol, validate_protocol
from replicata.preregistration.registration import (
    Registration,
    describe_plan,
    load_registration,
)

FIXED = ("schema", "study", "profile", "timestamp")


def amend(places: Places, changes: dict[str, Any], reason: str, seen: str) -> Path:
    """Freeze an amendment that replaces top-level keys of the protocol; return its path.

    It names its parent's digest, the reason, what its author had seen, and, counted by us, how many
    records existed. Results under an amendment made after the first record are labelled so.

    Parameters
    ----------
    places
        The study's files.
    changes
        Top-level keys of the protocol with their whole new values; may be empty if only code
        changes.
    reason, seen
        In words; neither may be empty.

    Raises
    ------
    UsageError
        In a state that takes no amendment, on a dirty tree, for a key that cannot change, or if
        the amended protocol does not fit the schema.
    VerificationError
        If what was frozen before has changed.
    """
    require(places, "amend")
    for name, text in (("reason", reason), ("seen", seen)):
        if not text.strip():
            raise UsageError(f"amend refuses: {name} is empty, expected a sentence")
    for key in changes:
        if key in FIXED:
            raise UsageError(f"amend refuses: {key} cannot change, expected a new study instead")
    registration = load_registration(places)
    commit = check_clean(places.root)
    path = places.amendment(len(registration.digests))
    values = {**registration.protocol.to_json(), **changes}
    protocol: Protocol = validate_protocol(values, path.name)
    manifest = build_manifest(protocol, places.root)
    check_attributes(places.root, [*manifest["files"], places.shown(path)])
    content = canonical(
        {
            "changes": {key: protocol.to_json()[key] for key in changes},
            "commit": commit,
            "manifest": manifest,
            "number": len(registration.digests),
            "parent": registration.head,
            "planned": describe_plan(check_fresh(protocol, check_plan(protocol))),
            "reason": reason,
            "records": count_records(places),
            "schema": 1,
            "seen": seen,
        },
        "the amendment",
    )
    write_frozen(path, content)
    return path


def count_records(places: Places) -> int:
    """Return how many records there are, whole lines of all shards."""
    return sum(read_chain_bytes(path).count(b"\n") for path in places.record_files())


def amended_after_data(registration: Registration) -> list[str]:
    """Return the names of amendments that were made when records existed already.

    By what they say, and by the records: one that carries an earlier digest was there before.
    """
    places, paths = registration.places, registration.places.amendments()
    if not paths:
        return []
    order = {digest: number for number, digest in enumerate(registration.digests)}
    carried = {
        json.loads(line)["protocol"]
        for path in places.record_files()
        for line in read_chain_bytes(path).splitlines()
    }
    first = min((order.get(digest, 0) for digest in carried), default=len(paths))
    return [
        path.name
        for number, path in enumerate(paths, 1)
        if number > first or read_canonical(path)["records"] > 0
    ]
