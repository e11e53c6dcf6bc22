"""From the cells' rows to the evidence for each claim (spec 7).

The unit is the seed: all arms of a seed share initial weights and data order.
"""

import numpy as np
import pandas as pd

from replicata.claims.evidence import Evidence
from replicata.papers.uta_lrd.estimates import (
    BASELINES,
    LAB_BASELINES,
    geometric_mean,
    lab_ratios,
    losses,
    ranges,
    tuned,
    tuned_peaks,
    wide,
)
from replicata.papers.uta_lrd.experiment import Params
from replicata.statistics.multiplicity import holm
from replicata.statistics.paired import sign_flip_test
from replicata.statistics.power import minimal_detectable_effect
from replicata.statistics.resampling import cluster_bootstrap

ALPHA = 0.05
SCALE_NOTE = (
    "A Llama of 0.1M parameters and some hundred steps on the standard library's sources: an "
    "analogue of the paper's 60M to 1B, not a test of its numbers."
)


def against(table: pd.DataFrame, names: tuple[str, ...], params: Params) -> pd.DataFrame:
    """Return UTA minus each baseline: mean, BCa interval, two-sided p, and Holm over them."""
    rows = []
    for name in names:
        data = table["uta"] - table[name]
        test = sign_flip_test(data, "two-sided", seed=params.seed)
        low, high = interval(data, params)
        rows.append((name, data.mean(), low, high, test.p_value, test.smallest_p))
    columns = ["arm", "mean", "low", "high", "p", "smallest_p"]
    found = pd.DataFrame(rows, columns=columns).set_index("arm")
    found["adjusted"] = holm(found["p"]).adjusted
    return found


def interval(data: pd.Series, params: Params) -> tuple[float, float]:
    """Return the 95 % BCa bootstrap interval of the mean over units."""
    # Two seeds (profile smoke) leave the jackknife of BCa undefined.
    method = "BCa" if len(data) > 2 and data.nunique() > 1 else "percentile"
    found = cluster_bootstrap(data.to_numpy(), seed=params.seed, method=method)
    return float(found.interval[0]), float(found.interval[1])


def _notes(found: pd.DataFrame, prefix: str) -> list[str]:
    return [
        f"{prefix}, UTA minus {name}: {row['mean']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f}),"
        f" Holm-adjusted p {row['adjusted']:.3g}."
        for name, row in found.iterrows()
    ]


def _better(found: pd.DataFrame) -> set[str]:
    return set(found.index[(found["mean"] < 0) & (found["adjusted"] <= ALPHA)])


def _worse(found: pd.DataFrame) -> set[str]:
    return set(found.index[(found["mean"] > 0) & (found["adjusted"] <= ALPHA)])


def _comparison(found: pd.DataFrame, data: pd.Series, name: str, n_unit: str,
                smallest: float) -> dict[str, object]:  # fmt: skip
    """Return the fields of an Evidence that describe the contrast with one baseline."""
    row = found.loc[name]
    effect = minimal_detectable_effect(data, alternative="two-sided", smallest_p=smallest)
    return {
        "interval": (row["low"], row["high"]),
        "interval_kind": f"95 % BCa bootstrap over {len(data)} {n_unit}, against {name}",
        "p_value": row["adjusted"],
        "smallest_p": smallest,
        "test": f"exact two-sided sign-flip test, Holm over {len(found)} baselines",
        "n": len(data),
        "n_unit": n_unit,
        "mde": effect.effect,
        "no_mde": effect.reason,
    }


def shape(cells: pd.DataFrame, params: Params) -> Evidence:
    """c1: kernel exponents of SGD and Adam for one spectrum."""
    error = (cells["value"] - cells["expected"]).abs()
    return Evidence(
        quantities={"largest_error": error.max()},
        estimate_unit="difference from 2-1/beta (SGD) or 2-2/beta (Adam)",
        n=len(cells),
        n_unit="spectra",
        notes=[
            f"{row.arm}, beta {row.beta:g}: fitted {row.value:.4f}, expected {row.expected:.4f}."
            for row in cells.itertuples()
        ],
    )


def near_optimal(cells: pd.DataFrame, params: Params) -> Evidence:
    """c2: distance from the numerical optimum in the laboratory."""
    logs = np.log(lab_ratios(cells))
    means = geometric_mean(lab_ratios(cells))
    found = against(logs, LAB_BASELINES, params)
    rival = found["mean"].idxmax()  # the closest baseline
    data = logs["uta"] - logs[rival]
    smallest = min(1.0, found["smallest_p"].iloc[0] * len(found))
    fields = _comparison(found, data, rival, "problems", smallest)
    low, high = interval(logs["uta"], params)
    fields |= {
        "interval": (float(np.exp(low)), float(np.exp(high))),
        "interval_kind": f"95 % BCa bootstrap over {len(data)} problems, of UTA's geometric mean",
        "p_value": found["adjusted"].max(),
    }
    return Evidence(
        quantities={
            "uta_ratio": means["uta"],
            "better_than": len(_better(found)),
            "baselines": len(found),
            "worse_than": len(_worse(found)),
        },
        estimate_unit="final loss over the optimum's, geometric mean",
        notes=[
            "Ratios: " + ", ".join(f"{a} {v:.3f}" for a, v in means.sort_values().items()) + ".",
            f"Worst problem for UTA: {np.exp(logs['uta'].max()):.2f}.",
            *_notes(found, "Log ratio"),
            "The problems were chosen, not drawn: p says how regular the order is among them.",
        ],
        **fields,
    )


