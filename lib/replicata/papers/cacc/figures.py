"""cacc's figures, for the notebook and the report: rows in, a matplotlib Figure out."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from replicata.papers.cacc.analysis import fixed_interface, values
from replicata.papers.cacc.decomposition import chance_coverage
from replicata.papers.cacc.experiment import Params
from replicata.papers.cacc.votes import observed_interval, released_votes
from replicata.statistics.proportions import wilson_interval
from replicata.statistics.resampling import cluster_bootstrap

BLACK, BLUE, ORANGE, GREEN, GREY = "#000000", "#0072B2", "#D55E00", "#009E73", "#999999"
#: Segments of a question's fate, from the bottom up; hatches for readers in grey.
FATES = {
    "accuracy": (BLUE, ""),
    "selection loss": ("#56B4E9", "//"),
    "tax: mode mismatch": (ORANGE, ""),
    "tax: incomplete": ("#E69F00", ".."),
    "tax: unparsable": ("#F0E442", "xx"),
    "no right answer in the pool": ("#EEEEEE", ""),
}
ARMS = {
    "greedy": "greedy, K = 1",
    "identity": "strict interface",
    "denoise": "noise removal alone",
    "align": "alignment alone",
    "repair": "repair alone",
    "align_repair": "alignment, repair",
    "cacc": "CACC",
    "pe": "PE alone",
    "cacc_pe": "CACC + PE",
    "placebo": "placebo",
    "budget": "budget arm",
    "harness": "harness filters",
    "constrained": "letters by log-prob",
}
OPTIONS = {"mcq4": 4, "mcq10": 10}


def _panels(
    count: int, width: float, height: float, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(width * count, height), layout="constrained")
        axes = figure.subplots(1, count, sharey=sharey, squeeze=False)[0]
    return figure, list(axes)


def _families(params: Params) -> list[str]:
    return [family.id for family in params.families]


def _part(arm: str) -> str:
    return "placebo" if arm == "placebo" else "main"


def _has(rows: pd.DataFrame, family: str, arm: str) -> bool:
    return bool(((rows["family"] == family) & (rows["arm"] == arm)).any())


def _interval(data: pd.Series, params: Params) -> tuple[float, float, float]:
    result = cluster_bootstrap(data.to_numpy(), seed=params.seed, n_resamples=params.bootstrap)
    return result.estimate, *result.interval


def fates(rows: pd.DataFrame, params: Params, family: str, arm: str) -> dict[str, float]:
    """Return the shares of `FATES` over the questions of a family in one arm."""
    interface = fixed_interface(params, family)
    raw, sel, acc = (values(rows, m, family, arm, interface) for m in ("raw", "sel", "acc"))
    taxed = rows[
        (rows["metric"] == "tax")
        & (rows["part"] == "main")
        & (rows["family"] == family)
        & (rows["arm"] == arm)
        & (rows["interface"] == interface)
    ]["text"].value_counts()
    # Several proposers: counts are per proposer, shares over all.
    n = len(raw) * rows["proposer"].nunique()
    shares = {"accuracy": acc.mean(), "selection loss": sel.mean() - acc.mean()}
    for cause in ("mode mismatch", "incomplete", "unparsable"):
        shares[f"tax: {cause}"] = taxed.get(cause, 0) / n
    shares["no right answer in the pool"] = 1 - raw.mean()
    return shares


def waterfall(rows: pd.DataFrame, params: Params) -> Figure:
    """F1: what becomes of the questions, strict interface against CACC."""
    figure, panels = _panels(len(params.families), 2.9, 4.6)
    for axes, family in zip(panels, _families(params), strict=True):
        bottom = np.zeros(3)
        table = [fates(rows, params, family, arm) for arm in ("identity", "cacc", "cacc_pe")]
        for fate, (colour, hatch) in FATES.items():
            share = np.array([column[fate] for column in table])
            axes.bar(
                range(3),
                share,
                bottom=bottom,
                color=colour,
                hatch=hatch,
                edgecolor="#444444",
                linewidth=0.5,
                label=fate,
            )
            bottom += share
        n = values(rows, "raw", family, "identity", fixed_interface(params, family)).size
        axes.set_xticks(range(3), ["strict", "CACC", "CACC\n+ PE"])
        axes.set_title(f"{family} ({fixed_interface(params, family)})\nn = {n}", fontsize=10)
        axes.grid(axis="x", visible=False)
    panels[0].set(ylabel="share of questions", ylim=(0, 1))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return figure


def waterfall_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F1, with the numbers."""
    parts = []
    for family in _families(params):
        before, after = (fates(rows, params, family, arm) for arm in ("identity", "cacc"))
        tax = sum(share for fate, share in before.items() if fate.startswith("tax"))
        parts.append(
            f"{family} {before['accuracy']:.2f} to {after['accuracy']:.2f} (tax {tax:.2f})"
        )
    return (
        f"Fate of every question, K = {params.k}, majority selector, fixed interface in brackets. "
        f"Accuracy, strict interface to CACC: {'; '.join(parts)}. Under CACC a right answer may "
        "also be created by a forced continuation."
    )


