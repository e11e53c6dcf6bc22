"""rlvr_entropy's figures, for the notebook and the report: rows in, a matplotlib Figure out."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from replicata.papers.rlvr_entropy.estimates import (
    EARLY,
    EXPLODED,
    paired_terms,
    slopes,
    t_interval,
    terms,
    values,
)
from replicata.papers.rlvr_entropy.experiment import Params

#: Colour-blind-safe; each series has a marker or a line style of its own for readers in grey.
BLUE, RED, GREEN, ORANGE, BLACK, GREY = (
    "#0072B2", "#D55E00", "#009E73", "#E69F00", "#000000", "#767676",
)  # fmt: skip
SAMPLERS = {
    "topp": ("top-p", BLUE, "o"),
    "topk": ("top-k", GREEN, "s"),
    "minp": ("min-p", ORANGE, "D"),
    "cool": ("T < 1", BLACK, "v"),
    "exact": ("exact", GREY, "P"),
    "hot": ("T > 1", RED, "^"),
    "mix": ("mixed with uniform", "#CC79A7", "X"),
}
RULES = {
    "fail": ("count as failure", RED, "-"),
    "zeronet": ("zero net", BLUE, "--"),
    "zeronet-+0.05": ("zero net + 0.05", GREEN, "-."),
    "sharp": ("sharpness-weighted", BLACK, ":"),
}


def _axes(
    columns: int, width: float, height: float, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, sharey=sharey, squeeze=False)[0]
    return figure, list(axes)


def _band(axes: Axes, wide: pd.DataFrame, **style: object) -> None:
    """Draw the mean over columns (units) with its 95 % percentile bootstrap interval."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(wide.shape[1], size=(1000, wide.shape[1]))
    means = wide.to_numpy()[:, drawn].mean(-1)
    low, high = np.percentile(means, [2.5, 97.5], axis=1)
    axes.fill_between(wide.index, low, high, color=style["color"], alpha=0.15, lw=0)
    axes.plot(wide.index, wide.mean(axis=1), **style)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def gap_by_sampler(rows: pd.DataFrame, params: Params) -> Figure:
    """F1: the entropy score f(p), and the sharpness gap of random pairs by sampler."""
    figure, (left, right) = _axes(2, 10.0, 4.2)
    curve = rows[rows["arm"] == "curve"]
    for (level, part), style in zip(curve.groupby("entropy_level"), ("-", "--", ":"), strict=True):
        left.plot(part["p"], part["value"], style, color=BLUE, label=f"H = {level:g} nats")
        left.axvline(np.exp(-level), ls=style, color=GREY, lw=0.8)
    left.axhline(0, color=BLACK, lw=0.8)
    left.set(xscale="log", xlabel="probability p of a token", ylabel="f(p) = p (log p + H), nats")
    left.set_ylim(-0.4, 1.0)
    left.legend(title="grey: p = exp(-H)", fontsize=8, title_fontsize=8)
    gaps = values(rows, "gap")
    order = [name for name in SAMPLERS if name in set(gaps["arm"])]
    shown = gaps[gaps["arm"].isin(order)].groupby("arm").head(400)
    for at, name in enumerate(order):
        _label, colour, marker = SAMPLERS[name]
        own = shown[shown["arm"] == name]["value"]
        jitter = np.random.default_rng(at).uniform(-0.3, 0.3, len(own))
        right.scatter(at + jitter, own, s=6, color=colour, marker=marker, alpha=0.5, lw=0)
    right.axhline(0, color=BLACK, lw=0.8)
    right.set_xticks(range(len(order)), [SAMPLERS[n][0] for n in order], rotation=30, ha="right")
    right.set_yscale("symlog", linthresh=1e-3)
    right.set(ylabel="sharpness gap S, nats (symmetric log)", xlabel="")
    right.set_title("above 0: a positive shift sharpens; below: it flattens", fontsize=9)
    return figure


