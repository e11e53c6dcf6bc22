"""uta_lrd's figures, for the notebook and the report: rows in, a matplotlib Figure out."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from replicata.papers.uta_lrd.analysis import against
from replicata.papers.uta_lrd.estimates import (
    BASELINES,
    lab_ratios,
    losses,
    tuned,
    tuned_peaks,
    wide,
)
from replicata.papers.uta_lrd.experiment import Params

#: Colour-blind-safe; each arm has a marker and a line style of its own for readers in grey.
STYLES = {
    "uta": ("UTA", "#D55E00", "o", "-"),
    "cosine": ("cosine", "#0072B2", "s", "--"),
    "linear": ("linear", "#009E73", "D", "-."),
    "wsd20": ("WSD, 20 % tail", "#000000", "^", ":"),
    "uba0.3": ("UBA 0.3", "#CC79A7", "v", (0, (5, 1))),
    "uba1": ("UBA 1", "#E69F00", "P", (0, (1, 1))),
    "optimum": ("optimum", "#767676", "X", "-"),
}


def _axes(
    columns: int, width: float, height: float, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False, sharey=sharey)[0]
    return figure, list(axes)


def _line(axes: Axes, x: pd.Series | pd.Index, y: pd.Series, arm: str) -> None:
    label, colour, _, style = STYLES[arm]
    width = 3 if arm == "optimum" else 1.5
    axes.plot(x, y, color=colour, ls=style, label=label, lw=width)


def laboratory(rows: pd.DataFrame, params: Params) -> Figure:
    """F1: ratio to the optimum by problem and schedule."""
    ratios = lab_ratios(rows)
    order = list(np.exp(np.log(ratios).mean()).sort_values().index)
    figure, (axes,) = _axes(1, 10, 4.2)
    for kind, colour, marker in (("sgd", "#0072B2", "o"), ("adam", "#D55E00", "^")):
        own = ratios[ratios.index.str.startswith(kind)]
        offset = -0.12 if kind == "sgd" else 0.12
        for at, arm in enumerate(order):
            label = f"{kind.upper() if kind == 'sgd' else 'Adam'}, one problem" if at == 0 else None
            axes.scatter(np.full(len(own), at + offset), own[arm], s=16, color=colour,
                         marker=marker, alpha=0.6, label=label)  # fmt: skip
    means = np.exp(np.log(ratios[order]).mean())
    axes.scatter(range(len(order)), means, marker="_", s=300, color="black", label="geometric mean")
    axes.set_xticks(range(len(order)), order, rotation=45, ha="right")
    axes.set(yscale="log", ylabel="final loss / optimum's (log)")
    axes.legend(fontsize=8)
    return figure


def laboratory_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F1."""
    return (
        f"Final loss over the numerical optimum's on n = {len(lab_ratios(rows))} problems, each "
        "schedule at its best peak; the problems are a chosen grid, so no interval is drawn."
    )


def paths(rows: pd.DataFrame, params: Params) -> Figure:
    """F2: optimal and other schedules for four problems."""
    own = rows[rows["metric"] == "lr"]
    names = list(dict.fromkeys(own["unit"]))
    half = len(names) // 2  # SGD's problems come first; of each kind the first and the last
    chosen = [names[i] for i in sorted({0, half - 1, half, len(names) - 1} - {-1})]
    figure, panels = _axes(len(chosen), 12, 3.4)
    for axes, name in zip(panels, chosen, strict=True):
        for arm in ("optimum", "cosine", "uba0.3", "uta"):
            line = own[(own["unit"] == name) & (own["arm"] == arm)]
            _line(axes, line["step"], line["value"], arm)
        axes.set(yscale="log", xlabel="step")
        axes.set_title(name.replace(" source", "\nsource"), fontsize=8)
    panels[0].set_ylabel("learning rate / cap (log)")
    panels[0].legend(fontsize=8)
    return figure


def paths_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F2."""
    return (
        "Learning rate of the numerical optimum and of three schedules at their best peak, for "
        "some of the laboratory's problems (deterministic)."
    )


def differences(rows: pd.DataFrame, params: Params) -> Figure:
    """F3: paired differences in held-out loss, two regimes."""
    long = wide(rows, "long")
    parts = (
        ("short", tuned(rows), BASELINES),
        ("long", long, tuple(b for b in BASELINES if b in long)),
    )
    figure, panels = _axes(2, 10, 3.6, sharey=True)
    for axes, (name, table, arms) in zip(panels, parts, strict=True):
        found = against(table, arms, params)
        for at, arm in enumerate(BASELINES):
            if arm not in found.index:
                continue
            row, own = found.loc[arm], table["uta"] - table[arm]
            axes.scatter(own, np.full(len(own), at), s=12, color="#767676", alpha=0.6)
            axes.plot([row["low"], row["high"]], [at, at], color="#D55E00", lw=2)
            axes.scatter(row["mean"], at, color="#D55E00", marker="o", zorder=3)
        axes.axvline(0, color="black", lw=0.8)
        axes.set_yticks(range(len(BASELINES)), [STYLES[a][0] for a in BASELINES])
        axes.set(xlabel="UTA minus baseline, nats per byte\n(left of 0: UTA better)")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_title(f"{name} regime, n = {len(table)} seeds", fontsize=10)
    return figure


def differences_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F3."""
    return (
        f"Held-out loss, UTA minus each baseline: mean and 95 % BCa interval over n = "
        f"{len(tuned(rows))} paired seeds (grey: single seeds)."
    )


