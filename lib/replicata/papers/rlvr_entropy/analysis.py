"""From the cells' rows to the evidence for each claim (spec 7).

The estimates themselves are in ``estimates.py``.
"""

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from replicata.claims.evidence import Evidence
from replicata.papers.rlvr_entropy.estimates import (
    coefficients,
    contrast,
    explosion_times,
    paired_terms,
    slopes,
    t_interval,
    terms,
    values,
)
from replicata.papers.rlvr_entropy.experiment import Params
from replicata.statistics.multiplicity import holm
from replicata.statistics.paired import SignFlipResult, TostResult, sign_flip_test, tost_paired
from replicata.statistics.power import minimal_detectable_effect
from replicata.statistics.resampling import cluster_bootstrap

ALPHA = 0.05
#: Equivalence margin for "no effect", as a share of the effect under truncation.
MARGIN = 0.2
#: Mismatched samplers, and the sign that the theorem expects of slope(+c) - slope(-c).
EXPECTED = {"topp": "less", "topk": "less", "minp": "less", "cool": "less", "hot": "greater"}
SCALE_NOTE = (
    "A transformers Llama of 0.1M parameters on a made-up task, one base checkpoint a task: the "
    "mechanism at small scale, not the paper's 2B and 9B models."
)


def _flip(data: pd.Series, alternative: str, params: Params) -> SignFlipResult:
    return sign_flip_test(data, alternative, seed=params.seed)


def _mde(data: pd.Series, alternative: str, smallest_p: float | None = None) -> dict[str, object]:
    found = minimal_detectable_effect(data, alternative=alternative, smallest_p=smallest_p)
    return {"mde": found.effect, "no_mde": found.reason}


def _describe(tost: TostResult) -> str:
    low, high = tost.interval or (tost.estimate, tost.estimate)
    return f"{tost.estimate:.4f} (90 % {low:.4f} to {high:.4f}), margin {tost.margin:.4f}"


# -------------------------------------------------------------------------------------------------
# c1, c4 (i), c6: numerical proofs

EXPECTED_SIGNS = {"topk": 1, "topp": 1, "minp": 1, "cool": 1, "hot": -1, "mix": -1}


def theorem_one(cells: pd.DataFrame, params: Params) -> Evidence:
    """c1: signs, finite differences, and the control that must fail."""
    gaps = values(cells, "gap")
    sign = gaps["arm"].map(EXPECTED_SIGNS)
    wrong = (sign * gaps["value"] < -1e-12) & sign.notna()
    control = gaps[gaps["arm"] == "drop_first"]["value"]
    tested = int(sign.notna().sum() + (gaps["arm"] == "exact").sum())
    smallest = (sign * gaps["value"]).min()
    return Evidence(
        quantities={
            "violations": int(wrong.sum()),
            "exact_max": gaps[gaps["arm"] == "exact"]["value"].abs().max(),
            "difference_error": values(cells, "difference_error")["value"].max(),
            "control_share": float((control < -1e-12).mean()),
        },
        estimate_unit="sign violations",
        n=tested,
        n_unit="pairs of a distribution and a sampler",
        notes=[
            f"Smallest signed gap {smallest:.1e}; control (likeliest token never drawn): "
            f"{100 * (control < -1e-12).mean():.0f} % of gaps negative.",
            "Ties at a cut do not matter: f depends on the probability alone, so that q may be "
            "averaged over tokens of equal probability.",
        ],
    )


