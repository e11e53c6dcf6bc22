"""Every tampering turns the item that is there for it, and none before it; the message says where.

Tamperings go from a flipped byte to what the owner of a local authority can do: write chains, seals
and tokens anew. The last item that can see such a forgery is the one that must.
"""

import hashlib
import json
import re
import shutil
import time

import pytest
from forging import (
    bodies,
    edit_results,
    forge_protocol,
    forge_records,
    lines,
    read,
    replace,
    reseal_as,
    restamp,
    write_with_digest,
)
from toy_repository import commit

from replicata.preregistration.analysis import analyze
from replicata.preregistration.anchor import record_anchor
from replicata.preregistration.audit import audit
from replicata.preregistration.authority import LocalAuthority
from replicata.preregistration.canonical import canonical
from replicata.preregistration.collect import collect
from replicata.preregistration.deviations import Deviation, deviate
from replicata.preregistration.places import token_path
from replicata.preregistration.registration import digest_path, load_registration
from replicata.preregistration.seal import seal
from replicata.preregistration.timestamp import query_path, stamp_file

OTHER = "ab" * 32


def swap(records, a, b):
    records[a], records[b] = records[b], records[a]


def swap_files(a, b):
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def rewrite_lines(path, edit):
    kept = lines(path)
    path.write_bytes(b"".join(edit(kept) or kept))


def amendment(places, **values):
    registration = load_registration(places)
    frozen = read(places.frozen)
    base = {
        "changes": {},
        "commit": frozen["commit"],
        "manifest": frozen["manifest"],
        "number": 1,
        "parent": registration.head,
        "planned": frozen["planned"],
        "reason": "r",
        "records": 0,
        "schema": 1,
        "seen": "s",
    }
    return canonical({**base, **values})


def with_double_key(places):
    content = places.frozen.read_bytes()
    write_with_digest(places.frozen, content[:-1] + b',"schema":1}')


def lone_amendment_2(places):
    write_with_digest(places.amendment(2), amendment(places, number=2))


def edited_amendment(places):
    write_with_digest(places.amendment(1), amendment(places))
    replace(places.amendment(1), b'"reason":"r"', b'"reason":"R"')


def other_authority(places):
    shutil.rmtree(places.protocol_dir / ".authority")
    return LocalAuthority(places.protocol_dir / ".authority").create()


def token_of_another_root(places):
    roots = places.roots.read_bytes()
    places.roots.write_bytes(other_authority(places))
    for suffix in (places.frozen, places.seal):
        query_path(suffix).unlink()
        token_path(suffix).unlink()
    stamp_file(load_registration(places), places.frozen)
    stamp_file(load_registration(places), places.seal)
    places.roots.write_bytes(roots)


def other_nonce(places):
    reply = token_path(places.frozen).read_bytes()
    restamp(places, places.frozen)
    token_path(places.frozen).write_bytes(reply)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def field(name, value, kind="answer", nth=0):
    def edit(records):
        found = [record for record in records if record["kind"] == kind]
        found[nth][name] = value

    return edit


def response(name, value, nth=0):
    def edit(records):
        records[nth]["response"][name] = value

    return edit


def late_last(records):
    records[-1]["t_utc"] = "2999-01-01T00:00:00.000000Z"


def drop_cell(records):
    return [record for record in records if record["cell"] != "w2.choice"]


def seal_of(edit):
    def tamper(places):
        seal = read(places.seal)
        edit(seal)
        reseal_as(places, seal)

    return tamper


def move_cell(places):
    moved = bodies(places.shard_path("s1"))[-2:]
    forge_records(places, "s1", lambda records: records[:-2])
    forge_records(places, "s0", lambda records: [*records, *({**r, "shard": "s0"} for r in moved)])


def double_key_record(places):
    path = places.shard_path("s0")
    first = json.loads(lines(path)[0])
    del first["hash"]
    body = canonical(first)[:-1] + b',"zz":1,"zz":2}'
    digest = hashlib.sha256(body).hexdigest().encode()
    rewrite_lines(path, lambda kept: [body[:-1] + b',"hash":"' + digest + b'"}\n', *kept[1:]])


def listed_then(edit):
    def tamper(places):
        for name in ("first", "second"):
            deviate(places, Deviation(name, "y", "today", True, ("c1",)))
        places.results_json.unlink()
        analyze(places)
        rewrite_lines(places.deviations, edit)

    return tamper


def rewritten_deviations(places):
    deviate(places, Deviation("x", "y", "today", True, ("c1",)))
    places.results_json.unlink()
    analyze(places)
    places.deviations.write_bytes(b"")
    deviate(places, Deviation("harmless", "y", "today", False, ("c1",)))


