"""From the cells' rows to the evidence for each claim (spec 7). The unit is the question.

Rows carry ``part``: ``main`` (all arms, K candidates, the majority selector), ``selector`` (other
selectors), ``placebo`` (one row per draw), ``k`` and ``budget`` (sweeps), ``consumable`` and
``candidate`` (raw records), ``cell`` (about a cell as a whole).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from replicata.claims.evidence import Evidence
from replicata.papers.cacc.experiment import FamilyParams, Params
from replicata.statistics.multiplicity import holm
from replicata.statistics.paired import McNemarResult, mcnemar_exact
from replicata.statistics.power import minimal_detectable_effect
from replicata.statistics.proportions import binomial_test
from replicata.statistics.resampling import cluster_bootstrap

ALPHA = 0.05
#: A tax below this share of questions counts as none (c1).
TAX_MARGIN = 0.02
#: Accuracy that gains less than this per doubling of K is flat (c9).
FLAT = 0.02
#: The abstract's 25.8 % on GPQA Diamond, as a count.
PAPER_RIGHT, PAPER_QUESTIONS = 51, 198
SCALE_NOTE = (
    "SmolLM2-135M-Instruct, de-quantised from 4 bits, on generated questions: a small-scale "
    "analogue, not the paper's models or benchmarks."
)


def values(
    cells: pd.DataFrame, metric: str, family: str, arm: str, interface: str, part: str = "main"
) -> pd.Series:
    """Return one metric by question, averaged over proposers (and over draws, of the placebo).

    Raises
    ------
    ValueError
        If there is no such row.
    """
    rows = cells[
        (cells["metric"] == metric)
        & (cells["part"] == part)
        & (cells["family"] == family)
        & (cells["arm"] == arm)
        & (cells["interface"] == interface)
    ]
    if rows.empty:
        raise ValueError(f"no rows of {metric} for {family}, {arm}, {interface}, {part}")
    return rows.groupby("unit")["value"].mean().sort_index()


def mcnemar(before: pd.Series, after: pd.Series) -> McNemarResult:
    """Test that two arms answer the same questions equally well; b is ``after``."""
    if not before.index.equals(after.index):
        raise ValueError("the two arms have different questions")
    # Several proposers: a question counts by whether most of them answered it.
    a, b = before.to_numpy() > 0.5, after.to_numpy() > 0.5
    return mcnemar_exact(int((a & ~b).sum()), int((b & ~a).sum()))


def fixed_interface(params: Params, family: str) -> str:
    """Return the interface that a family's fixed selector reads through: its first."""
    return _family(params, family).interfaces[0]


def _family(params: Params, family: str) -> FamilyParams:
    return next(one for one in params.families if one.id == family)


def _numeric(params: Params) -> list[str]:
    """Return the families whose answers are numbers or expressions."""
    return [f.id for f in params.families if f.interfaces[0] in ("hash", "boxed")
            and f.id not in ("mcq4", "mcq10")]  # fmt: skip


def _mean(data: pd.Series, params: Params, confidence: float = 0.95) -> tuple[float, float, float]:
    result = cluster_bootstrap(
        data.to_numpy(), seed=params.seed, n_resamples=params.bootstrap, confidence=confidence
    )
    return result.estimate, *result.interval


def _detectable(difference: pd.Series, smallest_p: float | None = None) -> dict[str, Any]:
    """Return the smallest effect that would have been found, or why there is none."""
    found = minimal_detectable_effect(
        difference.to_numpy(), alternative="two-sided", smallest_p=smallest_p
    )
    return {"mde": found.effect, "no_mde": found.reason}


def _points(value: float) -> str:
    return f"{100 * value:+.1f} points"


# ---------------------------------------------------------------------------------------------
# c1, c2: the tax and the identities


def interface_tax(cells: pd.DataFrame, params: Params) -> Evidence:
    """c1: how many questions have a right answer that the selector cannot use."""
    families = _numeric(params)
    found = {}
    for family in families:
        interface = fixed_interface(params, family)
        raw = values(cells, "raw", family, "identity", interface)
        found[family] = _mean(raw - values(cells, "sel", family, "identity", interface), params)
    first = families[0]
    notes = [
        f"{family}: tau {estimate:.3f} (95 % interval {low:.3f} to {high:.3f})."
        for family, (estimate, low, high) in found.items()
    ]
    notes += [
        f"{family}: any number of the text counts as an answer: coverage "
        f"{_any_number(cells, family):.3f} (upper bound, not in the rule)."
        for family in families
    ]
    n = sum(values(cells, "raw", f, "identity", fixed_interface(params, f)).size for f in families)
    return Evidence(
        quantities={
            "tau": found[first][0],
            "families": len(families),
            "families_above": sum(low > TAX_MARGIN for _, low, _ in found.values()),
            "families_below": sum(high < TAX_MARGIN for _, _, high in found.values()),
        },
        estimate_unit=f"share of questions ({first})",
        interval=found[first][1:],
        interval_kind="95 % cluster bootstrap over questions",
        n=n,
        n_unit="questions",
        notes=notes,
        scale_note=SCALE_NOTE,
    )