def remainder(cells: pd.DataFrame, params: Params) -> Evidence:
    """c6: the identities, and in the runs the measured change against the logged terms."""
    identity = values(cells, "identity_error")["value"]
    notes = []
    table = terms(cells)
    for sampler, part in table.groupby("sampler"):
        # Under exact sampling the mismatch terms are 0.
        names = [n for n in ("signal", "net_term", "covariance") if part[n].abs().max() > 1e-6]
        fit = ols("change ~ " + " + ".join(names), part).fit()
        pairs = ", ".join(f"{name} {fit.params[name]:.2f}" for name in names)
        notes.append(
            f"Runs, {sampler}: measured change of an update on the terms, coefficients {pairs}; "
            f"R² {fit.rsquared:.2f} over {len(part)} updates (to first order each is negative)."
        )
    paired = paired_terms(cells).xs("topp", level="sampler")
    if paired["mismatch"].std() > 0:
        notes.append(
            "Exploratory: against zeronet of the same seed, first updates, top-p, the measured "
            f"difference correlates {paired.corr().loc['mismatch', 'change']:.2f} with the "
            f"predicted mismatch and {paired.corr().loc['signal', 'change']:.2f} with the signal "
            f"({len(paired)} differences)."
        )
    return Evidence(
        quantities={
            "identity_error": identity.max(),
            "drift_error": values(cells, "drift_error")["value"].max(),
        },
        estimate_unit="largest absolute error of the identity",
        n=len(values(cells, "drift_error")) + len(identity),
        n_unit="random states and batches",
        notes=notes,
        scale_note=SCALE_NOTE,
    )


# -------------------------------------------------------------------------------------------------
# c2, c3, c4: the null-reward runs


def signs(cells: pd.DataFrame, params: Params) -> Evidence:
    """c2: the sign of the response to a shift, sampler by sampler."""
    table = _plain(cells, "adam")
    contrasts = {name: contrast(table, sampler=name) for name in [*EXPECTED, "exact"]}
    tests = {name: _flip(contrasts[name], way, params) for name, way in EXPECTED.items()}
    adjusted = holm([t.p_value for t in tests.values()], ALPHA)
    opposite = {"less": "greater", "greater": "less"}
    reverse = holm(
        [_flip(contrasts[n], opposite[way], params).p_value for n, way in EXPECTED.items()], ALPHA
    )
    exact = tost_paired(contrasts["exact"], MARGIN * abs(contrasts["topp"].mean()), ALPHA)
    weakest = max(adjusted.adjusted)
    return Evidence(
        quantities={
            "topp_contrast": contrasts["topp"].mean(),
            "significant_expected": int(sum(adjusted.rejected)),
            "significant_wrong": int(sum(reverse.rejected)),
            "exact_equivalent": exact.equivalent,
        },
        estimate_unit="nats a step, slope(+0.10) - slope(-0.10), top-p 0.9",
        interval=t_interval(contrasts["topp"]),
        interval_kind=f"95 % t interval over {len(contrasts['topp'])} seeds",
        p_value=weakest,
        smallest_p=min(1.0, len(EXPECTED) * tests["topp"].smallest_p),
        test=f"largest Holm-adjusted p of five samplers; {tests['topp'].description}",
        n=len(contrasts["topp"]),
        n_unit="paired seeds",
        **_mde(contrasts["exact"], "two-sided"),
        notes=[
            *(
                f"{name}: {contrasts[name].mean():+.4f} "
                f"(95 % {t_interval(contrasts[name])[0]:+.4f} to "
                f"{t_interval(contrasts[name])[1]:+.4f}), expected {way}, adjusted p {p:.3g}."
                for (name, way), p in zip(EXPECTED.items(), adjusted.adjusted, strict=True)
            ),
            f"exact: {_describe(exact)}.",
        ],
        scale_note=SCALE_NOTE,
    )


def _plain(cells: pd.DataFrame, optimizer: str, metric: str = "entropy") -> pd.DataFrame:
    """Slopes of the null runs of the plain learner without ratios."""
    return slopes(cells, metric, group="null", optimizer=optimizer, learner="plain", ratio="none")