def gains(cells: pd.DataFrame, params: Params) -> Evidence:
    """c3: held-out loss of the small Llama, two regimes."""
    short = tuned(cells)
    long = wide(cells, "long")
    first = against(short, BASELINES, params)
    second = against(long, tuple(b for b in BASELINES if b in long), params)
    both = _better(first) & _better(second)
    peaks = tuned_peaks(cells)
    smallest = min(1.0, first["smallest_p"].iloc[0] * len(first))
    return Evidence(
        quantities={
            "cosine_difference": first.loc["cosine", "mean"],
            "all_below": bool((first["mean"] < 0).all() and (second["mean"] < 0).all()),
            "beats_cosine_and_linear": {"cosine", "linear"} <= both,
            "worse_than": len(_worse(first) | _worse(second)),
        },
        estimate_unit="nats a byte, UTA minus cosine, short regime",
        notes=[
            "Tuned peaks: " + ", ".join(f"{a} {p:g}" for a, p in peaks.items()) + ".",
            "Mean losses, short: "
            + ", ".join(f"{a} {v:.4f}" for a, v in short.mean().sort_values().items()) + ".",
            *_notes(first, "Short"),
            *_notes(second, "Long"),
        ],
        scale_note=SCALE_NOTE,
        **_comparison(first, short["uta"] - short["cosine"], "cosine", "paired seeds", smallest),
    )  # fmt: skip


def images(cells: pd.DataFrame, params: Params) -> Evidence:
    """c4: the image analogue, both models."""
    parts = {kind: wide(cells, "vision", model=kind) for kind in ("cnn", "vit")}
    names = ("cosine", "wsd20", "uba1")
    found = {kind: against(table, names, params) for kind, table in parts.items()}
    vit = parts["vit"]
    smallest = min(1.0, found["vit"]["smallest_p"].iloc[0] * len(names))
    return Evidence(
        quantities={
            "vit_cosine_difference": found["vit"].loc["cosine", "mean"],
            "better": sum(len(_better(f)) for f in found.values()),
            "worse": sum(len(_worse(f)) for f in found.values()),
            "contrasts": sum(len(f) for f in found.values()),
        },
        estimate_unit="nats (label-smoothed), UTA minus cosine, ViT",
        notes=[*_notes(found["cnn"], "CNN, SGD"), *_notes(found["vit"], "ViT, AdamW")],
        scale_note="Digits of 8x8 pixels, one untuned peak a model; says nothing about ImageNet.",
        **_comparison(found["vit"], vit["uta"] - vit["cosine"], "cosine", "paired seeds", smallest),
    )


def overhead(cells: pd.DataFrame, params: Params) -> Evidence:
    """c5: share of the run's CPU time spent in the schedule."""
    own = cells[(cells["metric"] == "overhead") & (cells["role"] == "test")]
    both = own.pivot_table(index=["group", "unit"], columns="arm", values="value", aggfunc="mean")
    units = both["uta"]
    low, high = interval(units, params)
    return Evidence(
        quantities={"share": units.mean(), "share_high": high,
                    "cosine_share": both["cosine"].mean()},
        estimate_unit="share of CPU time",
        interval=(low, high),
        interval_kind=f"95 % BCa bootstrap over {len(units)} runs",
        n=len(units),
        n_unit="pairs of a regime and a seed",
        no_mde="the claim is about the size of a share, not a test",
        notes=[
            f"{group}: {value:.2%}." for group, value in both["uta"].groupby("group").mean().items()
        ],
        scale_note="The share falls as 1/steps: here eight probes and some hundred small steps.",
    )  # fmt: skip


def _robustness(spread: pd.DataFrame, params: Params, what: str) -> Evidence:
    """Compare UTA's range of loss with each baseline's."""
    names = tuple(b for b in BASELINES if b in spread)
    found = against(spread, names, params)
    smallest = min(1.0, found["smallest_p"].iloc[0] * len(found))
    rival = found["mean"].idxmax()
    return Evidence(
        quantities={
            "closest_difference": found.loc[rival, "mean"],
            "better_than": len(_better(found)),
            "baselines": len(found),
            "worse_than": len(_worse(found)),
        },
        estimate_unit=f"nats a byte, range over {what}, UTA minus {rival}",
        notes=[
            "Mean ranges: "
            + ", ".join(f"{a} {v:.4f}" for a, v in spread.mean().sort_values().items()) + ".",
            *_notes(found, "Range"),
        ],
        scale_note=SCALE_NOTE,
        **_comparison(found, spread["uta"] - spread[rival], rival, "paired seeds", smallest),
    )  # fmt: skip