def gap_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F1."""
    gaps = values(rows, "gap")
    signed = gaps[gaps["arm"].isin(SAMPLERS)]
    return (
        "Left: the score f whose expectation under sampler and learner is compared; it is not "
        "monotone in p, so the sign of S is a theorem and not obvious. Right: S of up to 400 "
        f"random pairs for each kind of sampler ({len(signed)} pairs tested), 2 to 64 tokens."
    )


def entropy_by_shift(rows: pd.DataFrame, params: Params) -> Figure:
    """F2: entropy curves by shift, truncated against exact sampling."""
    figure, axes = _axes(2, 10.0, 4.0, sharey=True)
    own = values(rows, "entropy", optimizer="adam", learner="plain", ratio="none")
    shifts = sorted(own["shift"].unique())
    colours = sns.color_palette("cividis", len(shifts))
    styles = ["-", "--", "-.", ":", (0, (5, 1))]
    for panel, sampler, title in zip(
        axes, ("topp", "exact"), ("top-p 0.9", "exact sampling"), strict=True
    ):
        for index, shift in enumerate(shifts):
            part = own[(own["sampler"] == sampler) & (own["shift"] == shift)]
            wide = part.pivot_table(index="step", columns="unit", values="value")
            if len(wide):
                style = styles[index % len(styles)]
                _band(panel, wide, color=colours[index], ls=style, label=f"{shift:+.2f}")
        panel.set(xlabel="update", title=title)
    axes[0].set_ylabel("learner's entropy, nats a token")
    axes[1].legend(title="net advantage N", fontsize=8, title_fontsize=8)
    return figure


def slope_by_shift(rows: pd.DataFrame, params: Params) -> Figure:
    """F3: slope against shift with fitted lines; importance ratios and renormalised learner."""
    figure, (left, right) = _axes(2, 10.0, 4.2)
    table = slopes(rows)
    series = (
        ("top-p 0.9", BLUE, "o", "-", {"sampler": "topp", "learner": "plain", "ratio": "none"}),
        ("with ratios", ORANGE, "D", "-.", {"sampler": "topp", "ratio": "sampler"}),
        ("renormalised learner", GREEN, "s", ":", {"sampler": "topp", "learner": "renorm"}),
        ("exact sampling", BLACK, "^", "--", {"sampler": "exact", "learner": "plain"}),
    )
    for panel, optimizer in ((left, "adam"), (right, "sgd")):
        for offset, (label, colour, marker, style, where) in enumerate(series):
            own = table[table["optimizer"] == optimizer]
            for column, value in where.items():
                own = own[own[column] == value]
            if own.empty:
                continue
            means = own.groupby("shift")["slope"].mean()
            ends = [t_interval(part["slope"]) for _, part in own.groupby("shift")]
            at = means.index.to_numpy() + (offset - 1.5) * 0.002
            low, high = np.array(ends).T
            errors = [means - low, high - means]
            panel.errorbar(at, means, yerr=errors, fmt=marker, color=colour, ms=5, capsize=2)
            fit = np.polyfit(own["shift"], own["slope"], 1)
            panel.plot(means.index, np.polyval(fit, means.index), style, color=colour, label=label)
        name = {"adam": "Adam", "sgd": "SGD"}[optimizer]
        panel.set(xlabel="shift of the net advantage", title=name)
    left.set_ylabel("entropy slope, nats a token and update")
    left.legend(fontsize=8)
    return figure


def slope_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F3."""
    return (
        f"Entropy slope over {params.null.steps} updates of the null task against the shift, mean "
        f"with 95 % t interval over {rows['unit'].nunique()} paired seeds; lines are least "
        "squares. Markers are set apart sideways. Importance ratios keep the kept mass's share of "
        "the drift "
        "(visible under SGD; Adam divides a constant factor out), renormalising the learner "
        "removes it."
    )


