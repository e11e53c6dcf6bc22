"""kvfold's figures, for the notebook and the report: rows in, a matplotlib Figure out."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from replicata.papers.kvfold.analysis import NEAR_TIE, log_ratio
from replicata.papers.kvfold.experiment import Params
from replicata.statistics.resampling import cluster_bootstrap

#: Colour-blind-safe, and each arm has a marker of its own for readers in grey.
ARMS = {
    "am": ("Attention Matching (bias applied)", "#000000", "o"),
    "fold": ("fold", "#0072B2", "s"),
    "drop": ("drop the bias", "#D55E00", "^"),
}
NAMES = {
    "am": "Attention Matching",
    "fold": "fold",
    "drop": "drop the bias",
    "nobias": "values refitted, no bias",
    "fold_refit": "fold, values refitted",
    "fold_repeat": "fold, repeat queries",
    "am_direct": "kept keys, own values",
    "snapkv": "SnapKV",
    "streaming": "StreamingLLM",
    "random": "random keys",
    "nocontext": "no context",
}


def _axes(
    columns: int, width: float, height: float, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, sharey=sharey, squeeze=False)[0]
    return figure, list(axes)


def _plain_log(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, since its range may be less than a decade."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def projections(rows: pd.DataFrame, params: Params) -> Figure:
    """F1: how held-out queries project on the direction, and ε by layer and head."""
    figure, (left, right) = _axes(2, 9.5, 4.6)
    counts = rows[rows["metric"] == "projection_count"]
    table = counts.pivot_table(index="layer", columns="bin", values="value", aggfunc="sum")
    share = table.div(table.sum(axis=1), axis=0)
    share.index = share.index.astype(int)
    share.columns = [f"{left_edge:.1f}" for left_edge in share.columns]
    sns.heatmap(
        share,
        ax=left,
        cmap="cividis",
        xticklabels=5,
        yticklabels=5,
        cbar_kws={"label": "share of held-out queries"},
    )
    left.set(xlabel="projection q·u (1 is exact)", ylabel="layer", title="held-out repeat queries")
    errors = rows[rows["metric"] == "rms_epsilon"]
    heat = errors.pivot_table(index="layer", columns="head", values="value", aggfunc="mean")
    heat.index, heat.columns = heat.index.astype(int), heat.columns.astype(int)
    sns.heatmap(
        heat, ax=right, cmap="cividis", yticklabels=5, cbar_kws={"label": "rms of ε = q·u − 1"}
    )
    right.set(xlabel="KV head", ylabel="layer", title="mean over contexts")
    return figure


def projections_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F1, with the numbers."""
    errors = rows[rows["metric"] == "rms_epsilon"]["value"]
    smallest = rows[rows["metric"] == "min_projection"]["value"]
    return (
        f"Projection of held-out queries on each head's direction, {rows['unit'].nunique()} "
        f"contexts, {len(errors)} head directions. Median rms ε {errors.median():.3f}, largest "
        f"{errors.max():.3f}; smallest projection of any query {smallest.min():.2f}."
    )


def error_and_bound(rows: pd.DataFrame, params: Params) -> Figure:
    """F2: output error of folding against its bound, both axes logarithmic."""
    figure, (axes,) = _axes(1, 5.6, 4.8)
    index = ["unit", "budget", "layer", "head", "source", "query"]
    points = rows[rows["metric"].isin(["error", "bound"])]
    wide = points.pivot_table(index=index, columns="metric", values="value").reset_index()
    wide = wide[(wide["error"] > 0) & (wide["bound"] > 0)]
    for source, marker, colour in (("repeat", "o", "#0072B2"), ("question", "^", "#D55E00")):
        part = wide[wide["source"] == source]
        axes.scatter(
            part["bound"],
            part["error"],
            s=6,
            marker=marker,
            color=colour,
            alpha=0.35,
            linewidths=0,
            label=f"{source} queries (n = {len(part)})",
            rasterized=True,
        )
    ends = [wide["bound"].min(), wide["bound"].max()]
    axes.plot(ends, ends, color="black", linewidth=1, label="error = bound")
    axes.set(xscale="log", yscale="log", ylim=(ends[0] * 1e-4, ends[1] * 2))
    axes.set(xlabel="bound D tanh(|ε| R / 4)", ylabel="output error |õ − o|")
    axes.legend(frameon=True, fontsize=8, markerscale=3)
    return figure