def consistent_response(places):
    """Change a response and all that follows from it: only asking again can tell."""

    def edit(records):
        last = records[-1]
        last["response"]["tool"] = "better" if last["outcome"] else "worse"
        last["outcome"] = 1 - last["outcome"]

    forge_records(places, "s1", edit)
    places.results_json.unlink()
    analyze(places)


def late_amendment_called_confirmatory(places):
    """An amendment made when records existed, and a label that does not say so."""
    write_with_digest(places.amendment(1), amendment(places, records=12))
    stamp_file(load_registration(places), places.amendment(1))
    edit_results(places, protocol=load_registration(places).head)


def anchor(**values):
    def tamper(places):
        places.anchor.write_bytes(canonical({**read(places.anchor), **values}))

    return tamper


def protocol(**options):
    def edit(frozen):
        frozen["protocol"]["access"] = "Everything had been seen."

    return lambda places: forge_protocol(places, edit, **options)


def pilot_unit(places):
    """Disclose a unit as a pilot's and run with it all the same, every other trace removed."""

    def edit(frozen):
        frozen["protocol"]["pilot"]["units"] = ["w4"]

    forge_protocol(places, edit)
    shutil.rmtree(places.results_dir)
    places.anchor.unlink()
    commit(places.root)
    record_anchor(places)
    restamp(places, places.frozen)
    collect(places)
    seal(places)
    analyze(places)


def records(edit, shard="s0", reseal=True):
    return lambda places: forge_records(places, shard, edit, reseal)


def results(**values):
    return lambda places: edit_results(places, **values)


def code(places, name):
    return places.root / "code" / "toy_study" / name


def shard_lines(edit, shard="s0"):
    return lambda places: rewrite_lines(places.shard_path(shard), edit)


def nudge(places):
    rate = read(places.results_json)["results"]["c1"]["rate"]
    edit_results(places, results__c1__rate=rate + 1e-9)


def stamped_after_the_fact(places):
    """Stamp anew a protocol that is older than its records; nothing else changes."""
    time.sleep(1.1)
    restamp(places, places.frozen)