def _any_number(cells: pd.DataFrame, family: str) -> float:
    rows = cells[(cells["metric"] == "any_number") & (cells["family"] == family)]
    return float(rows["value"].mean())


def identities(cells: pd.DataFrame, params: Params) -> Evidence:
    """c2: the pointwise order and the product on every arm."""
    keys = ["proposer", "family", "interface", "part", "arm", "k", "budget", "draw"]
    rows = cells[
        cells["metric"].isin(["raw", "sel", "acc"]) & ~cells["part"].isin(["selector", "k"])
    ]
    # Unused columns are NaN, which would drop their rows from the groups.
    rows = rows.fillna({"budget": -1.0, "draw": -1.0})
    wide = rows.pivot_table(
        index=[*keys, "unit"], columns="metric", values="value", dropna=True, sort=False
    )
    violations = int(((wide["raw"] < wide["sel"]) | (wide["sel"] < wide["acc"])).sum())
    arms = wide.groupby(keys).mean()
    covered = arms[arms["sel"] > 0]
    kappa = covered["acc"] / covered["sel"]
    product = covered["raw"] * (covered["sel"] / covered["raw"]) * kappa
    tau, sigma = arms["raw"] - arms["sel"], arms["sel"] - arms["acc"]
    error = max(
        float((product - covered["acc"]).abs().max()) if len(covered) else 0.0,
        float((arms["raw"] - arms["acc"] - tau - sigma).abs().max()),
    )
    return Evidence(
        quantities={"violations": violations, "product_error": error},
        estimate_unit="outcomes that break raw >= sel >= acc",
        n=len(wide),
        n_unit="outcomes",
        notes=[
            f"{len(arms)} arms and sweeps; largest error of product and sum {error:.1e}.",
            f"{len(arms) - len(covered)} of them have no selectable answer, so no conversion.",
        ],
        scale_note=SCALE_NOTE,
    )


# ---------------------------------------------------------------------------------------------
# c3, c4, c6: the primary set


def contrast(
    cells: pd.DataFrame, metric: str, family: str, interface: str, before: str, after: str
) -> tuple[float, McNemarResult]:
    """Return the mean difference of two arms and the McNemar test."""
    a = values(cells, metric, family, before, interface)
    b = values(cells, metric, family, after, interface)
    return float((b - a).mean()), mcnemar(a, b)


def joint(cells: pd.DataFrame, params: Params) -> dict[str, float]:
    """Bootstrap coverage and accuracy of mcq10 together (c6)."""
    interface = fixed_interface(params, "mcq10")
    coverage, accuracy = (
        (
            values(cells, metric, "mcq10", "cacc", interface)
            - values(cells, metric, "mcq10", "identity", interface)
        ).to_numpy()
        for metric in ("sel", "acc_expected")
    )
    rng = np.random.default_rng(params.seed)
    draws = rng.integers(0, len(coverage), size=(params.bootstrap, len(coverage)))
    both = (coverage[draws].mean(axis=1) > 0) & (accuracy[draws].mean(axis=1) < 0)
    low, high = np.quantile(accuracy[draws].mean(axis=1), [0.025, 0.975])
    return {
        "p_joint": float(both.mean()),
        "coverage_gain": float(coverage.mean()),
        "accuracy_gain": float(accuracy.mean()),
        "accuracy_low": float(low),
        "accuracy_high": float(high),
        "sd": float(accuracy.std(ddof=1)),
        "n": len(accuracy),
    }