def linearity(cells: pd.DataFrame, params: Params) -> Evidence:
    """c3: linear under truncation, nothing under exact sampling."""
    table = _plain(cells, "sgd")
    own = table[table["sampler"] == "topp"]
    line = ols("slope ~ shift + C(unit)", own).fit()
    robust = line.get_robustcov_results("HC3")
    at = list(line.params.index).index("shift")
    low, high = (float(x) for x in robust.conf_int()[at])
    levels = ols("slope ~ C(shift) + C(unit)", own).fit()
    lack = float(anova_lm(line, levels)["Pr(>F)"].iloc[1])
    means = own.groupby("shift")["slope"].mean()
    share = float(np.corrcoef(means.index, means)[0, 1] ** 2)
    b_exact = coefficients(table, "exact")
    b_trunc = float(line.params["shift"])
    exact = tost_paired(b_exact, MARGIN * abs(b_trunc), ALPHA)
    exact_low, exact_high = t_interval(b_exact)
    return Evidence(
        quantities={
            "b_trunc": b_trunc,
            "b_trunc_low": low,
            "b_trunc_high": high,
            "lack_of_fit_p": lack,
            "exact_equivalent": exact.equivalent,
            "b_exact": exact.estimate,
            "b_exact_low": exact_low,
            "b_exact_high": exact_high,
            "linear_share": share,
        },
        estimate_unit="nats a step per unit of shift, top-p 0.9",
        interval=(low, high),
        interval_kind=f"95 % (HC3), seed fixed effects, {own['unit'].nunique()} seeds",
        p_value=lack,
        test="lack-of-fit F test of the line against five levels",
        n=own["unit"].nunique(),
        n_unit="paired seeds",
        **_mde(b_exact, "two-sided"),
        notes=[
            f"The line explains {100 * share:.1f} % of the variance of the five mean slopes; "
            f"R² of the regression {line.rsquared:.2f}.",
            f"Exact sampling: {_describe(exact)}, {exact.description}.",
            _adam_note(cells),
            _probe_note(cells),
        ],
        scale_note=SCALE_NOTE,
    )


def _adam_note(cells: pd.DataFrame) -> str:
    """Say how linear the response is under Adam, whose step is not the theorem's."""
    table = _plain(cells, "adam")
    own = table[table["sampler"] == "topp"]
    line, levels = (ols(f"slope ~ {x} + C(unit)", own).fit() for x in ("shift", "C(shift)"))
    lack = float(anova_lm(line, levels)["Pr(>F)"].iloc[1])
    means = ", ".join(
        f"{c:+.2f}: {v:+.4f}" for c, v in own.groupby("shift")["slope"].mean().items()
    )
    exact = coefficients(table, "exact")
    low, high = t_interval(exact)
    return (
        f"Under Adam: coefficient {line.params['shift']:+.4f}, lack-of-fit p {lack:.2g}, mean "
        f"slopes {means}; exact sampling {exact.mean():+.4f} (95 % {low:+.4f} to {high:+.4f})."
    )


def _probe_note(cells: pd.DataFrame) -> str:
    """Say what the entropy does at fixed prefixes, which no change of visited states enters."""
    table = _plain(cells, "sgd", "probe_entropy")
    parts = [
        f"{name} {coefficients(table, name).mean():+.4f} "
        f"(95 % {t_interval(coefficients(table, name))[0]:+.4f} to "
        f"{t_interval(coefficients(table, name))[1]:+.4f})"
        for name in ("topp", "exact")
    ]
    return "Coefficient of the entropy at fixed prefixes of the base: " + ", ".join(parts) + "."


