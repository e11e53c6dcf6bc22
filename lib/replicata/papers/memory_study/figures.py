"""The memory study's figures: rows in, a matplotlib Figure out. Exploratory ones say so."""

from datetime import UTC, datetime

import matplotlib.dates as mdates
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from replicata.papers.memory_study.analysis import choices_of, real_endpoints
from replicata.papers.memory_study.experiment import Params
from replicata.papers.memory_study.method import BOUND, Choices, Contrasts, Values, bounds
from replicata.papers.memory_study.results import CONTROLS
from replicata.statistics.proportions import wilson_interval

#: Outcome shown to both sessions: name, colour-blind-safe colour, marker for readers in grey.
SHOWN = {"F": ("after failure", "#D55E00", "o"), "S": ("after success", "#0072B2", "s")}
MEMORIES = {
    "own": "own lesson",
    "opp": "opposite lesson",
    "irr": "irrelevant memory",
    "instr": "instruction",
    "scr": "scripted lesson",
    "scr_opp": "scripted, opposite",
    "note": "own, with note",
    "shared": "own, shared note",
    "free": "own, freely written",
}
PAPER_LADDER = {"own": 0.116, "note": 0.075, "shared": 0.031}
GREY = "#7F7F7F"


def _figure(columns: int, width: float, height: float, **options: object) -> tuple[Figure, list]:
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False, **options)[0]
    return figure, list(axes)


def timeline(rows: pd.DataFrame, params: Params) -> Figure:
    """F1: what happened when, from the tokens and the records."""
    times = rows[rows["metric"] == "time"].sort_values("value", kind="stable")
    figure, (axes,) = _figure(1, 8.5, 2.6)
    if times.empty:
        axes.text(0.5, 0.5, "a rehearsal keeps no times", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return figure
    moments = [datetime.fromtimestamp(value, UTC) for value in times["value"]]
    axes.plot(moments, range(len(moments)), color="#0072B2", marker="o", linewidth=1.2)
    axes.set_yticks(range(len(moments)), times["unit"])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(mdates.ConciseDateFormatter(axes.xaxis.get_major_locator()))
    axes.set_xlabel("UTC")
    axes.margins(x=0.06, y=0.12)
    return figure


def timeline_caption(rows: pd.DataFrame, params: Params) -> str:
    """Say what order shows and what it does not."""
    stamp = rows.loc[(rows["metric"] == "audit") & (rows["arm"] == "A4"), "status"].iloc[0]
    return (
        "Times of the stamps (whole seconds, from the tokens), of the first and last record, and "
        f"of the analysis. Timestamps: {stamp}; a local authority's clock is its owner's."
    )


def rates(rows: pd.DataFrame, params: Params) -> Figure:
    """F2: the writing link, and worse-tool rates by memory and outcome."""
    figure, (left, right) = _figure(2, 11, 4.6, width_ratios=[1, 1.7])
    name = real_endpoints(rows)[0]
    _writing(left, rows[rows["endpoint"] == name])
    made = rows[
        (rows["endpoint"] == name)
        & (rows["metric"] == "worse")
        & (rows["scenario"] == "unlucky")
        & (rows["log"] == "indep")
    ]
    shown = [memory for memory in MEMORIES if memory in set(made["arm"])]
    for outcome in SHOWN:
        part = made[made["outcome"] == outcome]
        _points(right, [part.loc[part["arm"] == memory, "value"] for memory in shown], outcome)
    right.set_yticks(range(len(shown)), [MEMORIES[memory] for memory in shown])
    right.invert_yaxis()
    right.set(xlabel="share of worlds that choose the worse tool", xlim=(-0.03, 1.03))
    right.set_title("choosing: after a run of the better tool")
    _legend(right)
    return figure


def _writing(axes: Axes, rows: pd.DataFrame) -> None:
    lessons = rows[(rows["phase"] == "write") & (rows["scenario"] == "unlucky")]
    places = [("own", "indep"), ("own", "unstated"), ("note", "indep"), ("shared", "indep")]
    places = [place for place in places if (lessons["arm"] == place[0]).any()]
    for outcome in SHOWN:
        values = []
        for writer, log in places:
            part = lessons[
                (lessons["arm"] == writer)
                & (lessons["log"] == log)
                & (lessons["outcome"] == outcome)
            ]
            said = part[part["metric"].str.startswith("says_")]
            values.append((said["metric"] == "says_bad").astype(float))
        _points(axes, values, outcome)
    labels = {"own": "own lesson", "note": "with note", "shared": "shared note"}
    logs = {"indep": "", "unstated": ",\nindependence not stated"}
    axes.set_yticks(range(len(places)), [f"{labels[w]}{logs[log]}" for w, log in places])
    axes.invert_yaxis()
    axes.set(xlabel='share of lessons that say "bad"', xlim=(-0.03, 1.03))
    axes.set_title("writing: verdict on the better tool")


def _points(axes: Axes, groups: list[pd.Series], outcome: str) -> None:
    """Draw shares with Wilson intervals, one row per group; ties count half."""
    _, colour, marker = SHOWN[outcome]
    shift = -0.14 if outcome == "F" else 0.14
    for place, values in enumerate(groups):
        if not len(values):
            continue
        low, high = wilson_interval(round(float(values.sum())), len(values)).interval
        axes.plot([low, high], [place + shift] * 2, color=colour, linewidth=1.6)
        axes.plot(values.mean(), place + shift, marker, color=colour, markersize=6)


def _legend(axes: Axes) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, label=label)
        for label, colour, marker in SHOWN.values()
    ]
    axes.legend(handles=handles, loc="lower right", frameon=True)