def primary_p(cells: pd.DataFrame, params: Params) -> dict[str, tuple[float, float]]:
    """Return raw and Holm-adjusted p of the primary set: arith, boxed, c4, c6."""
    raw = {}
    for family in _numeric(params):
        interface = fixed_interface(params, family)
        raw[family] = max(
            contrast(cells, metric, family, interface, "identity", "cacc")[1].p_value
            for metric in ("acc", "sel")
        )
    raw["c4"] = contrast(cells, "acc", "mcq4", fixed_interface(params, "mcq4"), "identity", "cacc")[
        1
    ].p_value
    raw["c6"] = 1 - joint(cells, params)["p_joint"]
    adjusted = holm(list(raw.values())).adjusted
    return {name: (p, q) for (name, p), q in zip(raw.items(), adjusted, strict=True)}


def numeric_gain(cells: pd.DataFrame, params: Params) -> Evidence:
    """c3: coverage and accuracy of CACC on the numeric families."""
    p_values = primary_p(cells, params)
    up = down = 0
    notes, best = [], None
    for family in _numeric(params):
        interface = fixed_interface(params, family)
        gain, test = contrast(cells, "acc", family, interface, "identity", "cacc")
        coverage, _ = contrast(cells, "sel", family, interface, "identity", "cacc")
        p, adjusted = p_values[family]
        up += gain > 0 and coverage > 0 and adjusted < ALPHA
        down += (gain < 0 or coverage < 0) and adjusted < ALPHA
        over = values(cells, "acc", family, "cacc", interface) - values(
            cells, "acc", family, "placebo", interface, "placebo"
        )
        over_mean, over_low, over_high = _mean(over, params)
        notes.append(
            f"{family}: accuracy {_points(gain)} ({test.only_b} gained, {test.only_a} lost), "
            f"coverage {_points(coverage)}, p {p:.2g}, Holm {adjusted:.2g}; over the placebo "
            f"{_points(over_mean)} (95 % interval {_points(over_low)} to {_points(over_high)})."
        )
        if best is None or p < best[0]:
            best = (p, adjusted, family, gain, interface, test)
    p, adjusted, family, gain, interface, test = best
    difference = values(cells, "acc", family, "cacc", interface) - values(
        cells, "acc", family, "identity", interface
    )
    _, low, high = _mean(difference, params)
    return Evidence(
        quantities={"families_up": up, "families_down": down, "accuracy_gain": gain},
        estimate_unit=f"accuracy, {family}",
        interval=(low, high),
        interval_kind="95 % cluster bootstrap over questions",
        p_value=adjusted,
        smallest_p=test.smallest_p,
        test="exact McNemar, the larger p of accuracy and coverage, Holm over 4",
        n=difference.size,
        n_unit=f"questions ({family})",
        **_detectable(difference, test.smallest_p),
        notes=notes,
        scale_note=SCALE_NOTE,
    )


def _paired(
    cells: pd.DataFrame, params: Params, family: str, before: str, after: str
) -> tuple[pd.Series, McNemarResult, tuple[float, float]]:
    """Return differences of accuracy by question, the McNemar test and the interval."""
    interface = fixed_interface(params, family)
    a = values(cells, "acc", family, before, interface)
    b = values(cells, "acc", family, after, interface)
    _, low, high = _mean(b - a, params)
    return b - a, mcnemar(a, b), (low, high)


def _against_chance(cells: pd.DataFrame, params: Params, family: str, arm: str, m: int) -> str:
    """Return a sentence that compares an arm's accuracy with a guesser's."""
    accuracy = values(cells, "acc", family, arm, fixed_interface(params, family))
    test = binomial_test(int(accuracy.round().sum()), accuracy.size, 1 / m, alternative="two-sided")
    corrected = (test.estimate - 1 / m) / (1 - 1 / m)
    return (
        f"{arm}: {test.successes} of {test.n} right ({test.estimate:.3f}), against chance "
        f"{1 / m:g}: exact binomial p {test.p_value:.2g}, chance-corrected {corrected:+.3f}."
    )


def _against_placebo(cells: pd.DataFrame, params: Params, family: str) -> list[str]:
    """Return sentences that compare CACC with fillings that carry no information."""
    interface = fixed_interface(params, family)
    cacc = values(cells, "acc", family, "cacc", interface)
    mean = values(cells, "acc", family, "placebo", interface, "placebo")
    first = cells[(cells["part"] == "placebo") & (cells["draw"] == 0)]
    test = mcnemar(values(first, "acc", family, "placebo", interface, "placebo"), cacc)
    estimate, low, high = _mean(cacc - mean, params)
    return [
        f"Placebo (mean of all draws): accuracy {mean.mean():.3f}; CACC above it by "
        f"{_points(estimate)} (95 % interval {_points(low)} to {_points(high)}).",
        f"Against the first placebo draw: {test.only_b} gained, {test.only_a} lost, exact McNemar "
        f"p {test.p_value:.2g}.",
    ]


