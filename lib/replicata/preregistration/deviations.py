"""What was done otherwise than planned: an append-only, hash-chained list."""

from dataclasses import dataclass
from typing import Any

from filelock import FileLock

from replicata.errors import UsageError
from replicata.preregistration.chain import Chain, append, genesis, link, read_chain_bytes, verify
from replicata.preregistration.manifest import differing_files, file_digest
from replicata.preregistration.places import Places, require
from replicata.preregistration.records import time_text, utc_now
from replicata.preregistration.registration import Registration, load_registration


@dataclass(frozen=True)
class Deviation:
    """What differed and why, when it was noticed, whether data had been seen, what it affects.

    ``files`` are frozen files that were changed after the analysis, such as code that a later study
    shares: the list records what they are now, and the audit computes the results with them again.
    """

    what: str
    why: str
    noticed: str
    data_seen: bool
    affects: tuple[str, ...]
    files: tuple[str, ...] = ()


def deviate(places: Places, deviation: Deviation) -> str:
    """Append a deviation; return the new head.

    Raises
    ------
    UsageError
        If the study is not frozen yet, a hypothesis is unknown, or a file is not in the manifest.
    VerificationError
        If the list so far does not verify.
    """
    require(places, "deviate")
    registration = load_registration(places)
    for hypothesis in deviation.affects:
        if registration.protocol.hypothesis(hypothesis) is None:
            raise UsageError(f"a deviation affects {hypothesis!r}, which the protocol lacks")
    for name in deviation.files:
        if name not in registration.manifest["files"]:
            raise UsageError(f"a deviation names {name!r}, which is not in the frozen manifest")
    # Beside the records rather than in the protocol's directory, which is committed.
    places.results_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(places.results_dir / "deviations.lock"):
        chain = read_deviations(registration)
        record: dict[str, Any] = {
            "i": len(chain.records),
            "what": deviation.what,
            "why": deviation.why,
            "noticed": deviation.noticed,
            "data_seen": deviation.data_seen,
            "affects": list(deviation.affects),
            "files": {name: file_digest(places.root / name) for name in deviation.files},
            "t_utc": time_text(utc_now()),
        }
        line, head = link(record, chain.head)
        with places.deviations.open("ab") as stream:
            append(stream, line)
    return head


def read_deviations(registration: Registration) -> Chain:
    """Return the verified list of deviations.

    Raises
    ------
    VerificationError
        If the file is missing or a link does not hold.
    """
    path = registration.places.deviations
    return verify(read_chain_bytes(path), genesis(registration.digest, "deviations"), path.name)


def undeclared(registration: Registration, since: int = 0) -> list[str]:
    """Return the manifest's files that differ now, without a deviation that names what they are.

    Parameters
    ----------
    registration
        The study.
    since
        Count only deviations from this one on.

    Raises
    ------
    VerificationError
        If the list of deviations does not verify.
    """
    root = registration.places.root
    differing = differing_files(registration.manifest, root)
    if not differing:
        return []
    declared: dict[str, str] = {}
    for record in read_deviations(registration).records[since:]:
        declared |= record.get("files", {})
    return [
        name
        for name in differing
        if not (root / name).exists() or declared.get(name) != file_digest(root / name)
    ]