def error_and_bound_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F2, with the numbers."""
    ratios = rows[rows["metric"] == "max_ratio"]["value"]
    queries = rows[rows["metric"] == "queries"]["value"].sum()
    errors = rows[rows["metric"] == "mean_error"].groupby("arm")["value"].mean()
    return (
        f"Error of folding at one KV head against its bound, in the unit of the values. A sample "
        f"is drawn; over all {queries:,.0f} held-out query-head pairs the largest error / bound is "
        f"{ratios.max():.3f}. Mean error: fold {errors['fold']:.3f}, drop {errors['drop']:.3f}."
    )


def _mean_and_interval(values: pd.Series, seed: int) -> tuple[float, float, float]:
    result = cluster_bootstrap(values, seed=seed)
    return result.estimate, *result.interval


def kl_by_budget(rows: pd.DataFrame, params: Params) -> Figure:
    """F3: KL from the full cache by arm and budget, one panel per family."""
    kl = rows[(rows["metric"] == "kl") & rows["arm"].isin(ARMS)]
    families = [family.name for family in params.families]
    figure, panels = _axes(len(families), 4.6 * len(families), 3.8)
    for axes, family in zip(panels, families, strict=True):
        part = kl[kl["family"] == family]
        for shift, (arm, (label, colour, marker)) in enumerate(ARMS.items()):
            means = part[part["arm"] == arm].groupby(["budget", "unit"])["value"].mean()
            budgets = sorted(means.index.unique("budget"))
            stats = [_mean_and_interval(means.loc[b], params.seed) for b in budgets]
            centre, low, high = (np.array(column) for column in zip(*stats, strict=True))
            axes.errorbar(
                np.array(budgets) * 1.04 ** (shift - 1),
                centre,
                yerr=[centre - low, high - centre],
                color=colour,
                marker=marker,
                capsize=3,
                linewidth=1.2,
                label=label,
            )
        axes.set(xscale="log", yscale="log", xlabel="budget (share of entries kept)")
        axes.set_xticks(budgets, [f"{b:g}" for b in budgets])
        axes.xaxis.set_minor_formatter(NullFormatter())
        _plain_log(axes.yaxis)
        axes.set_title(f"{family}, {part['unit'].nunique()} contexts")
    panels[0].set_ylabel("KL(full ‖ arm), nats per token")
    panels[0].legend(frameon=True, fontsize=8)
    return figure


def kl_by_budget_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F3."""
    questions = rows[rows["metric"] == "kl"].groupby("unit")["question"].nunique().max()
    return (
        f"Token-mean KL on teacher-forced answers of the full cache, at most {questions:.0f} "
        f"questions of {params.answer_tokens} tokens per context; mean over contexts with its 95 % "
        "cluster bootstrap interval (percentile). Logarithmic axes; points are shifted sideways "
        "so that intervals can be told apart."
    )


def ablations(rows: pd.DataFrame, params: Params) -> Figure:
    """F3b: every arm at one budget; exploratory."""
    kl = rows[rows["metric"] == "kl"]
    kl = kl[(kl["budget"] == params.ablation_budget) | (kl["arm"] == "nocontext")]
    means = kl.groupby(["arm", "family", "unit"])["value"].mean()
    families = [family.name for family in params.families]
    figure, panels = _axes(len(families), 4.6 * len(families), 4.2, sharey=True)
    order = [arm for arm in NAMES if arm in means.index.unique("arm")]
    for axes, family in zip(panels, families, strict=True):
        for row, arm in enumerate(order):
            values = means.loc[arm, family]
            centre, low, high = _mean_and_interval(values, params.seed)
            axes.errorbar(
                centre,
                row,
                xerr=[[centre - low], [high - centre]],
                color=ARMS.get(arm, ("", "#666666", ""))[1],
                marker=ARMS.get(arm, ("", "", "D"))[2],
                capsize=3,
            )
        axes.set(xscale="log", xlabel="KL(full ‖ arm), nats per token", title=family)
        _plain_log(axes.xaxis)
        axes.set_yticks(range(len(order)), [NAMES[arm] for arm in order])
    panels[0].invert_yaxis()
    return figure