def rates_caption(rows: pd.DataFrame, params: Params) -> str:
    """Say what is the model's and what is the frame's."""
    name = real_endpoints(rows)[0]
    n = rows.loc[rows["endpoint"] == name, "unit"].nunique()
    free = rows.loc[rows["arm"] == "free", "unit"].nunique()
    also = f" ({free} for freely written ones)" if free else ""
    return (
        f"{name}, {n} worlds{also}, independence stated unless noted; bars are 95 % Wilson "
        "intervals, which take worlds as independent. The model fills in good or bad; the frame "
        "turns bad into advice to switch. Own lesson: written after the outcome that is shown; "
        "opposite: after the other; scripted: with the verdict that agrees with the outcome."
    )


def _interactions(rows: pd.DataFrame) -> list[tuple[str, Values, dict]]:
    """Label, values per world and looks of each row of the forest plot."""
    choices = Choices(choices_of(rows))
    plain, hollow = {"color": "#000000"}, {"color": "#000000", "markerfacecolor": "white"}
    found: list[tuple[str, Values, dict]] = []
    for name in real_endpoints(rows):
        found += [
            (f"{name}: stated (c3)", Contrasts(choices, name).interaction(), plain),
            (
                f"{name}: unstated (c4)",
                Contrasts(choices, name, log="unstated").interaction(),
                hollow,
            ),
            (f"{name}: lucky success (c5)", Contrasts(choices, name, "lucky").interaction(), plain),
            (f"{name}: scripted lesson", Contrasts(choices, name).interaction("scr"), plain),
        ]
        written = Contrasts(choices, name).interaction("free")
        if written:
            found.append((f"{name}: freely written", written, hollow))
    grey = {"color": GREY}
    found += [(name, Contrasts(choices, name).interaction(), grey) for name in CONTROLS]
    return found


def forest(rows: pd.DataFrame, params: Params) -> Figure:
    """F3: interactions with their bounds."""
    figure, (axes,) = _figure(1, 8.5, 4.4)
    shown = _interactions(rows)
    for place, (_, values, looks) in enumerate(shown):
        low, high = bounds(values, 2)
        axes.plot([low, high], [place, place], color=looks["color"], linewidth=1.6)
        mean = float(sum(values.values()) / len(values))
        axes.plot(mean, place, "o", markersize=7, **looks)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.axvline(float(BOUND), color="#D55E00", linestyle="--", linewidth=1.2, label="bound 0.10")
    axes.set_yticks(range(len(shown)), [label for label, _, _ in shown])
    axes.invert_yaxis()
    axes.set_xlabel("interaction, difference in worse-tool rate")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def forest_caption(rows: pd.DataFrame, params: Params) -> str:
    """Say what the bars are and what was registered."""
    sizes = {len(values) for _, values, _ in _interactions(rows)}
    return (
        "Outcome by memory. Bars join the two one-sided 95 % plus-one t bounds over worlds "
        f"(n = {', '.join(map(str, sorted(sizes, reverse=True)))}). Filled: registered as "
        "confirmatory; hollow: descriptive (unstated) or exploratory (freely written); grey: "
        "synthetic controls with true values 0.116 and 0, never pooled with models."
    )


def ladder(rows: pd.DataFrame, params: Params) -> Figure:
    """F4: worse-tool use after a chance failure, without and with the mitigations."""
    figure, (axes,) = _figure(1, 7, 4)
    name = real_endpoints(rows)[0]
    made = rows[
        (rows["endpoint"] == name)
        & (rows["metric"] == "worse")
        & (rows["scenario"] == "unlucky")
        & (rows["log"] == "indep")
        & (rows["outcome"] == "F")
    ]
    for place, memory in enumerate(PAPER_LADDER):
        values = made.loc[made["arm"] == memory, "value"]
        low, high = wilson_interval(round(float(values.sum())), len(values)).interval
        axes.plot([place - 0.1] * 2, [low, high], color="#000000", linewidth=1.6)
        axes.plot(place - 0.1, values.mean(), "o", color="#000000", markersize=7)
        axes.plot(place + 0.1, PAPER_LADDER[memory], "D", color="#0072B2", markersize=7)
    irrelevant = made.loc[made["arm"] == "irr", "value"].mean()
    axes.axhline(irrelevant, color=GREY, linestyle="--", linewidth=1.2)
    axes.set_xticks(range(3), ["own lesson", "with note (c7)", "shared note and\nno change (c8)"])
    axes.set(ylabel="share that chooses the worse tool", xlim=(-0.5, 2.5), ylim=(-0.03, None))
    handles = [
        Line2D([], [], color="#000000", marker="o", label=f"{name}, guided lessons"),
        Line2D([], [], color="#0072B2", marker="D", linestyle="", label="paper, 11 endpoints"),
        Line2D([], [], color=GREY, linestyle="--", label="irrelevant memory, ours"),
    ]
    axes.legend(handles=handles, frameon=True)
    return figure


def ladder_caption(rows: pd.DataFrame, params: Params) -> str:
    """Say that the two series are of different models and texts."""
    made = rows[(rows["endpoint"] == real_endpoints(rows)[0]) & (rows["arm"] == "own")]
    return (
        f"After a chance failure of the better tool, n = {made['unit'].nunique()} worlds, bars are "
        "95 % Wilson intervals. The paper's values are of other models, freely written lessons and "
        "another wording: read the directions, not the distances."
    )


FIGURES = {
    "f1_timeline": (("audit",), timeline, timeline_caption),
    "f2_rates": (("answers",), rates, rates_caption),
    "f3_interactions": (("answers",), forest, forest_caption),
    "f4_mitigations": (("answers",), ladder, ladder_caption),
}
