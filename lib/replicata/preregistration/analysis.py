"""The locked analysis: from sealed records to labelled results and verdicts.

Its numbers are the same whether or not the code is the frozen one; what they may be called is not.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from replicata.claims.rules import RuleError, evaluate_rule
from replicata.errors import RunError, UsageError
from replicata.preregistration.amendments import amended_after_data
from replicata.preregistration.canonical import canonical
from replicata.preregistration.chain import check_end
from replicata.preregistration.collect import planned_cells
from replicata.preregistration.deviations import read_deviations
from replicata.preregistration.manifest import differing_code
from replicata.preregistration.places import Places, require, token_path
from replicata.preregistration.records import time_text, utc_now
from replicata.preregistration.registration import Registration, load_registration
from replicata.preregistration.seal import ReadShard, read_seal, read_shards
from replicata.preregistration.study import Observation, PlannedCell, Results, Study, load_study
from replicata.workflow.files import atomic_write, pretty_json, sha256_bytes

CONFIRMATORY = "CONFIRMATORY"


def analyze(places: Places, expected_seal: str | None = None) -> dict[str, Any]:
    """Compute the registered results from sealed records and write results.json; return it.

    Raises
    ------
    UsageError
        If the records are not sealed.
    VerificationError
        If a chain, the seal or the deviations do not verify.
    RunError
        If the study returns results that the protocol's rules cannot be applied to.
    """
    require(places, "analyze")
    before = set(sys.modules)
    registration = load_registration(places)
    sealed = read_seal(registration, expected_seal)
    if token_path(places.frozen).exists() and not token_path(places.seal).exists():
        raise UsageError("analyze refuses: seal.json is not stamped, expected stamp before analyze")
    shards = read_shards(registration)
    for name, shard in shards.items():
        entry = sealed["shards"][name]
        check_end(
            len(shard.chain.records), shard.chain.head, (entry["count"], entry["head"]), shard.shown
        )
    study = load_study(registration.protocol.analysis.entry_point)
    observed = observations(planned_cells(registration), shards)
    computed = compute(study, registration, observed)
    deviations = read_deviations(registration)
    results = {
        **computed,
        "analysed_utc": time_text(utc_now()),
        "deviations": {"count": len(deviations.records), "head": deviations.head},
        "label": label(
            registration,
            differing_code(registration.manifest, places.root, before),
            len(computed["exclusions"]),
        ),
        "labels": labels(registration),
        "protocol": registration.head,
        "schema": 1,
        "seal": sha256_bytes(places.seal.read_bytes()),
        "study": registration.protocol.study,
    }
    canonical(results, "the results")
    atomic_write(places.results_json, pretty_json(results))
    return results


def label(registration: Registration, differing: Sequence[str], excluded: int) -> str:
    """Return what the results may be called, given the files that differ and the units left out."""
    reasons = []
    units, share = registration.protocol.sample.units, registration.protocol.exclusions.max_share
    if excluded > share * units:
        reasons.append(f"{excluded} of {units} units excluded, more than {share:.0%}")
    if differing:
        reasons.append(f"code differs from freeze: {', '.join(differing)}")
    late = amended_after_data(registration)
    if late:
        reasons.append(f"amended after data were recorded: {', '.join(late)}")
    if not token_path(registration.places.frozen).exists():
        reasons.append("UNSTAMPED")
    return f"NOT {CONFIRMATORY}: {'; '.join(reasons)}" if reasons else CONFIRMATORY


def labels(registration: Registration) -> dict[str, str]:
    """Return the registered status of every result."""
    return {item.id: item.status for item in registration.protocol.hypotheses}


def observations(
    cells: Sequence[PlannedCell], shards: Mapping[str, ReadShard]
) -> list[Observation]:
    """Return every planned cell with what was recorded of it, in the order of the plan."""
    finished: dict[str, dict[str, Any]] = {}
    for shard in shards.values():
        for record in shard.chain.records:
            if record["kind"] in ("answer", "missing"):
                finished[record["cell"]] = record
    found = []
    for cell in cells:
        record = finished.get(cell.id, {"reason": "no record"})
        found.append(
            Observation(cell, record.get("response"), record.get("outcome"), record.get("reason"))
        )
    return found


def compute(
    study: Study, registration: Registration, observed: Sequence[Observation]
) -> dict[str, Any]:
    """Return exclusions, quantities and verdicts: what the audit computes again.

    Raises
    ------
    RunError
        If a registered result is missing, one is not registered, or a rule cannot be applied.
    """
    excluded = dict(study.exclude(registration, observed))
    analysed = study.analyse(registration, observed, excluded)
    results = {key: dict(values) for key, values in sorted(analysed.items())}
    registered = labels(registration)
    for key in results:
        if key not in registered:
            raise RunError(f"the analysis returns {key!r}, which the protocol does not register")
    for key in registered:
        if key not in results:
            raise RunError(f"the analysis returns no {key!r}, which the protocol registers")
    return {
        "exclusions": excluded,
        "missing": sum(item.missing is not None for item in observed),
        "results": results,
        "verdicts": verdicts(registration, results),
    }


def verdicts(registration: Registration, results: Results) -> dict[str, str]:
    """Apply the frozen decision rules.

    Raises
    ------
    RunError
        If a rule names a quantity that is missing, or supports and contradicts at once.
    """
    found = {}
    for item in registration.protocol.hypotheses:
        if item.rule is None:
            continue
        quantities = {k: v for k, v in results[item.id].items() if v is not None}
        try:
            yes = evaluate_rule(item.rule.supported, quantities)
            no = item.rule.contradicted is not None and evaluate_rule(
                item.rule.contradicted, quantities
            )
        except RuleError as error:
            raise RunError(f"the rule of hypothesis {item.id}: {error}") from None
        if yes and no:
            raise RunError(f"the rule of hypothesis {item.id} supports and contradicts at once")
        found[item.id] = "supported" if yes else "contradicted" if no else "inconclusive"
    return found
