"""AT-AT's figures, for the notebook and the report: rows in, a matplotlib Figure out."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from replicata.papers.at_at.analysis import PLANTED_NOTE, compare, routing
from replicata.papers.at_at.experiment import Params
from replicata.statistics.resampling import cluster_bootstrap

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
NAMES = {
    "base": "unedited",
    "examples": "AT-AT (masked examples)",
    "raw": "raw examples",
    "passfail": "pass/fail feedback only",
    "replay": "with replay gate",
    "keywords": "keywords",
    "keywords_replay": "keywords, replay gate",
    "static": "static rewrite",
    "prompt": "agent-side prompt",
    "shuffled": "control: shuffled labels, keywords",
    "shuffled_examples": "control: shuffled labels",
    "placebo": "control: placebo",
    "desc": "AT-AT, descriptions",
    "impl": "AT-AT, descriptions + implementations",
    "oracle": "repaired by hand",
}


def _axes(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def _forest(axes: Axes, gains: dict[str, tuple[float, tuple[float, float]]], main: str) -> None:
    for row, (arm, (centre, (low, high))) in enumerate(gains.items()):
        axes.errorbar(
            100 * centre,
            row,
            xerr=[[100 * (centre - low)], [100 * (high - centre)]],
            color=BLUE if arm == main else ORANGE if "control" in NAMES[arm] else GREY,
            marker="s" if arm == main else "^" if "control" in NAMES[arm] else "o",
            capsize=3,
        )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(gains)), [NAMES[arm] for arm in gains])
    axes.invert_yaxis()


def routing_gains(rows: pd.DataFrame, params: Params) -> Figure:
    """F1: S1's gain over the unedited descriptions, every arm."""
    figure, (axes,) = _axes(7.2, 4.6)
    arms = [arm for arm in NAMES if arm in set(rows["arm"]) and arm != "base"]
    gains = {}
    for arm in arms:
        found = routing(rows, params, arm, "base")
        interval = cluster_bootstrap(found.scaled, seed=params.seed).interval
        gains[arm] = (found.test.estimate, interval)
    _forest(axes, gains, "examples")
    axes.set_xlabel("held-out requests routed right, change in percentage points")
    return figure


def routing_gains_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F1."""
    correct = rows[rows["metric"] == "correct"]
    return (
        f"{correct['request'].nunique()} requests, each held out once in each of "
        f"{params.routing.repeats} halvings; {correct['unit'].nunique()} gold tools. Mean change "
        "and 95 % cluster bootstrap interval over tools. Blue and square: the primary arm; orange "
        "and triangle: controls that must not help."
    )


def overfitting(rows: pd.DataFrame, params: Params) -> Figure:
    """F2: training against held-out accuracy."""
    figure, (axes,) = _axes(6.4, 4.8)
    table = rows[rows["metric"].isin(["train_accuracy", "heldout_accuracy"])].pivot_table(
        index="arm", columns="metric", values="value", aggfunc="mean"
    )
    marks = "os^DvP*Xhd<>p"
    for mark, (arm, row) in zip(marks, table.iterrows(), strict=False):
        axes.plot(
            100 * row["train_accuracy"],
            100 * row["heldout_accuracy"],
            marker=mark,
            color=BLUE if arm == "examples" else GREY,
            linestyle="",
            label=NAMES[arm],
        )
    ends = [100 * table.to_numpy().min() - 1, 100 * table.to_numpy().max() + 1]
    axes.plot(ends, ends, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="accuracy on training requests, %", ylabel="accuracy on held-out requests, %")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def served_plane(rows: pd.DataFrame, params: Params) -> Figure:
    """F3: S2's arms in the plane of cost and pass rate."""
    figure, axes = _axes(4.2 * len(params.servers.names), 4.2, len(params.servers.names))
    for panel, name in zip(axes, params.servers.names, strict=True):
        part = rows[rows["server"] == name]
        means = part[part["metric"].isin(["passed", "characters"])].pivot_table(
            index="arm", columns="metric", values="value", aggfunc="mean"
        )
        for mark, (arm, row) in zip("os^DvP*X", means.iterrows(), strict=False):
            panel.plot(
                row["characters"],
                100 * row["passed"],
                marker=mark,
                color=BLUE if arm in ("desc", "impl") else GREY,
                linestyle="",
                label=NAMES.get(arm, arm),
            )
        panel.set(xlabel="characters read per task", title=name)
    axes[0].set_ylabel("held-out tasks passed, %")
    axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def repair_by_defect(rows: pd.DataFrame, params: Params) -> Figure:
    """F4: pass rate on tools with a planted defect, before and after, by type."""
    figure, (left, right) = _axes(10.5, 4.6, 2)
    passed = rows[(rows["metric"] == "passed") & rows["arm"].isin(["base", "impl"])]
    errors = rows[(rows["metric"] == "errors") & rows["arm"].isin(["base", "impl"])]
    for axes, part, label, scale in (
        (left, passed, "tasks passed, %", 100),
        (right, errors, "failed calls per task", 1),
    ):
        table = part.pivot_table(index="defect", columns="arm", values="value", aggfunc="mean")
        table = table.sort_values("base")
        for row, (_, values) in enumerate(table.iterrows()):
            axes.plot(
                [scale * values["base"], scale * values["impl"]], [row, row], color=GREY, zorder=1
            )
        positions = np.arange(len(table))
        axes.scatter(scale * table["base"], positions, color=ORANGE, marker="o", label="unedited")
        axes.scatter(scale * table["impl"], positions, color=BLUE, marker="s", label="AT-AT")
        axes.set_yticks(positions, list(table.index))
        axes.set_xlabel(label)
    left.legend(fontsize=8)
    return figure


def repair_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F4."""
    tasks = len(rows[(rows["metric"] == "passed") & (rows["arm"] == "impl")])
    return (
        f"{tasks} held-out tasks in all, by the defect planted in the tool they need; none: no "
        f"defect; lacking and wrong: decoys that no edit can repair. Means. {PLANTED_NOTE}"
    )


def server_gains(rows: pd.DataFrame, params: Params) -> Figure:
    """F5: S2's gain in pass rate per arm, all servers."""
    figure, (axes,) = _axes(7.2, 3.6)
    gains = {}
    for arm in NAMES:
        if arm in set(rows["arm"]) and arm != "base":
            keys = ["copy", "task"]
            found = compare(rows, "passed", arm, "base", keys, params.seed)
            interval = cluster_bootstrap(found.scaled, seed=params.seed).interval
            gains[arm] = (found.test.estimate, interval)
    _forest(axes, gains, "impl")
    axes.set_xlabel("held-out tasks passed, change in percentage points")
    return figure


FIGURES = {
    "f1_routing": (["routing"], routing_gains, routing_gains_caption),
    "f2_overfitting": (
        ["routing"],
        overfitting,
        "Study S1: mean accuracy over all halvings and directions. Below the dashed line an arm "
        "does better on the requests it was made from.",
    ),
    "f3_plane": (
        ["servers"],
        served_plane,
        f"Study S2: pass rate and characters read per task, means over copies. {PLANTED_NOTE}",
    ),
    "f4_defects": (["servers"], repair_by_defect, repair_caption),
    "f5_servers": (
        ["servers"],
        server_gains,
        "Study S2, all servers: mean change in pass rate with its 95 % cluster bootstrap interval "
        f"over tools. {PLANTED_NOTE}",
    ),
}