def ratios(cells: pd.DataFrame, params: Params) -> Evidence:
    """c4: what importance ratios keep of the drift."""
    table = slopes(cells, group="null", optimizer="sgd", learner="plain")
    kept, plain, cool_kept, cool_plain = (
        contrast(table, sampler=sampler, ratio=ratio)
        for sampler in ("topp", "cool")
        for ratio in ("sampler", "none")
    )
    units = plain.index
    found = cluster_bootstrap(
        np.arange(len(units), dtype=float),
        seed=params.seed,
        statistic=lambda i, axis: (
            np.take(kept[units].to_numpy(), i.astype(int)).mean(axis)
            / np.take(plain.to_numpy(), i.astype(int)).mean(axis)
        ),
    )
    cool = tost_paired(cool_kept, MARGIN * abs(cool_plain.mean()), ALPHA)
    where = {"group": "null", "optimizer": "sgd", "sampler": "topp", "learner": "plain"}
    where["ratio"] = "none"
    mass = values(cells, "gap_kept_mass", **where)["value"].mean()
    plain_mass = values(cells, "kept_mass", **where)["value"].mean()
    identity = max(
        values(cells, metric)["value"].max()
        for metric in ("kept_mass_error", "drift_ratio_error", "removed_error")
    )
    adam = slopes(cells, group="null", optimizer="adam", learner="plain")
    adam_ratio = (
        contrast(adam, sampler="topp", ratio="sampler").mean()
        / contrast(adam, sampler="topp", ratio="none").mean()
    )
    return Evidence(
        quantities={
            "identity_error": identity,
            "ratio": found.estimate,
            "ratio_low": found.interval[0],
            "ratio_high": found.interval[1],
            "kept_mass": mass,
            "cool_equivalent": cool.equivalent,
        },
        estimate_unit="share of the drift kept, top-p 0.9",
        interval=found.interval,
        interval_kind=found.describe("seeds"),
        n=len(units),
        n_unit="paired seeds",
        **_mde(kept - found.estimate * plain, "two-sided"),
        notes=[
            f"Kept mass weighted by the gap {mass:.3f}, unweighted {plain_mass:.3f}.",
            f"Temperature 0.7 with ratios: {_describe(cool)}; without: {cool_plain.mean():+.4f}.",
            f"Under Adam, which divides a constant factor out, the ratio is {adam_ratio:.2f}.",
        ],
        scale_note=SCALE_NOTE,
    )


# -------------------------------------------------------------------------------------------------
# c5, c7: runs with a real reward


def opposite_signs(cells: pd.DataFrame, params: Params) -> Evidence:
    """c5: net advantage of ``fail`` and ``mask`` on the same rollouts, and the slopes' order."""
    rows = cells[(cells["group"] == "learn") & (cells["sampler"] == "topp")]
    both = rows[rows["arm"].isin(["topp-fail", "topp-mask"])]
    table = slopes(cells, group="learn")
    nets, gains = {}, {}
    for task in sorted(both["task"].unique()):
        nets[task] = {
            rule: values(both, f"net_{rule}", task=task).groupby("unit")["value"].mean()
            for rule in ("fail", "mask")
        }
        gains[task] = {s: _mask_minus_fail(table, task, s) for s in ("topp", "exact")}
        # What masking does to the signal it does under exact sampling too.
        gains[task]["topp - exact"] = gains[task]["topp"] - gains[task]["exact"]
    flipped = [t for t, n in nets.items() if _opposite(n["fail"], n["mask"])]
    ways = {
        t: "less" if nets[t]["mask"].mean() > nets[t]["fail"].mean() else "greater" for t in nets
    }
    other = {"less": "greater", "greater": "less"}
    order = [_flip(gains[t]["topp - exact"], ways[t], params) for t in nets]
    adjusted = dict(zip(nets, holm([t.p_value for t in order]).adjusted, strict=True))
    reverse = holm([_flip(gains[t]["topp - exact"], other[ways[t]], params).p_value for t in nets])
    reversed_ = dict(zip(nets, reverse.adjusted, strict=True))
    first = next(iter(flipped or nets))
    return Evidence(
        quantities={
            "variants_flipped": len(flipped),
            "variants_ordered": sum(adjusted[t] <= ALPHA for t in flipped),
            "variants_reversed": sum(reversed_[t] <= ALPHA for t in flipped),
        },
        estimate_unit="variants with opposite signs and slopes in their order",
        p_value=adjusted[first],
        smallest_p=min(1.0, len(nets) * order[0].smallest_p),
        test=f"{order[0].description}, Holm over {len(nets)} variants ({first})",
        n=len(gains[first]["topp - exact"]),
        n_unit="paired seeds",
        **_mde(gains[first]["topp - exact"], "two-sided"),
        notes=[_c5_note(t, nets[t], gains[t], adjusted[t]) for t in nets],
        scale_note=SCALE_NOTE,
    )


