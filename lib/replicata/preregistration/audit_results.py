"""Audit items A15 to A20: what was made of the records."""

import hashlib
import math

from replicata.errors import ResourceError, RunError, VerificationError
from replicata.preregistration.analysis import CONFIRMATORY, compute, label, labels
from replicata.preregistration.auditing import PASS, Context, Needs, Verdict, close, fail, same
from replicata.preregistration.canonical import canonical
from replicata.preregistration.deviations import read_deviations, undeclared
from replicata.preregistration.frozen_code import computed_as_frozen
from replicata.preregistration.manifest import differing_files
from replicata.preregistration.seal import read_seal
from replicata.workflow.files import sha256_bytes


def results(context: Context) -> Verdict:
    """A15."""
    stored = context.results
    context.needs("A9", "A10", "A14")
    if stored["protocol"] != context.registration.head:
        raise VerificationError("results.json: protocol is another one")
    if stored["seal"] != sha256_bytes(context.places.seal.read_bytes()):
        raise VerificationError("results.json: seal is another one")
    if set(stored) != KEYS or stored["study"] != context.registration.protocol.study:
        raise VerificationError("results.json: not the keys, or not the study, of an analysis")
    computed = compute(context.study, context.registration, context.observed)
    _compare(context, computed, stored, "the records give")
    if differing_files(context.registration.manifest, context.places.root):
        frozen = computed_as_frozen(context.registration)
        _compare(context, frozen, stored, "the frozen code gives")
    count = sum(len(values) for values in computed["results"].values())
    return PASS, f"{count} numbers, {len(computed['verdicts'])} verdicts"


KEYS = {"analysed_utc", "deviations", "exclusions", "label", "labels", "missing", "protocol"}
KEYS |= {"results", "schema", "seal", "study", "verdicts"}


def _compare(context: Context, computed: dict, stored: dict, source: str) -> None:
    for key in ("results", "verdicts"):
        where = close(computed[key], stored[key], key)
        if where:
            raise VerificationError(
                f"results.json, line {_line(context, where)}: {where} is not what {source}"
            )


def _line(context: Context, where: str) -> int:
    """Return the line of a dotted key in results.json: the deepest part that is there."""
    lines = context.places.results_json.read_text(encoding="utf-8").splitlines()
    number = 1
    for key in where.split("."):
        found = (i for i, text in enumerate(lines, 1) if i >= number and f'"{key}"' in text)
        number = next(found, number)
    return number


def exclusions(context: Context) -> Verdict:
    """A16."""
    stored = context.results
    context.needs("A10", "A14")
    excluded = dict(context.study.exclude(context.registration, context.observed))
    where = close(excluded, stored["exclusions"], "exclusions")
    if where:
        raise VerificationError(
            f"results.json, line {_line(context, where)}: {where} does not follow the rule"
        )
    missing = sum(item.missing is not None for item in context.observed)
    if stored["missing"] != missing:
        raise VerificationError(
            f"results.json, line {_line(context, 'missing')}: missing is {stored['missing']}, the "
            f"records have {missing}"
        )
    return PASS, f"{len(excluded)} units excluded"


def deviations(context: Context) -> Verdict:
    """A17: the list is intact, and the seal and the results name as much of it as there was."""
    context.needs("A2")
    chain = read_deviations(context.registration)
    heads = [*(record["prev"] for record in chain.records), chain.head]
    references = {}
    if context.places.seal.exists():
        references["seal.json"] = read_seal(context.registration)["deviations"]
    if context.places.results_json.exists():
        references["results.json"] = context.results["deviations"]
    # An analysis counts every deviation that was listed before it.
    if "results.json" in references:
        counted, analysed = references["results.json"]["count"], context.results["analysed_utc"]
        for line, record in enumerate(chain.records[counted:], counted + 1):
            if not record["t_utc"] > analysed:
                raise VerificationError(
                    f"deviations.jsonl, line {line}: listed before the analysis of {analysed}, "
                    "which does not count it"
                )
    for name, reference in references.items():
        count = reference["count"]
        if count >= len(heads) or heads[count] != reference["head"]:
            raise VerificationError(
                f"deviations.jsonl, line {len(chain.records)}: {name} names {count} deviations "
                "that are not the listed ones"
            )
    return PASS, f"{len(chain.records)} deviations"


def pilot(context: Context) -> Verdict:
    """A18."""
    context.needs("A8")
    covers = context.registration.protocol.pilot.covers
    known: dict[str, bool] = {}
    for shard, line, record in context.records():
        unit = record.get("unit")
        if unit is None:
            continue
        if unit not in known:
            known[unit] = covers(unit)
        if known[unit]:
            raise fail(shard, line, f"unit {unit!r} is a pilot unit")
    return PASS, f"{len(known)} units"


def labelled(context: Context) -> Verdict:
    """A19."""
    stored = context.results
    context.needs("A2")
    registered = labels(context.registration)
    where = close(registered, stored["labels"], "labels")
    if where:
        raise VerificationError(
            f"results.json, line {_line(context, where)}: {where} is not the registered status"
        )
    for key in stored["verdicts"]:
        if registered.get(key) != "confirmatory":
            raise VerificationError(
                f"results.json, line {_line(context, f'verdicts.{key}')}: a {registered.get(key)} "
                "result has a verdict"
            )
    # What was changed by a deviation listed after the analysis did not differ when it was made.
    differing = undeclared(context.registration, since=stored["deviations"]["count"])
    deserved = label(context.registration, differing, len(stored["exclusions"]))
    if stored["label"] == CONFIRMATORY != deserved:
        raise VerificationError(
            f"results.json, line {_line(context, 'label')}: called {CONFIRMATORY}, but {deserved}"
        )
    if stored["label"] != CONFIRMATORY and not stored["label"].startswith(f"NOT {CONFIRMATORY}: "):
        raise VerificationError(
            f"results.json, line {_line(context, 'label')}: {stored['label']!r} is no label"
        )
    return PASS, stored["label"]


def replay(context: Context) -> Verdict:
    """A20: a share of the replayable cells, chosen by the records' own digest.

    So whoever makes the records cannot know which ones will be asked again.
    """
    context.needs("A10", "A12")
    ask = context.study.replay
    endpoints = context.registration.protocol.endpoints
    able = [
        entry
        for entry in context.finished()
        if entry[2]["kind"] == "answer" and endpoints[entry[3].endpoint].replayable
    ]
    if ask is None or not able:
        raise Needs("no endpoint can be replayed")
    heads = [shard.chain.head for shard in context.shards.values()]
    able.sort(key=lambda entry: hashlib.sha256(canonical([heads, entry[3].id])).digest())
    chosen = able[: max(1, math.ceil(context.replay_share * len(able)))]
    for shard, line, record, cell in chosen:
        try:
            response = ask(context.registration, cell, record["request"])
        except (ResourceError, RunError) as error:
            raise Needs(f"endpoint {cell.endpoint} does not run here: {error}") from None
        agrees = context.study.agrees or (lambda _, left, right: same(left, right))
        if not agrees(context.registration, response, record["response"]):
            raise fail(shard, line, f"endpoint {cell.endpoint} now answers {cell.id!r} otherwise")
    return PASS, f"{len(chosen)} of {len(able)} cells"