TAMPERINGS = {
    # protocol
    "frozen byte": ("A1", lambda p: flip(p.frozen, 40), "frozen.json, line 1"),
    "frozen line end": ("A1", lambda p: p.frozen.write_bytes(p.frozen.read_bytes() + b"\r\n"), ""),
    "frozen gone": ("A1", lambda p: p.frozen.unlink(), "frozen.json"),
    "digest edited": ("A1", lambda p: flip(digest_path(p.frozen), 3), "frozen.json, line 1"),
    "digest gone": ("A1", lambda p: digest_path(p.frozen).unlink(), "frozen.sha256"),
    "amendment edited": ("A1", edited_amendment, "amendment_1.json, line 1"),
    "amendment gap": ("A1", lone_amendment_2, "amendment_2.json"),
    "frozen pretty": (
        "A2",
        lambda p: write_with_digest(p.frozen, json.dumps(read(p.frozen), indent=1).encode()),
        "frozen.json",
    ),
    "frozen double key": ("A2", with_double_key, "frozen.json"),
    "seal pretty": (
        "A2",
        lambda p: p.seal.write_text(json.dumps(read(p.seal), indent=1)),
        "seal.json",
    ),
    "amendment of another parent": (
        "A2",
        lambda p: write_with_digest(p.amendment(1), amendment(p, parent=OTHER)),
        "amendment_1.json",
    ),
    "protocol unfit": (
        "A2",
        lambda p: forge_protocol(p, lambda f: f["protocol"].pop("stopping"), archive=False),
        "frozen.json",
    ),
    # code, archive
    "study edited": (
        "A3",
        lambda p: replace(code(p, "study.py"), b"2 * rate", b"3 * rate"),
        "code/toy_study/study.py",
    ),
    "import edited": (
        "A3",
        lambda p: replace(code(p, "scores.py"), b"len(values)", b"(len(values) + 1)"),
        "code/toy_study/scores.py",
    ),
    "line ends converted": (
        "A3",
        lambda p: p.root.joinpath("data.txt").write_bytes(b"data\r\n"),
        "data.txt",
    ),
    "data gone": ("A3", lambda p: p.root.joinpath("data.txt").unlink(), "data.txt"),
    "archive byte": ("A3", lambda p: flip(p.archive, 60), "archive.zip"),
    "archive gone": ("A3", lambda p: p.archive.unlink(), "archive.zip"),
    "protocol edited, rest kept": (
        "A3",
        protocol(archive=False),
        "archive.zip",
    ),
    # tokens
    "protocol edited, archived": ("A4", protocol(), "frozen.json.tsr"),
    "token byte": ("A4", lambda p: flip(token_path(p.frozen), -3), "frozen.json.tsr"),
    "token of the seal": (
        "A4",
        lambda p: shutil.copy(token_path(p.seal), token_path(p.frozen)),
        "frozen.json.tsr",
    ),
    "token gone": ("A4", lambda p: token_path(p.frozen).unlink(), "frozen.json.tsr"),
    "request gone": ("A4", lambda p: query_path(p.frozen).unlink(), "frozen.json.tsq"),
    "seal's token gone": ("A4", lambda p: token_path(p.seal).unlink(), "seal.json.tsr"),
    "another request": ("A4", other_nonce, "Nonce mismatch"),
    "another root": ("A4", lambda p: p.roots.write_bytes(other_authority(p)), "roots.pem"),
    "token of another root": (
        "A4",
        token_of_another_root,
        "frozen.json.tsr",
    ),
    "seal edited": (
        "A4",
        lambda p: p.seal.write_bytes(p.seal.read_bytes().replace(b'"count":6', b'"count":5')),
        "seal.json.tsr",
    ),
    # time
    "record before the stamp": (
        "A5",
        records(field("t_utc", "2020-01-01T00:00:00.000000Z", nth=2)),
        "s0.jsonl, line 3",
    ),
    "record after the seal": ("A5", records(late_last, "s1"), "seal.json"),
    "analysed before the seal": (
        "A5",
        results(analysed_utc="2020-01-01T00:00:00.000000Z"),
        "results.json",
    ),
    "record without a time": ("A5", records(field("t_utc", 0)), "s0.jsonl, line 1"),
    "stamped after the fact": ("A5", stamped_after_the_fact, "s0.jsonl, line 1"),
    # other anchors
    "OpenTimestamps garbage": (
        "A6",
        lambda p: p.protocol_dir.joinpath("frozen.json.ots").write_bytes(b"x"),
        "frozen.json.ots",
    ),
    "anchor elsewhere": ("A7", anchor(commit="0" * 40), "anchor.json"),
    "anchor of another blob": ("A7", anchor(blob="0" * 40), "anchor.json"),
    # chain
    "record edited": (
        "A8",
        shard_lines(lambda kept: [kept[0].replace(b"lesson", b"Lesson"), *kept[1:]]),
        "s0.jsonl, line 1",
    ),
    "record removed": ("A8", shard_lines(lambda kept: kept[:2] + kept[3:]), "s0.jsonl, line 3"),
    "record repeated": ("A8", shard_lines(lambda kept: kept[:2] + kept[1:]), "s0.jsonl, line 3"),
    "records swapped": ("A8", shard_lines(lambda kept: swap(kept, 1, 2)), "s0.jsonl, line 2"),
    "shards swapped": (
        "A8",
        lambda p: swap_files(p.shard_path("s0"), p.shard_path("s1")),
        "s0.jsonl, line 1",
    ),
    "line torn": ("A8", shard_lines(lambda kept: [*kept, b'{"i":']), "s0.jsonl, line 7"),
    "line empty": ("A8", shard_lines(lambda kept: [kept[0], b"\n", *kept[1:]]), "s0.jsonl, line 2"),
    "line ends in records": (
        "A8",
        shard_lines(lambda kept: [line.replace(b"\n", b"\r\n") for line in kept]),
        "s0.jsonl, line 1",
    ),
    "record's double key": ("A8", double_key_record, "s0.jsonl, line 1"),
    "record misnumbered": ("A8", records(field("force_i", 7, nth=1)), "s0.jsonl, line 2"),
    "shard gone": ("A8", lambda p: p.shard_path("s1").unlink(), "s1.jsonl"),
    # seal
    "last record removed": ("A9", shard_lines(lambda kept: kept[:-1]), "s0.jsonl, line 6"),
    "record appended": (
        "A9",
        records(lambda r: [*r, {**r[-1], "kind": "attempt"}], reseal=False),
        "s0.jsonl, line 7",
    ),
    "chain rewritten": ("A9", records(response("text", "x"), reseal=False), "s0.jsonl, line 6"),
    "seal of fewer": (
        "A9",
        seal_of(lambda seal: seal["shards"]["s0"].update(count=5)),
        "s0.jsonl, line 6",
    ),
    "seal without a shard": ("A9", seal_of(lambda seal: seal["shards"].pop("s1")), "s1.jsonl"),
    "seal with a shard more": (
        "A9",
        seal_of(lambda seal: seal["shards"].update(s2={"count": 0, "head": OTHER})),
        "seal.json",
    ),
    "records file more": (
        "A9",
        lambda p: shutil.copy(p.shard_path("s0"), p.records_dir / "s9.jsonl"),
        "s9.jsonl",
    ),
    # sample
    "second answer": ("A10", records(lambda r: [*r, dict(r[-1])]), "s0.jsonl, line 7"),
    "unplanned cell": ("A10", records(field("cell", "w9.lesson")), "s0.jsonl, line 1"),
    "cell left out": ("A10", records(drop_cell), "s0.jsonl, line 5"),
    "cell moved": ("A10", move_cell, "s0.jsonl, line 7"),
    "unit renamed": ("A10", records(field("unit", "w5")), "s0.jsonl, line 1"),
    "another protocol's record": ("A11", records(field("protocol", OTHER)), "s0.jsonl, line 1"),
    "another model": ("A11", records(field("model", "other")), "s0.jsonl, line 1"),
    "request edited": ("A12", records(field("request", "Hello.")), "s0.jsonl, line 1"),
    "lesson replaced": ("A13", records(response("text", "another lesson")), "s0.jsonl, line 2"),
    "outcome edited": ("A14", records(field("outcome", 5, nth=1)), "s0.jsonl, line 2"),
    "outcome's type": ("A14", records(field("outcome", True, nth=1)), "s0.jsonl, line 2"),
    # results
    "number edited": ("A15", results(results__c1__rate=0.123), "results.json, line"),
    "number in the 9th digit": ("A15", nudge, "results.c1.rate"),
    "verdict edited": ("A15", results(verdicts__c1="splendid"), "results.json, line"),
    "result left out": ("A15", results(results__x1=None), "results.json, line"),
    "result added": ("A15", results(results__c9={"rate": 1}), "results.c9"),
    "results of another seal": ("A15", results(seal=OTHER), "results.json"),
    "exclusion added": ("A16", results(exclusions__w0="odd"), "results.json, line"),
    "missing cells hidden": ("A16", results(missing=3), "results.json, line"),
    "deviations gone": ("A17", lambda p: p.deviations.unlink(), "deviations.jsonl"),
    "deviation edited": (
        "A17",
        listed_then(lambda kept: [kept[0].replace(b"first", b"third"), kept[1]]),
        "deviations.jsonl, line 1",
    ),
    "deviation removed": ("A17", listed_then(lambda kept: kept[:1]), "deviations.jsonl, line 1"),
    "deviations rewritten": ("A17", rewritten_deviations, "deviations.jsonl, line 1"),
    "pilot unit": ("A18", pilot_unit, "s1.jsonl, line 3"),
    "exploratory called confirmatory": (
        "A19",
        results(labels__x1="confirmatory"),
        "results.json, line",
    ),
    "label left out": ("A19", results(labels__x1=None), "results.json, line"),
    "label made up": ("A19", results(label="VERY CONFIRMATORY"), "results.json, line"),
    "late amendment unlabelled": ("A9", late_amendment_called_confirmatory, "seal.json"),
    "response and all that follows": ("A20", consistent_response, "s1.jsonl, line 6"),
}


