"""What was done otherwise than planned: an append-only, hash-chained list."""

from dataclasses import dataclass
from typing import Any

from filelock import FileLock

from replicata.errors import UsageError
from replicata.preregistration.chain import Chain, append, genesis, link, read_chain_bytes, verify
from replicata.preregistration.places import Places, require
from replicata.preregistration.records import time_text, utc_now
from replicata.preregistration.registration import Registration, load_registration


@dataclass(frozen=True)
class Deviation:
    """What differed and why, when it was noticed, whether data had been seen, what it affects."""

    what: str
    why: str
    noticed: str
    data_seen: bool
    affects: tuple[str, ...]


def deviate(places: Places, deviation: Deviation) -> str:
    """Append a deviation; return the new head.

    Raises
    ------
    UsageError
        If the study is not frozen yet, or a hypothesis is unknown.
    VerificationError
        If the list so far does not verify.
    """
    require(places, "deviate")
    registration = load_registration(places)
    for hypothesis in deviation.affects:
        if registration.protocol.hypothesis(hypothesis) is None:
            raise UsageError(f"a deviation affects {hypothesis!r}, which the protocol lacks")
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
