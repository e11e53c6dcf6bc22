"""Audit items A8 to A14: the records."""

from typing import Any

from replicata.errors import VerificationError
from replicata.preregistration.auditing import FINISHED, PASS, Context, Needs, Verdict, fail, same
from replicata.preregistration.chain import check_end
from replicata.preregistration.places import token_path
from replicata.preregistration.seal import read_seal


def chain_links(context: Context) -> Verdict:
    """A8."""
    context.needs("A2")
    if not context.places.record_files():
        for path in (context.places.seal, context.places.results_json):
            if path.exists():
                raise VerificationError(f"{path.name} is there, and its records are missing")
        raise Needs("no records yet")
    count = sum(len(shard.chain.records) for shard in context.shards.values())
    for shard, line, record in context.records():
        if record["i"] != line - 1:
            raise fail(shard, line, f"the record is numbered {record['i']}, expected {line - 1}")
    return PASS, f"{count} records in {len(context.shards)} shards"


def sealed(context: Context) -> Verdict:
    """A9."""
    context.needs("A8")
    if not context.places.seal.exists():
        for path in (context.places.results_json, token_path(context.places.seal)):
            if path.exists():
                raise VerificationError(f"{path.name} is there, and seal.json is missing")
        raise Needs("not sealed yet")
    seal = read_seal(context.registration, context.expected_seal)
    for name, shard in context.shards.items():
        if name not in seal["shards"]:
            raise VerificationError(f"{shard.shown}: shard {name} is not in the seal")
        entry = seal["shards"][name]
        chain = shard.chain
        check_end(len(chain.records), chain.head, (entry["count"], entry["head"]), shard.shown)
    extra = set(seal["shards"]) - set(context.shards)
    if extra:
        raise VerificationError(f"seal.json: shard {min(extra)} is not in the plan")
    planned = {context.places.shard_path(name).name for name in context.shards}
    for path in sorted(context.places.records_dir.rglob("*")):
        if path.suffix not in (".lock", ".torn") and path.name not in planned:
            raise VerificationError(f"{path.name}: among the records, and not in the seal")
    return PASS, f"{len(context.shards)} shards"


def sample(context: Context) -> Verdict:
    """A10."""
    context.needs("A8")
    cells = context.cells
    seen: dict[str, int] = {}
    missing = 0
    for name, shard in context.shards.items():
        for line, record in enumerate(shard.chain.records, 1):
            if record["kind"] not in FINISHED:
                if record["kind"] not in ("attempt", "recovered"):
                    raise fail(shard, line, f"no record is of kind {record['kind']!r}")
                continue
            cell_id = record["cell"]
            cell = cells.get(cell_id)
            if cell is None:
                raise fail(shard, line, f"cell {cell_id!r} is not planned")
            if cell.shard != name or record["shard"] != name:
                raise fail(shard, line, f"cell {cell_id!r} is planned for shard {cell.shard}")
            if cell_id in seen:
                raise fail(shard, line, f"cell {cell_id!r} has a second answer")
            if cell.unit != record["unit"] or cell.endpoint != record["endpoint"]:
                raise fail(shard, line, f"cell {cell_id!r} is of another unit or endpoint")
            seen[cell_id] = line
            missing += record["kind"] == "missing"
    if len(seen) < len(cells):
        first = next(cell_id for cell_id in cells if cell_id not in seen)
        message = f"{len(cells) - len(seen)} planned cells have no record, the first is {first!r}"
        if not context.places.seal.exists():
            raise Needs(f"still collecting: {message}")
        shard = context.shards[cells[first].shard]
        raise VerificationError(f"{shard.shown}, line {len(shard.chain.records)}: {message}")
    return PASS, f"{len(seen)} cells, {missing} declared missing"


def pins(context: Context) -> Verdict:
    """A11."""
    context.needs("A8")
    registration = context.registration
    order = {digest: number for number, digest in enumerate(registration.digests)}
    endpoints = registration.protocol.endpoints
    for shard in context.shards.values():
        latest = 0
        for line, record in enumerate(shard.chain.records, 1):
            number = order.get(record["protocol"])
            if number is None:
                raise fail(shard, line, "the record carries the digest of another protocol")
            if number < latest:
                raise fail(shard, line, "the record carries a protocol that was amended before")
            latest = number
            if record["kind"] in FINISHED and record["model"] != endpoints[record["endpoint"]].pin:
                raise fail(
                    shard,
                    line,
                    f"model {record['model']} is not the one pinned for {record['endpoint']}",
                )
    return PASS, ""


def _check_requests(context: Context, with_needs: bool) -> int:
    render, registration = context.study.render, context.registration
    responses: dict[str, Any] = {}
    count = 0
    for shard, line, record, cell in context.finished():
        responses[cell.id] = record.get("response")
        if bool(cell.needs) is not with_needs:
            continue
        upstream = {need: responses[need] for need in cell.needs}
        if record["kind"] == "missing" and None in upstream.values():
            continue
        if not same(render(registration, cell, upstream), record["request"]):
            what = "the logged answers render" if with_needs else "the protocol renders"
            raise fail(shard, line, f"the request of cell {cell.id!r} is not the one {what}")
        count += 1
    return count


def requests(context: Context) -> Verdict:
    """A12."""
    context.needs("A10")
    return PASS, f"{_check_requests(context, False)} requests"


def earlier_answers(context: Context) -> Verdict:
    """A13."""
    context.needs("A10")
    if not any(cell.needs for cell in context.cells.values()):
        raise Needs("no cell uses an earlier answer")
    return PASS, f"{_check_requests(context, True)} requests"


def outcomes(context: Context) -> Verdict:
    """A14."""
    context.needs("A10")
    outcome, registration = context.study.outcome, context.registration
    count = 0
    for shard, line, record, cell in context.finished():
        if record["kind"] != "answer":
            continue
        derived = outcome(registration, cell, record["response"])
        if not same(derived, record["outcome"]):
            raise fail(
                shard,
                line,
                f"the outcome of cell {cell.id!r} is {record['outcome']!r}, its "
                f"response gives {derived!r}",
            )
        count += 1
    return PASS, f"{count} outcomes"