def decomposition(rows: pd.DataFrame, params: Params) -> Figure:
    """F4: the terms of the drift by rule, and the measured change against their sum."""
    figure, (left, right) = _axes(2, 10.5, 4.4)
    table = terms(rows)
    own = table[(table["sampler"] == "topp") & (table["norm"] == "token")]
    names = {"signal": "signal", "net_term": "N·S̄", "covariance": "Cov(A, S)"}
    colours = {"signal": GREY, "net_term": RED, "covariance": BLUE}
    hatches = {"signal": "", "net_term": "//", "covariance": ".."}
    labels = []
    groups = list(own.groupby(["task", "rule"]))
    for at, ((task, rule), part) in enumerate(groups):
        labels.append(f"{rule}\n{task.replace('_', ' ')}")
        for offset, term in enumerate(names):
            units = -part.groupby("unit")[term].mean()
            low, high = t_interval(units)
            mean = units.mean()
            left.bar(
                at + (offset - 1) * 0.27, mean, 0.25, color=colours[term], hatch=hatches[term],
                edgecolor="white", label=names[term] if at == 0 else None,
                yerr=[[mean - low], [high - mean]], ecolor=BLACK, capsize=2,
            )  # fmt: skip
    left.set_xticks(range(len(groups)), labels, fontsize=7, rotation=35, ha="right")
    left.axhline(0, color=BLACK, lw=0.8)
    left.set_ylabel("contribution to dH per unit step, nats")
    left.legend(fontsize=8)
    paired = paired_terms(rows).xs("topp", level="sampler").reset_index()
    marks = (("fail", RED, "o"), ("mask", BLUE, "^"), ("sharp", BLACK, "s"))
    for rule, colour, marker in marks:
        part = paired[(paired["rule"] == rule) & (paired["norm"] == "token")]
        right.scatter(
            1e3 * part["mismatch"], 1e3 * part["change"], s=14, color=colour, marker=marker,
            alpha=0.6, lw=0, label=rule,
        )  # fmt: skip
    right.axhline(0, color=BLACK, lw=0.8)
    right.axvline(0, color=BLACK, lw=0.8)
    right.xaxis.set_major_locator(MaxNLocator(6))
    right.set(xlabel="predicted mismatch, minus zero-net's, 1e-3 nats per unit step")
    right.set_ylabel("measured change, minus zero-net's, 1e-3 nats")
    right.legend(fontsize=8)
    return figure


def decomposition_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F4."""
    table, paired = terms(rows), paired_terms(rows).xs("topp", level="sampler")
    return (
        "Left: mean contribution of each term to the first-order change of entropy under top-p "
        f"0.9, with 95 % t interval over {table['unit'].nunique()} seeds; below 0 sharpens. "
        f"Right: top-p 0.9, the first {EARLY} updates, when arms of a seed see nearly the same "
        "rollouts: predicted mismatch and measured change at the same states before and after "
        "the update, both minus zero-net's of the same seed (correlation "
        f"{paired.corr().loc['mismatch', 'change']:.2f}, {len(paired)} differences, seq_mean "
        "included). Shared parameters and Adam set the scale."
    )


def long_runs(rows: pd.DataFrame, params: Params) -> Figure:
    """F5: 100 updates of the hard task, by rule; left truncated, right exact sampling."""
    figure, axes = _axes(2, 10.5, 4.2, sharey=True)
    own = values(rows, "entropy", learner="plain")
    for panel, sampler, title in zip(
        axes, ("narrow", "exact"), ("top-p 0.7", "exact sampling"), strict=True
    ):
        for rule, (label, colour, style) in RULES.items():
            part = own[own["arm"] == f"{sampler}-{rule}"]
            wide = part.pivot_table(index="step", columns="unit", values="value")
            if len(wide):
                _band(panel, wide, color=colour, ls=style, label=label)
        start = own[own["step"] == 0]["value"].mean()
        panel.axhline(start + EXPLODED, color=GREY, lw=0.8)
        panel.set(xlabel="update", title=title)
    axes[0].text(0, start + EXPLODED, " start + 0.5 nats", fontsize=7, va="bottom", color=GREY)
    axes[0].set_ylabel("learner's entropy, nats a token")
    axes[0].legend(fontsize=8)
    return figure


FIGURES = {
    "f1_gap": (["theorem"], gap_by_sampler, gap_caption),
    "f2_entropy": (
        ["null"],
        entropy_by_shift,
        lambda rows, params: (
            "Null reward (a fair coin): mean entropy at visited states by net-advantage shift, "
            f"with 95 % bootstrap interval over {rows['unit'].nunique()} seeds. Arms of a seed "
            "share prompts, noise and coins."
        ),
    ),
    "f3_slope": (["null"], slope_by_shift, slope_caption),
    "f4_terms": (["learn"], decomposition, decomposition_caption),
    "f5_long": (
        ["explode"],
        long_runs,
        lambda rows, params: (
            f"The hard task over {params.explode.steps} updates, mean with 95 % bootstrap interval "
            f"over {rows['unit'].nunique()} seeds. Grey: where a run counts as exploded."
        ),
    ),
}