def arms(rows: pd.DataFrame, params: Params) -> Figure:
    """F2: accuracy and selectable coverage of every arm."""
    figure, panels = _panels(len(params.families), 3.0, 5.0)
    order = [arm for arm in ARMS if (rows["arm"] == arm).any()]
    for axes, family in zip(panels, _families(params), strict=True):
        interface = fixed_interface(params, family)
        for height, arm in enumerate(order):
            if not _has(rows, family, arm):
                continue
            for metric, colour, marker, shift in (
                ("acc", BLUE, "o", -0.14),
                ("sel", ORANGE, "s", 0.14),
            ):
                data = values(rows, metric, family, arm, interface, _part(arm))
                centre, low, high = _interval(data, params)
                axes.errorbar(
                    centre,
                    height + shift,
                    xerr=[[max(centre - low, 0)], [max(high - centre, 0)]],
                    color=colour,
                    marker=marker,
                    markersize=5,
                    markerfacecolor="white" if metric == "sel" else colour,
                    capsize=2,
                    label={"acc": "accuracy", "sel": "selectable coverage"}[metric]
                    if height == 1
                    else None,
                )
        if family in OPTIONS:
            axes.axvline(1 / OPTIONS[family], color=GREY, linestyle=":", label="chance accuracy")
        axes.set(xlim=(-0.03, 1.03), xlabel="share of questions")
        axes.set_title(f"{family} ({interface})", fontsize=10)
    panels[0].set_yticks(range(len(order)), [ARMS[arm] for arm in order])
    panels[0].invert_yaxis()
    letters = next((a for a, f in zip(panels, _families(params), strict=True) if f in OPTIONS),
                   panels[0])  # fmt: skip
    handles, labels = letters.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return figure


