"""Audit items A1 to A7: the protocol, its time, and where it is anchored."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from replicata.errors import ResourceError, VerificationError
from replicata.preregistration.amendments import FIXED
from replicata.preregistration.anchor import missing_history, verify_anchor
from replicata.preregistration.archive import check_archive
from replicata.preregistration.auditing import PASS, Context, Needs, Verdict
from replicata.preregistration.authority import LABEL
from replicata.preregistration.canonical import read_canonical
from replicata.preregistration.deviations import undeclared
from replicata.preregistration.manifest import differing_files
from replicata.preregistration.opentimestamps import header_root, proof_path, read_proof
from replicata.preregistration.places import token_path
from replicata.preregistration.registration import check_digest
from replicata.preregistration.timestamp import Stamp, verify_stamp


def frozen_digest(context: Context) -> Verdict:
    """A1."""
    places = context.places
    digest = check_digest(places.frozen)
    if context.expected_protocol not in (None, digest):
        raise VerificationError(
            f"frozen.json has the digest {digest}, expected {context.expected_protocol}"
        )
    for path in places.amendments():
        check_digest(path)
    # A gap in the numbers would hide what comes after it.
    known = {path.name for path in places.amendments()}
    extra = {path.name for path in places.protocol_dir.glob("amendment_*.json")} - known
    if extra:
        raise VerificationError(f"{min(extra)}: an amendment before it is missing")
    return PASS, digest


def canonical_form(context: Context) -> Verdict:
    """A2."""
    context.needs("A1")
    count = len(context.registration.digests) - 1
    for number, path in enumerate(context.places.amendments(), 1):
        amendment = read_canonical(path)
        fixed = sorted(set(FIXED) & set(amendment["changes"]))
        if fixed or amendment["number"] != number:
            what = f"changes {fixed[0]}, which cannot change" if fixed else "has another number"
            raise VerificationError(f"{path.name} {what}")
    if context.places.seal.exists():
        read_canonical(context.places.seal)
    return PASS, f"{count} amendments" if count else ""


def manifest_files(context: Context) -> Verdict:
    """A3."""
    context.needs("A2")
    registration = context.registration
    unknown = undeclared(registration)
    if unknown:
        raise VerificationError(f"{', '.join(unknown)}: other than frozen, or missing")
    check_archive(registration)
    changed = differing_files(registration.manifest, context.places.root)
    later = f"; changed since, by a listed deviation: {', '.join(changed)}" if changed else ""
    return PASS, f"{len(registration.manifest['files'])} files{later}"


def _stamped(context: Context) -> list[Path]:
    """Return the files that must have a token by now."""
    places = context.places
    files = [places.frozen, *places.amendments()]
    return [*files, places.seal] if places.seal.exists() else files


def tokens(context: Context) -> Verdict:
    """A4."""
    context.needs("A2")
    registration = context.registration
    if not token_path(context.places.frozen).exists():
        if registration.protocol.allow_unstamped:
            raise Needs("UNSTAMPED, which the protocol allows")
        raise VerificationError("frozen.json.tsr is missing: the protocol is not stamped")
    stamps = [verify_stamp(registration, path) for path in _stamped(context)]
    if all(stamp.independent for stamp in stamps):
        return PASS, f"{len(stamps)} tokens"
    return "NOT INDEPENDENT", f"{len(stamps)} tokens; {LABEL}"


def time_order(context: Context) -> Verdict:
    """A5: each record after the stamp of what it was made under, and before the seal's."""
    context.needs("A4")
    places, registration = context.places, context.registration
    if not places.record_files():
        raise Needs("no records yet")
    documents = [places.frozen, *places.amendments()]
    stamps = [verify_stamp(registration, path) for path in documents]
    limits = dict(zip(registration.digests, stamps, strict=True))
    texts = {digest: _text(stamp.latest) for digest, stamp in limits.items()}
    first, last = "", ""
    for shown, line, time, digest in _times(context):
        # Under a digest that is not registered (A11), the protocol's own stamp is the limit.
        limit = texts.get(digest, texts[registration.digest])
        if not isinstance(time, str) or time <= limit:
            raise VerificationError(
                f"{shown}, line {line}: the record's time {time} is not after the stamp, {limit}"
            )
        first, last = min(first or time, time), max(last, time)
    if places.seal.exists():
        _check_seal_time(verify_stamp(registration, places.seal), last, context)
    return PASS, f"stamped {_text(stamps[0].time)}, first record {first}"


def _times(context: Context) -> Iterator[tuple[str, int, Any, Any]]:
    """Yield file, line, time and protocol digest of every record, also of a broken chain."""
    try:
        for shard, line, record in context.records():
            yield shard.shown, line, record["t_utc"], record["protocol"]
    except VerificationError:
        for shown, line, record in context.lines():
            yield shown, line, record.get("t_utc"), record.get("protocol")


def _check_seal_time(stamp: Stamp, last: str, context: Context) -> None:
    # Authorities that count whole seconds cut off the rest of theirs.
    slack = timedelta(seconds=1) if stamp.time.microsecond == 0 else timedelta()
    if last > _text(stamp.latest + slack):
        raise VerificationError(
            f"seal.json is stamped {_text(stamp.time)}, before the last record at {last}"
        )
    if context.places.results_json.exists():
        analysed = context.results["analysed_utc"]
        if analysed < _text(stamp.time):
            raise VerificationError(
                f"results.json is of {analysed}, before the seal's stamp of {_text(stamp.time)}"
            )


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def ots(context: Context) -> Verdict:
    """A6."""
    context.needs("A1")
    frozen = context.places.frozen
    if not proof_path(frozen).exists():
        raise Needs("no OpenTimestamps proof")
    try:
        proof = read_proof(frozen)
    except ResourceError as error:
        raise Needs(str(error)) from None
    if not proof.blocks:
        return "PENDING", f"at {', '.join(proof.calendars) or 'no calendar'}"
    for height, root in proof.blocks.items():
        if height not in context.block_headers:
            continue
        actual = header_root(context.block_headers[height])
        if actual != root:
            raise VerificationError(
                f"frozen.json.ots: block {height} has the Merkle root {actual}, the proof {root}"
            )
        return PASS, f"before block {height}"
    height = min(proof.blocks)
    return "PENDING", f"attested by block {height}; give that block's header to check it"


def git_anchor(context: Context) -> Verdict:
    """A7."""
    context.needs("A1")
    if not context.places.anchor.exists():
        raise Needs("no commit was recorded")
    reason = missing_history(context.places.root)
    if reason is not None:
        raise Needs(reason)
    commit = verify_anchor(context.places)
    return PASS, f"commit {commit[:12]}, a weak anchor: its author controls its date"