def four_options(cells: pd.DataFrame, params: Params) -> Evidence:
    """c4: CACC alone on hard questions with four options."""
    difference, test, interval = _paired(cells, params, "mcq4", "identity", "cacc")
    adjusted = primary_p(cells, params)["c4"][1]
    notes = [
        _against_chance(cells, params, "mcq4", "identity", 4),
        _against_chance(cells, params, "mcq4", "cacc", 4),
        *_against_placebo(cells, params, "mcq4"),
        f"{test.only_b} questions gained, {test.only_a} lost.",
    ]
    for other in _family(params, "mcq4").interfaces[1:]:
        gain, second = contrast(cells, "acc", "mcq4", other, "identity", "cacc")
        notes.append(
            f"Interface {other} (exploratory): {_points(gain)}, McNemar p {second.p_value:.2g}."
        )
    return Evidence(
        quantities={"gain": difference.mean(), "holm_p": adjusted},
        estimate_unit="accuracy, CACC minus strict interface",
        interval=interval,
        interval_kind="95 % cluster bootstrap over questions",
        p_value=adjusted,
        smallest_p=test.smallest_p,
        test="exact McNemar, Holm over 4",
        n=difference.size,
        n_unit="questions",
        **_detectable(difference, test.smallest_p),
        notes=notes,
        scale_note=SCALE_NOTE,
    )


def four_options_enhanced(cells: pd.DataFrame, params: Params) -> Evidence:
    """c5: CACC with proposer enhancement on hard questions with four options."""
    difference, test, interval = _paired(cells, params, "mcq4", "identity", "cacc_pe")
    step, further, step_interval = _paired(cells, params, "mcq4", "cacc", "cacc_pe")
    paper = binomial_test(PAPER_RIGHT, PAPER_QUESTIONS, 1 / 4, alternative="two-sided")
    return Evidence(
        quantities={
            "gain": difference.mean(),
            "p_value": test.p_value,
            "step": step.mean(),
            "step_p": further.p_value,
        },
        estimate_unit="accuracy, CACC + PE minus strict interface",
        interval=interval,
        interval_kind="95 % cluster bootstrap over questions",
        p_value=test.p_value,
        smallest_p=test.smallest_p,
        test="exact McNemar",
        n=difference.size,
        n_unit="questions",
        **_detectable(difference, test.smallest_p),
        notes=[
            f"From CACC alone to CACC + PE: {_points(step.mean())} (95 % interval "
            f"{_points(step_interval[0])} to {_points(step_interval[1])}, McNemar p "
            f"{further.p_value:.2g}).",
            _against_chance(cells, params, "mcq4", "cacc_pe", 4),
            f"The paper's {PAPER_RIGHT} of {PAPER_QUESTIONS} is {paper.estimate:.1%}: exact "
            f"binomial p {paper.p_value:.2f} against chance.",
        ],
        scale_note=SCALE_NOTE,
    )


def ten_options(cells: pd.DataFrame, params: Params) -> Evidence:
    """c6: coverage up and accuracy down on ten options."""
    found = joint(cells, params)
    interface = fixed_interface(params, "mcq10")
    gain, test = contrast(cells, "acc", "mcq10", interface, "identity", "cacc")
    difference = values(cells, "acc_expected", "mcq10", "cacc", interface) - values(
        cells, "acc_expected", "mcq10", "identity", interface
    )
    names = ("p_joint", "coverage_gain", "accuracy_gain", "accuracy_low")
    return Evidence(
        quantities={name: found[name] for name in names},
        estimate_unit="expected accuracy, CACC minus strict interface",
        interval=(found["accuracy_low"], found["accuracy_high"]),
        interval_kind="95 % cluster bootstrap over questions",
        p_value=primary_p(cells, params)["c6"][1],
        test="joint cluster bootstrap: 1 - P(coverage up, accuracy down), Holm over 4",
        n=int(found["n"]),
        n_unit="questions",
        **_detectable(difference),
        notes=[
            f"Coverage {_points(found['coverage_gain'])}; accuracy by the first-come rule "
            f"{_points(gain)} ({test.only_b} gained, {test.only_a} lost, McNemar p "
            f"{test.p_value:.2g}).",
            _against_chance(cells, params, "mcq10", "identity", 10),
            _against_chance(cells, params, "mcq10", "cacc", 10),
            *_against_placebo(cells, params, "mcq10"),
        ],
        scale_note=SCALE_NOTE,
    )


