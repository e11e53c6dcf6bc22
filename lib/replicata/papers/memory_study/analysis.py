"""From the cells' rows to the evidence for each claim, by the registered analysis (spec 2).

Numbers come from ``results.registered_results``, the function that the frozen protocol names, so a
claim's evidence and the registered results are the same where the rows are the sealed records.
"""

from collections.abc import Callable
from fractions import Fraction

import pandas as pd

from replicata.claims.evidence import Evidence
from replicata.papers.memory_study.experiment import Params
from replicata.papers.memory_study.method import Arm, Choice, Choices, Contrasts, Values
from replicata.papers.memory_study.results import CONTROLS, Quantities, registered_results
from replicata.statistics.power import minimal_detectable_effect

SCALE_NOTE = (
    "Guided lessons: the model fills in good or bad, the frame turns that into advice. Verdicts "
    "are about this endpoint, SmolLM2-135M-Instruct (de-quantised from 4 bits), and never about "
    "the paper's eleven."
)
NO_SIZE = "the decision rests on more than one number, so no single effect size can be given"


def choices_of(rows: pd.DataFrame) -> list[Choice]:
    """Return the choices in the rows; worlds with a missing answer are left out."""
    lost = set(rows.loc[rows["metric"] == "missing", "unit"])
    made = rows[(rows["phase"] == "choice") & ~rows["unit"].isin(lost)]
    keys = ["unit", "endpoint", "scenario", "log", "outcome", "arm"]
    table = made.pivot(index=keys, columns="metric", values="value")
    return [
        Choice(
            world,
            Arm(endpoint, scenario, log, outcome, memory),
            Fraction(worse),
            float(p_worse),
        )
        for (world, endpoint, scenario, log, outcome, memory), worse, p_worse in zip(
            table.index, table["worse"], table["p_worse"], strict=True
        )
    ]


def real_endpoints(rows: pd.DataFrame) -> list[str]:
    """Return the endpoints that are models, in the order of the rows."""
    return [name for name in rows["endpoint"].unique() if name not in CONTROLS]


def results_of(rows: pd.DataFrame, params: Params) -> dict[str, Quantities]:
    """Return the registered results of the rows."""
    return registered_results(choices_of(rows), {}, real_endpoints(rows), params.seed)


def _evidence(
    found: Quantities, unit: str, values: Values, notes: list[str], test: str | None = None
) -> Evidence:
    """Evidence of a contrast with plus-one bounds; ``values`` are what its spread comes from."""
    size = minimal_detectable_effect([float(v) for v in values.values()], alternative="greater")
    return Evidence(
        quantities={key: value for key, value in found.items() if value is not None},
        estimate_unit=unit,
        interval=(float(found["lower"]), float(found["upper"])),
        interval_kind="90 %: two one-sided 95 % plus-one t bounds over worlds",
        p_value=float(found["p_adjusted"]),
        smallest_p=float(found["smallest_p"]),
        test=test or "exact sign flips over worlds, one-sided",
        n=int(found["n"]),
        n_unit="worlds",
        mde=size.effect,
        no_mde=size.reason,
        notes=notes,
        scale_note=SCALE_NOTE,
    )


def _at(rows: pd.DataFrame, **where: str) -> Contrasts:
    return Contrasts(Choices(choices_of(rows)), real_endpoints(rows)[0], **where)


def _rate(values: Values) -> str:
    return f"{float(sum(values.values()) / len(values)):.3f}"


def _rates(at: Contrasts, *memories: str) -> str:
    cells = [
        f"{memory}: {_rate(at.y('F', memory))} / {_rate(at.y('S', memory))}"
        for memory in memories
        if at.y("F", memory)
    ]
    return f"Worse-tool rates after failure / success: {', '.join(cells)}."


