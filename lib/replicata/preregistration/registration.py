"""A frozen protocol with its amendments, as everything after the freeze reads it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicata.errors import VerificationError
from replicata.preregistration.canonical import read_bytes, read_canonical
from replicata.preregistration.manifest import differing_files
from replicata.preregistration.places import Places, token_path
from replicata.preregistration.protocol import Protocol, validate_protocol
from replicata.preregistration.study import PlannedCell
from replicata.workflow.files import digest


@dataclass(frozen=True)
class Registration:
    """What is registered.

    Attributes
    ----------
    places
        The study's files.
    protocol
        The protocol in force: the frozen one with all amendments applied.
    digests
        SHA-256 of frozen.json, then of each amendment; records carry the last.
    manifest, planned
        Those in force.
    roots_sha256
        Digest of the timestamp authority's root certificates.
    token_sha256
        Digest of the token of frozen.json, or None.
    """

    places: Places
    protocol: Protocol
    digests: tuple[str, ...]
    manifest: dict[str, Any]
    planned: dict[str, Any]
    roots_sha256: str
    token_sha256: str | None

    @property
    def digest(self) -> str:
        """The digest of the frozen protocol."""
        return self.digests[0]

    @property
    def head(self) -> str:
        """The digest of the last amendment, or of the protocol: what new records carry."""
        return self.digests[-1]

    def seed(self, unit: str) -> int:
        """Return the seed of a unit, uniform over [0, 2^64).

        By the rule ``late_bound`` it depends on the timestamp token: SHA-256 of protocol digest,
        token digest, global seed and unit; so no unit's content exists before the stamp.

        Raises
        ------
        VerificationError
            If seeds are late-bound and there is no token.
        """
        parts = [self.digest, str(self.protocol.seeds.global_seed), unit]
        if self.protocol.seeds.rule == "late_bound":
            if self.token_sha256 is None:
                raise VerificationError("seeds are late-bound and frozen.json has no token yet")
            parts.insert(1, self.token_sha256)
        return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:8], "big")


def describe_plan(cells: Sequence[PlannedCell]) -> dict[str, Any]:
    """Return count, digest and shards of a plan: what a freeze records of it."""
    shards: dict[str, int] = {}
    for cell in cells:
        shards[cell.shard] = shards.get(cell.shard, 0) + 1
    return {
        "count": len(cells),
        "sha256": digest([cell.to_json() for cell in cells]),
        "shards": shards,
    }


def digest_path(path: Path) -> Path:
    """Return where the digest of a frozen file lies."""
    return path.with_suffix(".sha256")


def check_digest(path: Path) -> str:
    """Return the SHA-256 of a frozen file after comparing it with the recorded one.

    Raises
    ------
    VerificationError
        If they differ or one of the files is missing.
    """
    actual = hashlib.sha256(read_bytes(path)).hexdigest()
    recorded = read_bytes(digest_path(path)).decode("utf-8", "replace")
    if recorded != f"{actual}  {path.name}\n":
        raise VerificationError(
            f"{path.name}, line 1: its SHA-256 is {actual}, {digest_path(path).name} says "
            f"{recorded.split(' ')[0]}"
        )
    return actual


def load_registration(places: Places) -> Registration:
    """Read the frozen protocol and its amendments, checking digests, form and lineage.

    Raises
    ------
    VerificationError
        If a file is missing, changed, not canonical or names another parent.
    UsageError
        If what they hold is no protocol.
    """
    digests = [check_digest(places.frozen)]
    frozen = read_canonical(places.frozen)
    values, manifest, planned = frozen["protocol"], frozen["manifest"], frozen["planned"]
    for path in places.amendments():
        checked, amendment = check_digest(path), read_canonical(path)
        if amendment["parent"] != digests[-1]:
            raise VerificationError(
                f"{path.name} names the parent {amendment['parent'][:12]}, expected "
                f"{digests[-1][:12]}"
            )
        values = {**values, **amendment["changes"]}
        manifest, planned = amendment["manifest"], amendment["planned"]
        digests.append(checked)
    token = token_path(places.frozen)
    return Registration(
        places=places,
        protocol=validate_protocol(values, places.frozen.name),
        digests=tuple(digests),
        manifest=manifest,
        planned=planned,
        roots_sha256=frozen["roots_sha256"],
        token_sha256=hashlib.sha256(token.read_bytes()).hexdigest() if token.exists() else None,
    )


def check_unchanged(registration: Registration) -> None:
    """Check again, before collecting, that nothing frozen has changed on the disk.

    Raises
    ------
    VerificationError
        If the protocol, an amendment or a file of the manifest has.
    """
    now = load_registration(registration.places)
    if now.digests != registration.digests:
        raise VerificationError("the protocol has changed since this run started")
    differing = differing_files(registration.manifest, registration.places.root)
    if differing:
        raise VerificationError(f"{', '.join(differing)}: other than in the frozen manifest")