def peak_robustness(cells: pd.DataFrame, params: Params) -> Evidence:
    """c6: range of the loss over the peaks."""
    return _robustness(ranges(losses(cells, "short"), "peak"), params, "peaks")


def ratio_robustness(cells: pd.DataFrame, params: Params) -> Evidence:
    """c7: range of the loss over the final ratios."""
    names = [*params.sweep.ratio_arms]
    table = losses(cells, "sweep")
    return _robustness(
        ranges(table[table["arm"].isin(names)], "final_ratio"), params, "final ratios"
    )


def phi_robustness(cells: pd.DataFrame, params: Params) -> Evidence:
    """c8: range over phi0 against UBA's over phi, in the laboratory and the model."""
    sweep = wide(cells, "sweep", final_ratio=params.final_ratio)
    parts = {"uta": ["uta", "uta@0.1", "uta@1", "uta@3"],
             "uba": ["uba0.1", "uba0.3", "uba1", "uba3"]}  # fmt: skip
    spread = {k: sweep[v].max(axis=1) - sweep[v].min(axis=1) for k, v in parts.items()}
    data = np.log(spread["uta"] / spread["uba"])
    test = sign_flip_test(data, "two-sided", seed=params.seed)
    low, high = interval(data, params)
    logs = np.log(lab_ratios(cells[cells["group"] == "lab"]))
    lab = {k: (logs[v].max(axis=1) - logs[v].min(axis=1)).mean() for k, v in parts.items()}
    effect = minimal_detectable_effect(data, alternative="two-sided")
    return Evidence(
        quantities={
            "model_ratio": float(np.exp(data.mean())),
            "model_ratio_low": float(np.exp(low)),
            "model_ratio_high": float(np.exp(high)),
            "lab_ratio": lab["uta"] / lab["uba"],
        },
        estimate_unit="range over phi0 (UTA) / range over phi (UBA), geometric mean",
        interval=(float(np.exp(low)), float(np.exp(high))),
        interval_kind=f"95 % BCa bootstrap over {len(data)} paired seeds",
        p_value=test.p_value,
        smallest_p=test.smallest_p,
        test="exact two-sided sign-flip test of the log ratio",
        n=len(data),
        n_unit="paired seeds",
        mde=effect.effect,
        no_mde=effect.reason,
        notes=[
            f"Model: mean range {spread['uta'].mean():.4f} (UTA), {spread['uba'].mean():.4f} (UBA) "
            "nats a byte.",
            f"Laboratory: mean range of the log ratio to the optimum {lab['uta']:.3f} (UTA), "
            f"{lab['uba']:.3f} (UBA).",
        ],
        scale_note=SCALE_NOTE,
    )


ABLATED = ("uba0.3", "uta_no_noise", "uta_no_drift", "uta_no_lag", "uta_no_matching")


def components(cells: pd.DataFrame, params: Params) -> Evidence:
    """c9: full UTA against UTA without each component."""
    table = wide(cells, "sweep", final_ratio=params.final_ratio)
    found = against(table, ABLATED, params)
    others = against(table, ("uta_m1", "uta_scale", "uta_lin", "wsd20"), params)
    smallest = min(1.0, found["smallest_p"].iloc[0] * len(found))
    rival = found["mean"].idxmax()
    return Evidence(
        quantities={
            "weakest_difference": found.loc[rival, "mean"],
            "better_than": len(_better(found)),
            "components": len(found),
            "worse_than": len(_worse(found)),
        },
        estimate_unit=f"nats a byte, UTA minus {rival}",
        notes=[*_notes(found, "Component"), *_notes(others, "Variant (not in the rule)")],
        scale_note=SCALE_NOTE,
        **_comparison(found, table["uta"] - table[rival], rival, "paired seeds", smallest),
    )


def fine_tuning(cells: pd.DataFrame, params: Params) -> Evidence:
    """c10: continuing a checkpoint on shifted text."""
    table = wide(cells, "finetune")
    found = against(table, ("cosine", "linear", "wsd20"), params)
    smallest = min(1.0, found["smallest_p"].iloc[0] * len(found))
    return Evidence(
        quantities={
            "cosine_difference": found.loc["cosine", "mean"],
            "beats_cosine_and_linear": {"cosine", "linear"} <= _better(found),
            "worse_than": len(_worse(found)),
        },
        estimate_unit="nats a byte, UTA minus cosine",
        notes=_notes(found, "Fine-tuning"),
        scale_note="Continued pretraining of 0.1M parameters at one untuned peak, not SFT.",
        **_comparison(found, table["uta"] - table["cosine"], "cosine", "paired seeds", smallest),
    )


EVIDENCE = {
    "c1": shape,
    "c2": near_optimal,
    "c3": gains,
    "c4": images,
    "c5": overhead,
    "c6": peak_robustness,
    "c7": ratio_robustness,
    "c8": phi_robustness,
    "c9": components,
    "c10": fine_tuning,
}