def _mask_minus_fail(table: pd.DataFrame, task: str, sampler: str) -> pd.Series:
    own = table[
        (table["task"] == task) & (table["norm"] == "token") & (table["learner"] == "plain")
    ]
    wide = own[own["sampler"] == sampler].pivot_table(index="unit", columns="rule", values="slope")
    return wide["mask"] - wide["fail"]


def _opposite(a: pd.Series, b: pd.Series) -> bool:
    (a_low, a_high), (b_low, b_high) = t_interval(a), t_interval(b)
    return (a_high < 0 < b_low) or (b_high < 0 < a_low)


def _c5_note(
    task: str, nets: dict[str, pd.Series], gains: dict[str, pd.Series], adjusted: float
) -> str:
    shown = []
    for name, series in (
        *((f"N of {rule}", nets[rule]) for rule in nets),
        *((f"slope of mask - fail, {s}", gains[s]) for s in gains),
    ):
        low, high = t_interval(series)
        shown.append(f"{name} {series.mean():+.4f} ({low:+.4f} to {high:+.4f})")
    return f"{task}: {'; '.join(shown)}; order of slopes, adjusted p {adjusted:.3g}."


def explosion(cells: pd.DataFrame, params: Params) -> Evidence:
    """c7: who explodes, and when."""
    steps = params.explode.steps
    times = explosion_times(cells, steps)
    shares = (times < steps).mean()
    delay = times["narrow-zeronet"] - times["narrow-fail"]
    shift = times["narrow-zeronet-+0.05"] - times["narrow-zeronet"]
    tests = {
        f"p_{name}{suffix}": _flip(data, way, params).p_value
        for name, data in (("zeronet", delay), ("shift", shift))
        for suffix, way in (("", "greater"), ("_reversed", "less"))
    }
    rows = values(cells, "entropy", group="explode")
    wide = rows.pivot_table(index=["arm", "unit"], columns="step", values="value")
    change = (wide[steps - 1] - wide[0]).unstack("arm")
    exact = change["exact-zeronet"]
    reach = stats.t.ppf(0.975, len(exact) - 1) * exact.std() * np.sqrt(1 + 1 / len(exact))
    sharp = change["narrow-sharp"].mean()
    exact_arms = [arm for arm in shares.index if arm.startswith("exact")]
    found = cluster_bootstrap(times["narrow-zeronet"] < steps, seed=params.seed)
    return Evidence(
        quantities={
            "share_fail": shares["narrow-fail"],
            "share_zeronet": shares["narrow-zeronet"],
            "share_sharp": shares["narrow-sharp"],
            "share_exact": shares[exact_arms].max(),
            "sharp_steady": bool(abs(sharp - exact.mean()) <= reach),
            **tests,
        },
        estimate_unit="share of zero-net runs that explode",
        interval=found.interval,
        interval_kind=found.describe("seeds"),
        p_value=max(tests["p_zeronet"], tests["p_shift"]),
        smallest_p=2.0 ** -len(times),
        test="larger p of two exact sign-flip tests on restricted mean times, one-sided",
        n=len(times),
        n_unit="paired seeds",
        **_mde(delay, "greater", 2.0 ** -len(times)),
        notes=[
            "Share exploded and mean time (steps, censored at "
            f"{steps}): "
            + "; ".join(f"{arm} {shares[arm]:.2f}, {times[arm].mean():.0f}" for arm in times)
            + ".",
            f"Entropy change over {steps} steps: sharp {sharp:+.2f}, exact sampling "
            f"{exact.mean():+.2f} ± {reach:.2f} (95 % prediction interval of one run).",
        ],
        scale_note=SCALE_NOTE,
    )


EVIDENCE = {
    "c1": theorem_one,
    "c2": signs,
    "c3": linearity,
    "c4": ratios,
    "c5": opposite_signs,
    "c6": remainder,
    "c7": explosion,
}
