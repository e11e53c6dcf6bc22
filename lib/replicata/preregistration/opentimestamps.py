"""OpenTimestamps proofs (optional): pending until a Bitcoin block attests them.

A proof shows that a file existed *before* a block. Until the calendars have put it into one, and
it has been upgraded (``ots upgrade``), it shows nothing, and is reported as pending. To check a
block's attestation without trusting anyone takes that block's header, which an auditor gets from a
Bitcoin node. Needs the package ``opentimestamps``.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicata.errors import ResourceError, VerificationError


@dataclass(frozen=True)
class OtsProof:
    """What a proof holds: blocks by height with the Merkle root they must have, and calendars."""

    blocks: dict[int, str]
    calendars: tuple[str, ...]


def proof_path(path: Path) -> Path:
    """Return where the proof of a file lies."""
    return path.with_name(path.name + ".ots")


def read_proof(path: Path) -> OtsProof:
    """Read the proof beside a file and check that it is a proof of that file.

    Raises
    ------
    ResourceError
        If the package is not installed.
    VerificationError
        If the proof cannot be read or is of another file.
    """
    try:
        from opentimestamps.core.notary import (
            BitcoinBlockHeaderAttestation,
            PendingAttestation,
        )
        from opentimestamps.core.serialize import BytesDeserializationContext, DeserializationError
        from opentimestamps.core.timestamp import DetachedTimestampFile
    except ImportError:
        raise ResourceError("the package opentimestamps is not installed") from None
    proof = proof_path(path)
    try:
        context: Any = BytesDeserializationContext(proof.read_bytes())
        detached = DetachedTimestampFile.deserialize(context)
    except (DeserializationError, ValueError, OSError) as error:
        raise VerificationError(f"{proof.name} cannot be read: {error}") from None
    if detached.file_digest != hashlib.sha256(path.read_bytes()).digest():
        raise VerificationError(f"{proof.name} is a proof of another file than {path.name}")
    blocks, calendars = {}, []
    for message, attestation in detached.timestamp.all_attestations():
        if isinstance(attestation, BitcoinBlockHeaderAttestation):
            blocks[attestation.height] = message[::-1].hex()
        elif isinstance(attestation, PendingAttestation):
            calendars.append(attestation.uri)
    return OtsProof(blocks, tuple(sorted(calendars)))


def header_root(header: str) -> str:
    """Return the Merkle root that an 80-byte block header (hex) commits to, as nodes print it.

    Raises
    ------
    VerificationError
        If it is no such header.
    """
    try:
        raw = bytes.fromhex(header)
    except ValueError:
        raw = b""
    if len(raw) != 80:
        raise VerificationError(f"block header {header[:16]!r}... is not 80 bytes of hex")
    return raw[36:68][::-1].hex()