def test_there_are_enough_of_them():
    assert len(TAMPERINGS) >= 40


@pytest.fixture(scope="module")
def honest(finished):
    """What an honest audit says, to compare with."""
    return {}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_found_where_it_should_be(name, analysed, honest):
    target, tamper, where = TAMPERINGS[name]
    if not honest:
        honest.update({item.id: item.status for item in audit(analysed, replay_share=1.0).items})
        assert "FAIL" not in honest.values()
    tamper(analysed)
    items = audit(analysed, replay_share=1.0).items
    failed = [item for item in items if item.status == "FAIL"]
    shown = "\n".join(map(str, items))
    assert failed, shown
    assert failed[0].id == target, shown
    for item in items[: items.index(failed[0])]:
        assert item.status == honest[item.id], shown
    assert where in failed[0].detail, shown
    assert re.search(r"\w+\.\w+", failed[0].detail), shown


def test_a_forgery_without_a_flaw_is_seen_by_who_knows_the_seal(analysed):
    """Owning the authority, everything can be written anew; not the digest someone else holds."""
    expected = hashlib.sha256(analysed.seal.read_bytes()).hexdigest()
    assert audit(analysed, expected_seal=expected).status("A9") == "PASS"
    consistent_response(analysed)
    result = audit(analysed, expected_seal=expected, replay_share=0.01)
    assert result.status("A9") == "FAIL"
    protocol_digest = hashlib.sha256(analysed.frozen.read_bytes()).hexdigest()
    assert audit(analysed, expected_protocol=protocol_digest).status("A1") == "PASS"
    assert audit(analysed, expected_protocol=OTHER).status("A1") == "FAIL"