def closed_loop(rows: pd.DataFrame, params: Params) -> Figure:
    """F4: learning rate, training loss, and what the loop measured."""
    figure, panels = _axes(4, 14, 3.4)
    best = tuned_peaks(rows)
    for axes, metric, title in zip(
        panels, ("lr", "train_loss"), ("learning rate", "training loss, nats per byte"),
        strict=False,
    ):  # fmt: skip
        for arm in ("cosine", "linear", "wsd20", "uta"):
            own = rows[(rows["group"] == "short") & (rows["metric"] == metric)
                       & (rows["arm"] == arm) & (rows["peak"] == best[arm])]  # fmt: skip
            mean = own.groupby("step")["value"].mean()
            _line(axes, mean.index, mean, arm)
        axes.set(xlabel="step", ylabel=title)
    panels[1].set_ylim(top=float(rows[rows["metric"] == "train_loss"]["value"].quantile(0.9)))
    panels[0].legend(fontsize=8)
    for axes, metrics in ((panels[2], ("noise", "drift")), (panels[3], ("phi",))):
        for group, style in (("short", "-"), ("long", "--")):
            for metric, colour, marker in (("noise", "#0072B2", "s"), ("drift", "#009E73", "D"),
                                           ("phi", "#D55E00", "o")):  # fmt: skip
                if metric not in metrics:
                    continue
                own = rows[(rows["group"] == group) & (rows["arm"] == "uta")
                           & (rows["metric"] == metric)]  # fmt: skip
                middle = own.groupby("step")["value"].median()
                steps = params.short.steps if group == "short" else params.long.steps
                axes.plot(middle.index / steps, middle, style, color=colour, marker=marker, ms=4,
                          label=f"{metric}, {group}")  # fmt: skip
        axes.set(xlabel="share of the budget", yscale="log")
        axes.legend(fontsize=7)
    panels[2].set_ylabel("N and D, nats per byte (log)")
    panels[3].set_ylabel("phi (log)")
    return figure


def closed_loop_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F4."""
    n = losses(rows, "short")["unit"].nunique()
    return (
        "From the left: learning rate and training loss (means of all seeds at the tuned peak, "
        "short regime); noise excess N and obtainable drift D; phi (medians). "
        f"n = {n} test and {params.short.tuning} tuning seeds."
    )


def robustness(rows: pd.DataFrame, params: Params) -> Figure:
    """F5: held-out loss over peaks, phi0 and final ratios."""
    figure, panels = _axes(3, 14, 3.6)
    short, sweep = losses(rows, "short"), losses(rows, "sweep")
    level = sweep[sweep["final_ratio"] == params.final_ratio].pivot(
        index="unit", columns="arm", values="value"
    )
    _heat(panels[0], short[short["arm"].isin(STYLES)].pivot_table(
        index="arm", columns="peak", values="value"), "peak learning rate")  # fmt: skip
    phis = ("0.1", "0.3", "1", "3")
    table = pd.DataFrame(
        {phi: {"UTA": level["uta" if phi == "0.3" else f"uta@{phi}"].mean(),
               "UBA": level[f"uba{phi}"].mean()} for phi in phis}
    )  # fmt: skip
    _heat(panels[1], table, "phi0 (UTA), phi (UBA)")
    own = sweep[sweep["arm"].isin(params.sweep.ratio_arms)]
    _heat(panels[2], own.pivot_table(index="arm", columns="final_ratio", values="value"),
          "final ratio")  # fmt: skip
    return figure


def _heat(axes: Axes, table: pd.DataFrame, label: str) -> None:
    sns.heatmap(table, ax=axes, annot=True, fmt=".3f", cmap="cividis_r", cbar=False,
                annot_kws={"fontsize": 9})  # fmt: skip
    axes.set(xlabel=label, ylabel="")
    axes.tick_params(axis="y", rotation=0)


def robustness_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F5."""
    n = losses(rows, "sweep")["unit"].nunique()
    return (
        f"Held-out loss, nats per byte, mean over n = {n} test seeds; dark is high. Intervals of "
        "the ranges are in the verdicts c6 to c8. Middle and right: one peak, fewer steps."
    )


FIGURES = {
    "f1_lab": (["lab"], laboratory, laboratory_caption),
    "f2_paths": (["lab"], paths, paths_caption),
    "f3_differences": (["short", "long"], differences, differences_caption),
    "f4_loop": (["short", "long"], closed_loop, closed_loop_caption),
    "f5_robustness": (["short", "sweep"], robustness, robustness_caption),
}
