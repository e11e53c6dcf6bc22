"""The seal: count and head of every planned shard, stamped before any analysis.

A hash chain cannot see that lines are missing at its end; the seal can. It is worth as much as what
holds its own digest: its timestamp, a commit, or the digest that an auditor was given.
"""

from dataclasses import dataclass
from typing import Any

from replicata.errors import UsageError, VerificationError
from replicata.preregistration.canonical import canonical, read_canonical
from replicata.preregistration.chain import Chain, genesis, read_chain_bytes, verify
from replicata.preregistration.collect import planned_cells
from replicata.preregistration.deviations import read_deviations
from replicata.preregistration.places import Places, require, token_path
from replicata.preregistration.registration import Registration, load_registration
from replicata.preregistration.timestamp import stamp_file
from replicata.workflow.files import atomic_write, sha256_bytes


@dataclass(frozen=True)
class ReadShard:
    """A shard as it lies on the disk, verified: its file's name and its chain."""

    shown: str
    chain: Chain


def read_shards(registration: Registration) -> dict[str, ReadShard]:
    """Return all planned shards, every link verified.

    Raises
    ------
    VerificationError
        At the first link that does not hold, or if a shard has no file.
    """
    shards = {}
    for name in registration.planned["shards"]:
        path = registration.places.shard_path(name)
        chain = verify(read_chain_bytes(path), genesis(registration.digest, name), path.name)
        shards[name] = ReadShard(path.name, chain)
    return shards


def seal(places: Places) -> str:
    """Seal the records; return the digest of the seal.

    Raises
    ------
    UsageError
        If not every planned cell has an answer or is declared missing.
    VerificationError
        If a chain does not hold.
    """
    require(places, "seal")
    registration = load_registration(places)
    _check_complete(registration)
    shards = read_shards(registration)
    deviations = read_deviations(registration)
    content = canonical(
        {
            "deviations": {"count": len(deviations.records), "head": deviations.head},
            "protocol": registration.head,
            "schema": 1,
            "shards": {
                name: {"count": len(shard.chain.records), "head": shard.chain.head}
                for name, shard in shards.items()
            },
        },
        "the seal",
    )
    atomic_write(places.seal, content)
    if token_path(places.frozen).exists():
        stamp_file(registration, places.seal)
    return sha256_bytes(content)


def read_seal(registration: Registration, expected: str | None = None) -> dict[str, Any]:
    """Return the seal, compared with its expected digest if there is one.

    Raises
    ------
    VerificationError
        If it is missing, not canonical, of another protocol, or not the expected one.
    """
    path = registration.places.seal
    value = read_canonical(path)
    digest = sha256_bytes(path.read_bytes())
    if expected is not None and digest != expected:
        raise VerificationError(f"seal.json has the digest {digest}, expected {expected}")
    if value["protocol"] != registration.head:
        raise VerificationError(
            "seal.json names another protocol, or one that was amended after the seal"
        )
    return value


def _check_complete(registration: Registration) -> None:
    finished: set[str] = set()
    for name in registration.planned["shards"]:
        path = registration.places.shard_path(name)
        if not path.exists():
            raise UsageError(f"seal refuses: shard {name} has no records, expected run before seal")
        chain = verify(read_chain_bytes(path), genesis(registration.digest, name), path.name)
        finished |= {r["cell"] for r in chain.records if r["kind"] in ("answer", "missing")}
    open_cells = [cell.id for cell in planned_cells(registration) if cell.id not in finished]
    if open_cells:
        raise UsageError(
            f"seal refuses: {len(open_cells)} planned cells have no record, the first is "
            f"{open_cells[0]!r}"
        )