def unequal_gap(rows: pd.DataFrame, params: Params) -> Figure:
    """F4: fold's KL relative to drop's, equal against unequal budgets, paired by context."""
    budget = params.unequal.budget
    unequal = log_ratio(rows, "fold", "drop", "unequal")[budget]
    equal = log_ratio(rows, "fold", "drop")[budget].reindex(unequal.index)
    figure, (axes,) = _axes(1, 5.4, 4.2)
    colours = {"squad": "#0072B2", "records": "#D55E00", "hotpot": "#009E73"}
    markers = {"squad": "o", "records": "^", "hotpot": "s"}
    for family, before in equal.groupby(level="family"):
        after = unequal.loc[before.index]
        for x, y in zip(np.exp(before), np.exp(after), strict=True):
            axes.plot(
                [0, 1], [x, y], color=colours.get(family, "#666666"), linewidth=0.8, alpha=0.6
            )
            for position, value in ((0, x), (1, y)):
                axes.plot(
                    position,
                    value,
                    marker=markers.get(family, "D"),
                    color=colours.get(family, "#666666"),
                    markersize=4,
                )
    for position, values in ((0, equal), (1, unequal)):
        centre, low, high = np.exp(_mean_and_interval(values, params.seed))
        axes.errorbar(
            position + (-0.12 if position == 0 else 0.12),
            centre,
            yerr=[[centre - low], [high - centre]],
            color="black",
            marker="D",
            capsize=4,
        )
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set(yscale="log", ylabel="KL of fold / KL of drop", xlim=(-0.4, 1.4))
    _plain_log(axes.yaxis)
    axes.set_xticks([0, 1], ["equal budgets", "unequal budgets"])
    handles = [
        Line2D([], [], color=colours.get(f, "#666666"), marker=markers.get(f, "D"), label=f)
        for f in equal.index.unique("family")
    ]
    handles.append(Line2D([], [], color="black", marker="D", label="geometric mean, 95 % interval"))
    axes.legend(handles=handles, frameon=True, fontsize=8)
    return figure


def unequal_gap_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F4."""
    unequal = log_ratio(rows, "fold", "drop", "unequal")[params.unequal.budget]
    return (
        f"Below 1 folding is closer to the full cache than dropping the bias. {len(unequal)} "
        f"contexts at budget {params.unequal.budget:g}, the same total number of keys on both "
        "sides; a line is a context, black is the geometric mean with its 95 % cluster bootstrap "
        "interval. Unequal budgets are our own (greedy exchange on one calibration context)."
    )


def engines(rows: pd.DataFrame, params: Params) -> Figure:
    """F5: vLLM against transformers, question by question."""
    figure, (left, right) = _axes(2, 9.0, 3.8)
    own = rows[rows["arm"] == "fold"]
    names = list(own["dtype"].unique())
    for position, dtype in enumerate(names):
        part = own[own["dtype"] == dtype]
        wide = part[part["unit"] != "engine"].pivot_table(
            index=["unit", "question"], columns="metric", values="value"
        )
        spread = np.linspace(-0.3, 0.3, len(wide))
        for axes, metric in ((left, "common"), (right, "max_logprob_difference")):
            values = wide[metric].clip(lower=1e-7) if axes is right else wide[metric]
            for equal, marker, colour in ((1, "o", "#0072B2"), (0, "x", "#D55E00")):
                chosen = (wide["equal"] == equal).to_numpy()
                axes.scatter(
                    position + spread[chosen],
                    values[chosen],
                    marker=marker,
                    color=colour,
                    s=18,
                    label=("all tokens equal" if equal else "differs") if position == 0 else None,
                )
    for axes in (left, right):
        axes.set_xticks(range(len(names)), names)
    left.set_ylabel("tokens in common (an answer may end early)")
    right.set(yscale="log", ylabel="largest |Δ log-probability| before it, nats")
    left.legend(frameon=True, fontsize=8)
    return figure


def engines_caption(rows: pd.DataFrame, params: Params) -> str:
    """Caption of F5, with the numbers."""
    equal = rows[(rows["metric"] == "equal") & (rows["arm"] == "fold")]
    shares = ", ".join(
        f"{dtype} {int(part['value'].sum())}/{len(part)}"
        for dtype, part in equal.groupby("dtype", sort=False)
    )
    control = rows[(rows["metric"] == "equal") & (rows["arm"] == "connector_off")]["value"]
    return (
        "A point is a question, answered greedily by vLLM from the folded cache and by "
        f"transformers from the same cache. Equal in all tokens: {shares}; with the connector off "
        f"{int(control.sum())}/{len(control)}. A difference that begins where transformers "
        f"preferred its own token by less than {NEAR_TIE:g} nats counts as a near-tie."
    )


FIGURES = {
    "f1_projection": (["geometry"], projections, projections_caption),
    "f2_bound": (["geometry"], error_and_bound, error_and_bound_caption),
    "f3_kl": (["quality"], kl_by_budget, kl_by_budget_caption),
    "f3b_arms": (
        ["quality"],
        ablations,
        "Exploratory, no claim rests on it: KL of every arm at one budget (10 % of the entries), "
        "mean over contexts with its 95 % cluster bootstrap interval. SnapKV, StreamingLLM and "
        "random keep tokens with their own values, which any engine serves as well.",
    ),
    "f4_unequal": (["quality", "unequal"], unequal_gap, unequal_gap_caption),
    "f5_serving": (["serving"], engines, engines_caption),
}