def arms_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F2."""
    return (
        f"Every arm behind the fixed interface (in brackets), majority selector, K = {params.k}: "
        "mean over questions with its 95 % cluster bootstrap interval. The placebo is the mean of "
        f"{params.placebo_draws} draws. Exploratory but for CACC against the strict interface."
    )


def against_k(rows: pd.DataFrame, params: Params) -> Figure:
    """F3: coverage and accuracy against the number of candidates."""
    figure, panels = _panels(len(params.families), 2.9, 4.2)
    part = rows[rows["part"] == "k"]
    lines = (
        ("identity", "raw_before", GREY, "D", "raw coverage"),
        ("identity", "sel", ORANGE, "^", "selectable, strict"),
        ("cacc", "sel", GREEN, "v", "selectable, CACC"),
        ("identity", "acc_expected", BLACK, "o", "accuracy, strict"),
        ("cacc", "acc_expected", BLUE, "s", "accuracy, CACC"),
    )
    for axes, family in zip(panels, _families(params), strict=True):
        for arm, metric, colour, marker, label in lines:
            one = part[
                (part["family"] == family) & (part["arm"] == arm) & (part["metric"] == metric)
            ]
            sizes = sorted(one["k"].unique())
            stats = [
                _interval(one[one["k"] == k].groupby("unit")["value"].mean(), params) for k in sizes
            ]
            centre, low, high = (np.array(column) for column in zip(*stats, strict=True))
            axes.errorbar(
                sizes,
                centre,
                yerr=[np.maximum(centre - low, 0), np.maximum(high - centre, 0)],
                color=colour,
                marker=marker,
                markersize=4,
                capsize=2,
                linewidth=1.2,
                label=label,
            )
        if family in OPTIONS:
            curve = [chance_coverage(OPTIONS[family], int(k)) for k in sizes]
            axes.plot(sizes, curve, color="#CC79A7", linestyle="--", label="coverage by guessing")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{k:g}" for k in sizes])
        axes.set(xlabel="candidates K", ylim=(-0.02, 1.02))
        axes.set_title(f"{family} ({fixed_interface(params, family)})", fontsize=10)
    panels[0].set_ylabel("share of questions")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return figure


def released(rows: pd.DataFrame, params: Params) -> Figure:
    """F4: predicted and observed change of accuracy per released vote."""
    names = [name for name in OPTIONS if name in _families(params)]
    figure, panels = _panels(len(names), 4.2, 3.8, sharey=False)
    for axes, family in zip(panels, names, strict=True):
        found = released_votes(rows, family, "letter-first")
        by_lead = found.table.assign(lead=found.table["lead"].clip(-3, 3)).groupby("lead")
        mean, share = by_lead["observed"].mean(), by_lead.size() / len(found.table)
        axes.bar(mean.index, 100 * mean, width=0.6, color="#56B4E9", edgecolor="#444444",
                 label="observed, by lead")  # fmt: skip
        for lead, value in mean.items():
            axes.annotate(
                f"{100 * share[lead]:.0f} %", (lead, 100 * max(value, 0)), (0, 3),
                textcoords="offset points", ha="center", fontsize=8,
            )  # fmt: skip
        low, high = observed_interval(found, params.bootstrap, params.seed)
        axes.errorbar(
            3.9, 100 * found.observed,
            yerr=[[100 * (found.observed - low)], [100 * (high - found.observed)]],
            color=BLACK, marker="o", capsize=3, label="observed, all",
        )  # fmt: skip
        axes.plot(4.4, 100 * found.predicted, color=ORANGE, marker="D", linestyle="",
                  label="predicted, all")  # fmt: skip
        axes.axhline(0, color="#444444", linewidth=0.8)
        axes.set_xticks(range(-3, 4), ["≤ −3", "−2", "−1", "0", "1", "2", "≥ 3"])
        axes.set(xlabel="lead of the right answer before", xlim=(-3.6, 4.9))
        axes.set_title(f"{family}: {len(found.table)} released votes", fontsize=10)
    panels[0].set_ylabel("change of accuracy per vote, points")
    panels[-1].legend(frameon=True, fontsize=8)
    return figure


def released_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F4, with the numbers."""
    parts = []
    for family in (name for name in OPTIONS if name in _families(params)):
        found = released_votes(rows, family, "letter-first")
        low, high = observed_interval(found, params.bootstrap, params.seed)
        parts.append(
            f"{family}: a = {found.a:.3f}, b = {found.b:.3f}, break-even a/b "
            f"{found.break_even:.2f}, predicted {100 * found.predicted:+.2f}, observed "
            f"{100 * found.observed:+.2f} points (95 % bootstrap over questions {100 * low:+.2f} "
            f"to {100 * high:+.2f})"
        )
    return (
        "Each vote that CACC released, added alone to the strict votes of its question (interface "
        "letter-first; questions with at least one strict vote). Percentages: how many votes meet "
        f"that lead. {'; '.join(parts)}. The formula knows one rival "
        "and takes a and b as the same at every lead; in real "
        "pools there are several rivals, and released votes follow the strict ones."
    )


