"""From the cells' rows to the evidence for each claim (spec 7).

The unit is the seed: all arms of a seed share initial weights and data order.
"""

import numpy as np
import pandas as pd

from replicata.claims.evidence import Evidence
from replicata.papers.uta_lrd.contrasts import against, better, comparison, interval, notes, worse
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
from replicata.papers.uta_lrd.experiment import FinetuneParams, Params
from replicata.statistics.paired import sign_flip_test
from replicata.statistics.power import minimal_detectable_effect


def scale_note(params: Params) -> str:
    """Say what the small profiles stand for."""
    if params.model.data != "standard_library":
        return ""
    return (
        "A Llama of 0.1M parameters and some hundred steps on the standard library's sources: an "
        "analogue of the paper's 60M to 1B, not a test of its numbers."
    )


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
    fields = comparison(found, data, rival, "problems", smallest)
    low, high = interval(logs["uta"], params)
    fields |= {
        "interval": (float(np.exp(low)), float(np.exp(high))),
        "interval_kind": f"95 % BCa bootstrap over {len(data)} problems, of UTA's geometric mean",
        "p_value": found["adjusted"].max(),
    }
    return Evidence(
        quantities={
            "uta_ratio": means["uta"],
            "better_than": len(better(found)),
            "baselines": len(found),
            "worse_than": len(worse(found)),
        },
        estimate_unit="final loss over the optimum's, geometric mean",
        notes=[
            "Ratios: " + ", ".join(f"{a} {v:.3f}" for a, v in means.sort_values().items()) + ".",
            f"Worst problem for UTA: {np.exp(logs['uta'].max()):.2f}.",
            *notes(found, "Log ratio"),
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
    both = better(first) & better(second)
    peaks = tuned_peaks(cells)
    smallest = min(1.0, first["smallest_p"].iloc[0] * len(first))
    return Evidence(
        quantities={
            "cosine_difference": first.loc["cosine", "mean"],
            "all_below": bool((first["mean"] < 0).all() and (second["mean"] < 0).all()),
            "beats_cosine_and_linear": {"cosine", "linear"} <= both,
            "worse_than": len(worse(first) | worse(second)),
        },
        estimate_unit="nats a byte, UTA minus cosine, short regime",
        notes=[
            "Tuned peaks: " + ", ".join(f"{a} {p:g}" for a, p in peaks.items()) + ".",
            "Mean losses, short: "
            + ", ".join(f"{a} {v:.4f}" for a, v in short.mean().sort_values().items()) + ".",
            *notes(first, "Short"),
            *notes(second, "Long"),
        ],
        scale_note=scale_note(params),
        **comparison(first, short["uta"] - short["cosine"], "cosine", "paired seeds", smallest),
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
            "better": sum(len(better(f)) for f in found.values()),
            "worse": sum(len(worse(f)) for f in found.values()),
            "contrasts": sum(len(f) for f in found.values()),
        },
        estimate_unit="nats (label-smoothed), UTA minus cosine, ViT",
        notes=[*notes(found["cnn"], "CNN, SGD"), *notes(found["vit"], "ViT, AdamW")],
        scale_note="Digits of 8x8 pixels, one untuned peak a model; says nothing about ImageNet."
        if params.vision.images is None
        else "",
        **comparison(found["vit"], vit["uta"] - vit["cosine"], "cosine", "paired seeds", smallest),
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
            f"{group}, {getattr(params, group).steps} steps: {value:.2%}."
            for group, value in both["uta"].groupby("group").mean().items()
        ],
        scale_note="The share falls as 1/steps; the notes say for how many.",
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
            "better_than": len(better(found)),
            "baselines": len(found),
            "worse_than": len(worse(found)),
        },
        estimate_unit=f"nats a byte, range over {what}, UTA minus {rival}",
        notes=[
            "Mean ranges: "
            + ", ".join(f"{a} {v:.4f}" for a, v in spread.mean().sort_values().items()) + ".",
            *notes(found, "Range"),
        ],
        scale_note=scale_note(params),
        **comparison(found, spread["uta"] - spread[rival], rival, "paired seeds", smallest),
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
        scale_note=scale_note(params),
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
            "better_than": len(better(found)),
            "components": len(found),
            "worse_than": len(worse(found)),
        },
        estimate_unit=f"nats a byte, UTA minus {rival}",
        notes=[*notes(found, "Component"), *notes(others, "Variant (not in the rule)")],
        scale_note=scale_note(params),
        **comparison(found, table["uta"] - table[rival], rival, "paired seeds", smallest),
    )


def fine_tuning(cells: pd.DataFrame, params: Params) -> Evidence:
    """c10: continuing a checkpoint on shifted text."""
    table = wide(cells, "finetune")
    found = against(table, ("cosine", "linear", "wsd20"), params)
    smallest = min(1.0, found["smallest_p"].iloc[0] * len(found))
    return Evidence(
        quantities={
            "cosine_difference": found.loc["cosine", "mean"],
            "beats_cosine_and_linear": {"cosine", "linear"} <= better(found),
            "worse_than": len(worse(found)),
        },
        estimate_unit="nats a byte, UTA minus cosine",
        notes=notes(found, "Fine-tuning"),
        scale_note="Continued pretraining of 0.1M parameters at one untuned peak, not SFT."
        if isinstance(params.finetune, FinetuneParams)
        else "",
        **comparison(found, table["uta"] - table["cosine"], "cosine", "paired seeds", smallest),
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