def ten_options_enhanced(cells: pd.DataFrame, params: Params) -> Evidence:
    """c7: CACC with proposer enhancement on ten options."""
    difference, test, interval = _paired(cells, params, "mcq10", "identity", "cacc_pe")
    return Evidence(
        quantities={"gain": difference.mean(), "p_value": test.p_value},
        estimate_unit="accuracy, CACC + PE minus strict interface",
        interval=interval,
        interval_kind="95 % cluster bootstrap over questions",
        p_value=test.p_value,
        smallest_p=test.smallest_p,
        test="exact McNemar",
        n=difference.size,
        n_unit="questions",
        **_detectable(difference, test.smallest_p),
        notes=[
            f"{test.only_b} questions gained, {test.only_a} lost.",
            _against_chance(cells, params, "mcq10", "cacc_pe", 10),
        ],
        scale_note=SCALE_NOTE,
    )


# ---------------------------------------------------------------------------------------------
# c8, c9


def nothing_trained(cells: pd.DataFrame, params: Params) -> Evidence:
    """c8: weights before and after, and the selector that served all arms."""
    changed = cells[cells["metric"] == "weights_changed"]["value"]
    selectors = cells[cells["metric"] == "selector"]["text"]
    timeouts = int(cells[cells["metric"] == "timeouts"]["value"].sum())
    return Evidence(
        quantities={
            "weights_changed": int(changed.sum()),
            "selectors_in_use": int(selectors.nunique()),
        },
        estimate_unit="cells whose weights changed",
        n=len(changed),
        n_unit="cells",
        notes=[
            f"Selector in use: {', '.join(sorted(selectors.unique()))}.",
            f"Grader timeouts: {timeouts}.",
        ],
        scale_note=SCALE_NOTE,
    )


def slopes(cells: pd.DataFrame, family: str, arm: str, metric: str) -> pd.Series:
    """Return the least-squares slope per doubling of K of each question."""
    rows = cells[
        (cells["part"] == "k")
        & (cells["family"] == family)
        & (cells["arm"] == arm)
        & (cells["metric"] == metric)
    ]
    table = rows.pivot_table(index="unit", columns="k", values="value")
    doublings = np.log2(table.columns.to_numpy(dtype=float))
    centred = doublings - doublings.mean()
    return pd.Series(table.to_numpy() @ centred / (centred @ centred), index=table.index)


def more_candidates(cells: pd.DataFrame, params: Params) -> Evidence:
    """c9: accuracy and raw coverage against the number of candidates."""
    pairs = [(family.id, arm) for family in params.families for arm in ("identity", "cacc")]
    confidence = 1 - ALPHA / len(pairs)
    flat = rising = 0
    notes, widest = [], None
    for family, arm in pairs:
        coverage = _mean(slopes(cells, family, arm, "raw_before"), params, confidence)
        accuracy = _mean(slopes(cells, family, arm, "acc_expected"), params, confidence)
        is_flat = coverage[1] > 0 and accuracy[2] < FLAT
        flat += is_flat
        rising += accuracy[1] > 0
        notes.append(
            f"{family}, {arm}: per doubling, raw coverage {_points(coverage[0])}, accuracy "
            f"{_points(accuracy[0])} ({_points(accuracy[1])} to {_points(accuracy[2])})"
            f"{', flat' if is_flat else ''}."
        )
        if widest is None or accuracy[2] - accuracy[1] > widest:
            widest = accuracy[2] - accuracy[1]
    return Evidence(
        quantities={"flat": flat, "rising": rising, "combinations": len(pairs)},
        estimate_unit="combinations of family and arm where accuracy stays flat",
        n=cells[cells["part"] == "k"]["unit"].nunique(),
        n_unit="questions",
        mde=None if widest is None else widest / 2,
        notes=[
            f"Intervals: cluster bootstrap over questions at {100 * confidence:.2f} % each.",
            *notes,
        ],
        scale_note=SCALE_NOTE,
    )


EVIDENCE: dict[str, Callable[[pd.DataFrame, Params], Evidence]] = {
    "c1": interface_tax,
    "c2": identities,
    "c3": numeric_gain,
    "c4": four_options,
    "c5": four_options_enhanced,
    "c6": ten_options,
    "c7": ten_options_enhanced,
    "c8": nothing_trained,
    "c9": more_candidates,
}