def paper_numbers(rows: pd.DataFrame, params: Params) -> Figure:
    """F5: the paper's GPQA counts, and ours on four options, against chance."""
    figure, (axes,) = _panels(1, 7.0, 3.8)
    lines = [(f"paper, GPQA: {name}", k, 198, BLACK) for name, k in
             (("original", 11), ("CACC", 38), ("CACC + PE", 51))]  # fmt: skip
    interface = fixed_interface(params, "mcq4")
    for arm in ("identity", "cacc", "cacc_pe", "constrained"):
        data = values(rows, "acc", "mcq4", arm, interface)
        lines.append((f"ours, mcq4: {ARMS[arm]}", int(data.round().sum()), data.size, BLUE))
    for height, (_, k, n, colour) in enumerate(lines):
        low, high = wilson_interval(k, n).interval
        axes.errorbar(
            k / n, height, xerr=[[k / n - low], [high - k / n]], color=colour, marker="o",
            capsize=3,
        )  # fmt: skip
    axes.axvline(0.25, color=ORANGE, linestyle=":", label="chance, 1 of 4")
    axes.set_yticks(range(len(lines)), [f"{name} ({k}/{n})" for name, k, n, _ in lines])
    axes.set(xlabel="accuracy", xlim=(-0.02, 0.6))
    axes.invert_yaxis()
    axes.legend(frameon=True, fontsize=8)
    return figure


def token_budget(rows: pd.DataFrame, params: Params) -> Figure:
    """F6: the tax against the budget of new tokens, cut from the same samples."""
    figure, (axes,) = _panels(1, 5.6, 3.8)
    part = rows[rows["part"] == "budget"]
    cut = rows[rows["metric"] == "truncated"].groupby("budget")["value"].mean()
    lines = (
        ("identity", "raw", GREY, "D", "raw coverage"),
        ("identity", "sel", ORANGE, "^", "selectable, strict"),
        ("cacc", "sel", GREEN, "v", "selectable, CACC"),
        ("cacc", "acc", BLUE, "s", "accuracy, CACC"),
    )
    budgets = sorted(part["budget"].unique())
    for arm, metric, colour, marker, label in lines:
        one = part[(part["arm"] == arm) & (part["metric"] == metric)]
        stats = [_interval(one[one["budget"] == b].groupby("unit")["value"].mean(), params)
                 for b in budgets]  # fmt: skip
        centre, low, high = (np.array(column) for column in zip(*stats, strict=True))
        axes.errorbar(
            budgets, centre, yerr=[np.maximum(centre - low, 0), np.maximum(high - centre, 0)],
            color=colour, marker=marker, capsize=3, label=label,
        )  # fmt: skip
    axes.plot(cut.index, cut, color="#CC79A7", linestyle="--", marker="x",
              label="candidates cut off")  # fmt: skip
    axes.set_xticks(budgets, [f"{b:g}" for b in budgets])
    axes.set(xlabel="budget of new tokens", ylabel="share", ylim=(-0.02, 0.5))
    axes.legend(frameon=True, fontsize=8)
    return figure


FIGURES = {
    "f1_waterfall": (["pools"], waterfall, waterfall_caption),
    "f2_arms": (["pools"], arms, arms_caption),
    "f3_candidates": (
        ["pools"],
        against_k,
        "K candidates, all subsets of one pool averaged, mean over questions with its 95 % cluster "
        "bootstrap interval. Accuracy is the expectation under uniform tie-breaks. On multiple "
        "choice the dashed line is what uniform guesses cover.",
    ),
    "f4_released": (["pools"], released, released_caption),
    "f5_paper": (
        ["pools"],
        paper_numbers,
        "Right answers of all questions with 95 % Wilson intervals. The paper's counts follow from "
        "its percentages and the 198 questions of GPQA Diamond.",
    ),
    "f6_budget": (
        ["pools"],
        token_budget,
        "arith, budgets cut from the same samples of 144 tokens; mean over questions with its 95 % "
        "cluster bootstrap interval. The tax is the gap between raw and selectable coverage.",
    ),
}
