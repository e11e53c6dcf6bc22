"""What a dishonest owner can do: change files, and write chains, seals and tokens anew."""

import hashlib
import json
from datetime import UTC, datetime

from replicata.preregistration.archive import write_archive
from replicata.preregistration.canonical import canonical
from replicata.preregistration.chain import genesis, link
from replicata.preregistration.places import token_path
from replicata.preregistration.registration import digest_path, load_registration
from replicata.preregistration.timestamp import query_path, stamp_file


def now():
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read(path):
    return json.loads(path.read_bytes())


def lines(path):
    return path.read_bytes().splitlines(keepends=True)


def replace(path, old, new):
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def write_with_digest(path, content):
    path.write_bytes(content)
    digest_path(path).write_text(f"{hashlib.sha256(content).hexdigest()}  {path.name}\n")


def restamp(places, path):
    query_path(path).unlink(missing_ok=True)
    token_path(path).unlink(missing_ok=True)
    stamp_file(load_registration(places), path)


def edit_results(places, **values):
    results = read(places.results_json)
    for dotted, value in values.items():
        *parents, key = dotted.split("__")
        target = results
        for parent in parents:
            target = target[parent]
        if value is None:
            del target[key]
        else:
            target[key] = value
    text = json.dumps(results, sort_keys=True, indent=2) + "\n"
    places.results_json.write_text(text)


def bodies(path):
    records = [json.loads(line) for line in lines(path)]
    for record in records:
        del record["hash"]
    return records


def write_chain(path, records, start):
    """Write records as a chain without a flaw, numbered anew unless they say otherwise."""
    head, out = start, b""
    for number, record in enumerate(records):
        record.pop("prev", None)
        line, head = link({**record, "i": record.pop("force_i", number)}, head)
        out += line
    path.write_bytes(out)
    return len(records), head


def forge_records(places, shard, edit, reseal=True):
    """Edit one shard's records, and hide it as well as the owner of a local authority can."""
    registration = load_registration(places)
    path = places.shard_path(shard)
    records = bodies(path)
    records = edit(records) or records
    count, head = write_chain(path, records, genesis(registration.digest, shard))
    if reseal:
        seal = read(places.seal)
        seal["shards"][shard] = {"count": count, "head": head}
        reseal_as(places, seal)


def reseal_as(places, seal):
    places.seal.write_bytes(canonical(seal))
    restamp(places, places.seal)
    digest = hashlib.sha256(places.seal.read_bytes()).hexdigest()
    edit_results(places, seal=digest, analysed_utc=now())


def forge_protocol(places, edit, archive=True):
    """Edit the frozen protocol after the fact, with its digest, and its archive if asked."""
    frozen = read(places.frozen)
    edit(frozen)
    write_with_digest(places.frozen, canonical(frozen))
    if archive:
        write_archive(load_registration(places))