def _verdicts(rows: pd.DataFrame, writer: str) -> str:
    """Say how often lessons of one way of writing call the better tool a bad choice."""
    made = rows[
        rows["metric"].str.startswith("says_")
        & (rows["endpoint"] == real_endpoints(rows)[0])
        & (rows["arm"] == writer)
        & (rows["scenario"] == "unlucky")
        & (rows["log"] == "indep")
    ]
    bad = (made["metric"] == "says_bad").groupby(made["outcome"]).mean()
    return (
        f'Lessons ({writer}) that say "bad" after failure / success: '
        + " / ".join(f"{bad[outcome]:.3f}" for outcome in "FS")
        + "."
    )


def _assay(found: dict[str, Quantities]) -> str:
    assay = found["assay"]
    return (
        f"Assay: control_gullible {assay['gullible']:+.3f} (p {assay['gullible_p']:.2g}; true "
        f"0.116), control_ideal {assay['ideal']:+.3f} (upper bound {assay['ideal_upper']:.3f}); "
        f"{'passed' if assay['passed'] else 'NOT passed'}."
    )


def carry(rows: pd.DataFrame, params: Params) -> Evidence:
    """c1: the own lesson against the irrelevant memory after a chance failure."""
    found, at = results_of(rows, params), _at(rows)
    c1, read = found["c1"], found["read"]
    return _evidence(
        c1,
        "difference in worse-tool rate",
        at.carry(),
        [
            _rates(at, "own", "irr", "opp", "instr", "scr"),
            f"Reading link (scripted lesson, interaction): {read['estimate']:+.3f}, lower bound "
            f"{read['lower']:+.3f}.",
            f"Swap (own against opposite lesson): {c1['swap']:+.3f}. Percentile bootstrap upper "
            f"bound: {c1['bootstrap_upper']:.3f}.",
            _assay(found),
        ],
        "exact sign flips over worlds, one-sided, after the gate c3",
    )


def opposite_lesson(rows: pd.DataFrame, params: Params) -> Evidence:
    """c2: equivalence of the success-made lesson and the irrelevant memory."""
    found, at = results_of(rows, params)["c2"], _at(rows)
    return _evidence(
        found,
        "difference in worse-tool rate",
        at.carry("opp"),
        [_rates(at, "opp", "irr"), "Equivalence is two one-sided bounds inside ±0.10."],
        "exact sign flips over worlds, one-sided; shown beside the bounds that decide",
    )


def interaction(rows: pd.DataFrame, params: Params) -> Evidence:
    """c3: outcome by memory with independence stated."""
    found, at = results_of(rows, params), _at(rows)
    return _evidence(
        found["c3"],
        "interaction, difference in worse-tool rate",
        at.interaction(),
        [
            _rates(at, "own", "irr"),
            f"Percentile bootstrap upper bound: {found['c3']['bootstrap_upper']:.3f}.",
            _assay(found),
        ],
    )


def unstated(rows: pd.DataFrame, params: Params) -> Evidence:
    """c4: the interaction without the statement less that with it; descriptive."""
    found = results_of(rows, params)["c4"]
    values = _at(rows).interaction()
    return Evidence(
        quantities={key: float(value or 0.0) for key, value in found.items()},
        estimate_unit="difference of interactions",
        interval=(float(found["low"]), float(found["high"])),
        interval_kind="95 %: two plus-one t bounds at 2.5 % over worlds",
        n=len(values),
        n_unit="worlds",
        notes=[
            f"Interaction {found['unstated']:+.3f} without and {found['stated']:+.3f} with the "
            "statement. Descriptive: no test was registered.",
            _rates(_at(rows, log="unstated"), "own", "irr"),
        ],
        scale_note=SCALE_NOTE,
    )


def lucky(rows: pd.DataFrame, params: Params) -> Evidence:
    """c5: the interaction after a lucky success of the worse tool."""
    found, at = results_of(rows, params), _at(rows, scenario="lucky")
    return _evidence(
        found["c5"],
        "interaction, difference in worse-tool rate",
        at.interaction(),
        [
            _rates(at, "own", "irr", "scr"),
            "A bound below 0.10 is not absence of harm: smaller effects stay possible.",
            _assay(found),
        ],
        "exact sign flips over worlds, one-sided; shown beside the bound that decides",
    )


