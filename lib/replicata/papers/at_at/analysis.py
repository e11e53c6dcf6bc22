"""From the cells' rows to the evidence for each claim (spec 7).

The unit is the gold tool: all requests of a tool share one edited description, so their differences
flip sign together. Sums over halvings or copies are whole numbers, and the tests exact.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from replicata.claims.evidence import Evidence
from replicata.papers.at_at.experiment import Params
from replicata.statistics.bounds import plus_one_bound
from replicata.statistics.exact import ExactTest, sign_flip_exact
from replicata.statistics.multiplicity import holm
from replicata.statistics.power import minimal_detectable_effect
from replicata.statistics.resampling import cluster_bootstrap

ALPHA = 0.05
#: S1's primary arm, and the baselines it is compared with.
PRIMARY = "examples"
BASELINES = ("prompt", "static", "keywords")
ROUTING_NOTE = (
    "A router on MiniLM, not a language-model agent: for it, example requests in a description act "
    "as a few-shot prototype."
)
PLANTED_NOTE = (
    "Defects are planted: a mechanism test on three small servers of ours, no replication of "
    "production servers or of Telecom."
)


@dataclass(frozen=True)
class Comparison:
    """Two arms compared, clustered by tool.

    Attributes
    ----------
    test
        Exact sign flips of the tools' sums; its estimate is the mean over observations.
    by_tool
        Mean difference of each tool.
    scaled
        Each tool's share of the overall mean times the number of tools: their mean is the estimate.
    lower, upper
        One-sided 95 % plus-one bounds of the mean over tools.
    """

    test: ExactTest
    by_tool: pd.Series
    scaled: pd.Series
    lower: float
    upper: float


def compare(
    cells: pd.DataFrame,
    metric: str,
    new: str,
    base: str,
    keys: list[str],
    seed: int,
    alternative: str = "greater",
) -> Comparison:
    """Compare two arms on one metric, paired by ``keys``, clustered by ``unit``."""
    rows = cells[(cells["metric"] == metric) & cells["arm"].isin([new, base])]
    wide = rows.pivot(index=["unit", *keys], columns="arm", values="value").dropna()
    difference = (wide[new] - wide[base]).round().astype(int)
    units = difference.index.get_level_values("unit")
    test = sign_flip_exact(difference.tolist(), alternative, clusters=list(units), seed=seed)
    grouped = difference.groupby(level="unit")
    by_tool, sums = grouped.mean(), grouped.sum()
    extreme = max(1.0, float(difference.abs().max()))
    return Comparison(
        test=test,
        by_tool=by_tool,
        scaled=sums * len(sums) / len(difference),
        lower=plus_one_bound(by_tool, "lower", alpha=ALPHA, extreme=extreme),
        upper=plus_one_bound(by_tool, "upper", alpha=ALPHA, extreme=extreme),
    )


def routing(cells: pd.DataFrame, params: Params, arm: str, other: str) -> Comparison:
    """Compare two arms of study S1 on held-out requests."""
    keys = ["request", "repeat"]
    return compare(cells, "correct", arm, other, keys, params.seed)


def served(
    cells: pd.DataFrame,
    params: Params,
    metric: str,
    alternative: str,
    server: str | None = None,
    arm: str = "impl",
) -> Comparison:
    """Compare an arm of study S2 with the unedited tools, on one server or on all."""
    rows = cells[cells["group"] == "servers"]
    if server is not None:
        rows = rows[rows["server"] == server]
    return compare(rows, metric, arm, "base", ["copy", "task"], params.seed, alternative)


def _mean(cells: pd.DataFrame, arm: str, metric: str) -> float:
    rows = cells[(cells["arm"] == arm) & (cells["metric"] == metric)]
    return float(rows["value"].mean())


def _interval(found: Comparison, seed: int) -> tuple[tuple[float, float], str]:
    boot = cluster_bootstrap(found.scaled, seed=seed)
    return boot.interval, boot.describe("tools")


def trace_mined(cells: pd.DataFrame, params: Params) -> Evidence:
    """c1: masked example requests against the unedited descriptions, S1."""
    found = routing(cells, params, PRIMARY, "base")
    interval, kind = _interval(found, params.seed)
    mde = minimal_detectable_effect(found.scaled, alternative="greater", alpha=ALPHA)
    gains = {
        arm: routing(cells, params, arm, "base").test
        for arm in ("raw", "passfail", "replay", "shuffled", "shuffled_examples", "placebo")
    }
    others = "; ".join(
        f"{arm} {test.estimate:+.3f} (p {test.p_value:.2g})" for arm, test in gains.items()
    )
    return Evidence(
        quantities={
            "gain": found.test.estimate,
            "p_value": found.test.p_value,
            "tool_gain": found.by_tool.mean(),
            "tool_lower": found.lower,
            "tool_upper": found.upper,
        },
        estimate_unit="share of held-out requests routed right, edited - unedited",
        interval=interval,
        interval_kind=kind,
        p_value=found.test.p_value,
        smallest_p=found.test.smallest_p,
        test=f"one-sided sign flips per gold tool ({found.test.method})",
        n=found.test.n,
        n_unit="gold tools",
        mde=mde.effect,
        no_mde=mde.reason,
        notes=[
            f"Held-out accuracy {_mean(cells, 'base', 'correct'):.3f} before, "
            f"{_mean(cells, PRIMARY, 'correct'):.3f} after; {int((found.by_tool > 0).sum())} tools "
            f"gain, {int((found.by_tool < 0).sum())} lose; mean gain per tool "
            f"{found.by_tool.mean():+.3f} (one-sided bounds {found.lower:+.3f}, "
            f"{found.upper:+.3f}).",
            f"Exploratory, same comparison: {others}.",
        ],
        scale_note=ROUTING_NOTE,
    )


def repairs(cells: pd.DataFrame, params: Params) -> Evidence:
    """c2: pass rate with descriptions and implementations edited, S2."""
    found = served(cells, params, "passed", "greater")
    interval, kind = _interval(found, params.seed)
    mde = minimal_detectable_effect(found.scaled, alternative="greater", alpha=ALPHA)
    others = "; ".join(
        f"{arm} {served(cells, params, 'passed', 'greater', arm=arm).test.estimate:+.3f}"
        for arm in ("desc", "passfail", "static", "prompt", "placebo", "oracle")
    )
    return Evidence(
        quantities={
            "gain": found.test.estimate,
            "p_value": found.test.p_value,
            "tool_lower": found.lower,
            "tool_upper": found.upper,
        },
        estimate_unit="pass rate, edited - unedited",
        interval=interval,
        interval_kind=kind,
        p_value=found.test.p_value,
        smallest_p=found.test.smallest_p,
        test=f"one-sided sign flips per tool ({found.test.method})",
        n=found.test.n,
        n_unit="tools",
        mde=mde.effect,
        no_mde=mde.reason,
        notes=[
            f"Pass rate {_mean(cells, 'base', 'passed'):.3f} before, "
            f"{_mean(cells, 'impl', 'passed'):.3f} after.",
            f"Exploratory, gain of the other arms: {others} (oracle: repaired by hand).",
        ],
        scale_note=PLANTED_NOTE,
    )


def beats_baselines(cells: pd.DataFrame, params: Params) -> Evidence:
    """c3: against each baseline of S1; Holm over the three, after c1."""
    first = routing(cells, params, PRIMARY, "base").test.p_value
    found = {name: routing(cells, params, PRIMARY, name) for name in BASELINES}
    adjusted = holm([item.test.p_value for item in found.values()], ALPHA).adjusted
    gate = {name: max(first, p) for name, p in zip(found, adjusted, strict=True)}
    worst = min(found, key=lambda name: found[name].test.estimate)
    interval, kind = _interval(found[worst], params.seed)
    mde = minimal_detectable_effect(found[worst].scaled, alternative="greater", alpha=ALPHA)
    lines = "; ".join(
        f"{name} {item.test.estimate:+.3f} (p {item.test.p_value:.2g}, adjusted {gate[name]:.2g})"
        for name, item in found.items()
    )
    return Evidence(
        quantities={
            "smallest_gain": found[worst].test.estimate,
            "largest_p_adjusted": max(gate.values()),
            "smallest_upper": min(item.upper for item in found.values()),
        },
        estimate_unit=f"share routed right, AT-AT - {worst} (the best baseline)",
        interval=interval,
        interval_kind=kind,
        p_value=max(gate.values()),
        test="one-sided sign flips per gold tool, Holm over three baselines after c1",
        n=found[worst].test.n,
        n_unit="gold tools",
        mde=mde.effect,
        no_mde=mde.reason,
        notes=[f"AT-AT minus each baseline: {lines}."],
        scale_note=ROUTING_NOTE,
    )


def costs(cells: pd.DataFrame, params: Params) -> Evidence:
    """c4: agent calls of the optimisation, and characters read per task."""
    routed, serving = (cells[cells["group"] == group] for group in ("routing", "servers"))
    s1 = _mean(routed, PRIMARY, "characters") / _mean(routed, "prompt", "characters")
    s2 = _mean(serving, "impl", "characters") / _mean(serving, "prompt", "characters")
    spent = {
        arm: cells[(cells["metric"] == "rollouts") & (cells["arm"] == arm)]["value"].sum()
        for arm in (PRIMARY, "impl", "prompt", "replay")
    }
    calls = {arm: _mean(serving, arm, "calls") for arm in ("base", "impl", "prompt")}
    return Evidence(
        quantities={
            "rollouts": spent[PRIMARY] + spent["impl"],
            "baseline_rollouts": spent["prompt"],
            "routing_ratio": s1,
            "servers_ratio": s2,
        },
        estimate_unit="characters read per task in S2, AT-AT / prompt baseline",
        n=int(serving[serving["metric"] == "passed"]["unit"].nunique()),
        n_unit="tools",
        no_mde="counts of calls and characters, no test",
        notes=[
            f"Agent calls for optimising: AT-AT {spent[PRIMARY] + spent['impl']:.0f}, prompt "
            f"{spent['prompt']:.0f}, AT-AT with the replay gate (S1) {spent['replay']:.0f}.",
            f"Characters read per task, AT-AT over prompt: S1 {s1:.3f}, S2 {s2:.3f}.",
            f"Calls per task in S2: base {calls['base']:.2f}, prompt {calls['prompt']:.2f}, AT-AT "
            f"{calls['impl']:.2f}.",
        ],
        scale_note=PLANTED_NOTE,
    )


def per_server_cost(cells: pd.DataFrame, params: Params) -> Evidence:
    """c6: cost or error rate per server, intersection-union over servers."""
    lower, higher, largest, lines = 0, 0, 0.0, []
    for name in params.servers.names:
        found = {
            metric: served(cells, params, metric, "less", name)
            for metric in ("characters", "errors")
        }
        p = min(holm([item.test.p_value for item in found.values()], ALPHA).adjusted)
        largest = max(largest, p)
        lower += p <= ALPHA
        higher += all(item.lower > 0 for item in found.values())
        shown = ", ".join(
            f"{metric} {item.test.estimate:+.2f} (p {item.test.p_value:.2g})"
            for metric, item in found.items()
        )
        lines.append(f"{name}: {shown}")
    return Evidence(
        quantities={
            "servers": len(params.servers.names),
            "servers_lower": lower,
            "servers_higher": higher,
            "largest_p": largest,
        },
        estimate_unit="servers on which cost or errors fell",
        p_value=largest,
        test="one-sided sign flips per tool, Holm over two outcomes, largest over servers",
        n=10 * len(params.servers.names),
        n_unit="tools",
        no_mde="a count of servers",
        notes=[f"Change per task, edited - unedited: {'; '.join(lines)}."],
        scale_note=PLANTED_NOTE,
    )


def per_server_pass(cells: pd.DataFrame, params: Params) -> Evidence:
    """c7: pass rate per server, Holm over servers."""
    found = {
        name: served(cells, params, "passed", "greater", name) for name in params.servers.names
    }
    adjusted = holm([item.test.p_value for item in found.values()], ALPHA).adjusted
    lines = "; ".join(
        f"{name} {item.test.estimate:+.3f} (adjusted p {p:.2g})"
        for (name, item), p in zip(found.items(), adjusted, strict=True)
    )
    return Evidence(
        quantities={
            "raised": int(sum(p <= ALPHA for p in adjusted)),
            "largest_upper": max(item.upper for item in found.values()),
        },
        estimate_unit="servers on which the pass rate rose",
        p_value=min(adjusted),
        test="one-sided sign flips per tool, Holm over servers; the smallest",
        n=10 * len(found),
        n_unit="tools",
        no_mde="a count of servers",
        notes=[f"Pass rate, edited - unedited: {lines}."],
        scale_note=PLANTED_NOTE,
    )


def selective(cells: pd.DataFrame, params: Params) -> Evidence:
    """c8: how much is edited, and how well that fits what was planted."""
    own = cells[cells["arm"] == "impl"]
    total = {
        metric: float(own[own["metric"] == metric]["value"].sum())
        for metric in ("edits", "fitting", "edited_tools", "tools", "decoy_repaired", "refused")
    }
    recall = own[own["metric"] == "repaired"]["value"]
    rows = cells[(cells["metric"] == "passed") & cells["arm"].isin(["impl", "base"])]
    wide = rows.pivot(index=["unit", "copy", "task"], columns="arm", values="value")
    change = wide["impl"] - wide["base"]
    share = total["edited_tools"] / total["tools"]
    return Evidence(
        quantities={
            "edited_share": share,
            "recall": recall.mean(),
            "precision": total["fitting"] / max(1.0, total["edits"]),
            "won": int((change > 0).sum()),
            "lost": int((change < 0).sum()),
            "decoys_repaired": int(total["decoy_repaired"]),
        },
        estimate_unit="share of tools edited",
        n=int(total["tools"]),
        n_unit="tools in copies of servers",
        notes=[
            f"{total['edits']:.0f} edits accepted, {total['refused']:.0f} refused; "
            f"{int(recall.sum())} of {len(recall)} planted defects addressed; "
            f"{int((change > 0).sum())} tasks won and {int((change < 0).sum())} lost.",
        ],
        scale_note=PLANTED_NOTE,
    )


EVIDENCE: dict[str, Callable[[pd.DataFrame, Params], Evidence]] = {
    "c1": trace_mined,
    "c2": repairs,
    "c3": beats_baselines,
    "c4": costs,
    "c6": per_server_cost,
    "c7": per_server_pass,
    "c8": selective,
}


def accuracy_by_arm(cells: pd.DataFrame) -> pd.DataFrame:
    """Return S1's arms with training and held-out accuracy, edits and description characters."""
    wanted = ["train_accuracy", "heldout_accuracy", "simple_accuracy", "edits", "characters"]
    rows = cells[cells["metric"].isin(wanted)]
    table = rows.pivot_table(index="arm", columns="metric", values="value", aggfunc="mean")
    return table.reindex(columns=[name for name in wanted if name in table]).replace({np.nan: 0})