def _mitigation(rows: pd.DataFrame, params: Params, claim: str, memory: str) -> Evidence:
    found, at = results_of(rows, params)[claim], _at(rows)
    reduction = {w: v - at.carry(memory)[w] for w, v in at.carry().items()}
    parts = (
        f"(i) adjusted p {found['p_adjusted']:.3g}; (ii) carry {found['carry']:+.3f}, "
        f"{'at most' if found['halved'] else 'more than'} half of that without; (iii) its upper "
        f"bound {found['carry_upper']:.3f}; (iv) harm after success {found['harm']:+.3f}, upper "
        f"bound {found['harm_upper']:.3f}."
    )
    return _evidence(
        found,
        "reduction of the worse-tool rate",
        reduction,
        [
            f"Rule H: {parts} It {'holds' if found['passes'] else 'does not hold'} on the "
            f"{found['relevant']} relevant endpoints.",
            _rates(at, "own", memory, "irr"),
            _verdicts(rows, "own"),
            _verdicts(rows, memory),
        ],
        "exact sign flips over worlds, one-sided, after the gates c3 and c1, Holm over c7 and c8",
    )


def note(rows: pd.DataFrame, params: Params) -> Evidence:
    """c7: the decision-quality note."""
    return _mitigation(rows, params, "c7", "note")


def shared_note(rows: pd.DataFrame, params: Params) -> Evidence:
    """c8: one note for both outcomes, with an option that changes nothing."""
    return _mitigation(rows, params, "c8", "shared")


def neither(rows: pd.DataFrame, params: Params) -> Evidence:
    """c9: neither mitigation passes on all relevant endpoints."""
    found = results_of(rows, params)["c9"]
    return Evidence(
        quantities={key: value for key, value in found.items() if value is not None},
        estimate_unit="mitigations that pass",
        n=rows.loc[rows["endpoint"].isin(real_endpoints(rows)), "unit"].nunique(),
        n_unit="worlds",
        no_mde=NO_SIZE,
        notes=[f"{found['relevant']} of our endpoints are relevant: they carry luck over."],
        scale_note=SCALE_NOTE,
    )


def audited(rows: pd.DataFrame, params: Params) -> Evidence:
    """c10: the audit of the registered study."""
    items = rows[rows["metric"] == "audit"]
    clean = items[~items["arm"].str.startswith("tampered ")]
    counts = clean["status"].value_counts().to_dict()
    stamp = clean.loc[clean["arm"] == "A4", "status"].iloc[0]
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    notes = [f"Audit: {told}.", f"The timestamp is {stamp}."]
    altered = items[items["arm"].str.startswith("tampered ")]
    if len(altered):
        caught = ", ".join(altered.loc[altered["status"] == "FAIL", "arm"])
        notes.append(f"After one altered record, FAIL: {caught}.")
    return Evidence(
        quantities={
            "failed": int(counts.get("FAIL", 0)),
            "passed": int(counts.get("PASS", 0)),
            "independent": stamp == "PASS",
        },
        estimate_unit="audit items that fail",
        n=len(clean),
        n_unit="audit items",
        notes=notes,
        scale_note=(
            "A local authority's timestamp proves that the code path works, not the time. No audit "
            "can show that there was only one protocol, or that nothing was run unlogged."
        ),
    )


EVIDENCE: dict[str, Callable[[pd.DataFrame, Params], Evidence]] = {
    "c1": carry,
    "c2": opposite_lesson,
    "c3": interaction,
    "c4": unstated,
    "c5": lucky,
    "c7": note,
    "c8": shared_note,
    "c9": neither,
    "c10": audited,
}
