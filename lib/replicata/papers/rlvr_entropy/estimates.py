"""Estimates: slopes, contrasts and times from the cells' tidy rows.

The unit is the seed: all arms of a seed share prompts, sampling noise and coins, so that contrasts
are paired. A slope is the least-squares slope of the learner's mean entropy against the step.
"""

import pandas as pd
from scipy import stats

#: An explosion: the entropy exceeds its start by this much (nats).
EXPLODED = 0.5


def values(cells: pd.DataFrame, metric: str, **where: object) -> pd.DataFrame:
    """Rows of one metric, narrowed by equality on other columns."""
    rows = cells[cells["metric"] == metric]
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows


def slopes(cells: pd.DataFrame, metric: str = "entropy", **where: object) -> pd.DataFrame:
    """Return the slope against the step, per update, of every arm and unit.

    Returns
    -------
    DataFrame
        The arm's columns, ``unit`` and ``slope``.
    """
    keys = ["arm", "sampler", "rule", "shift", "learner", "ratio", "norm", "task", "optimizer"]
    rows = values(cells, metric, **where)
    centred = rows["step"] - rows.groupby([*keys, "unit"])["step"].transform("mean")
    parts = rows.assign(top=centred * rows["value"], below=centred**2)
    sums = parts.groupby([*keys, "unit"], as_index=False)[["top", "below"]].sum()
    return sums.assign(slope=sums["top"] / sums["below"]).drop(columns=["top", "below"])


def contrast(table: pd.DataFrame, **where: object) -> pd.Series:
    """Return slope at the largest minus slope at the smallest shift, by unit."""
    for column, value in where.items():
        table = table[table[column] == value]
    wide = table.pivot_table(index="unit", columns="shift", values="slope").dropna()
    return wide[wide.columns.max()] - wide[wide.columns.min()]


def t_interval(data: pd.Series) -> tuple[float, float]:
    """Return the 95 % t interval of a mean."""
    if len(data) < 2 or data.std() == 0:
        return (float(data.mean()),) * 2
    ends = stats.ttest_1samp(data, 0.0).confidence_interval(0.95)
    return float(ends.low), float(ends.high)


def coefficients(table: pd.DataFrame, sampler: str) -> pd.Series:
    """Return each unit's regression coefficient of the slope on the shift."""
    own = table[table["sampler"] == sampler]
    centred = own["shift"] - own.groupby("unit")["shift"].transform("mean")
    parts = own.assign(top=centred * own["slope"], below=centred**2)
    sums = parts.groupby("unit")[["top", "below"]].sum()
    return sums["top"] / sums["below"]


def explosion_times(cells: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Return the step at which each run's entropy first exceeds its start by `EXPLODED`.

    Returns
    -------
    DataFrame
        Index unit, one column per arm; ``steps`` where it never does (censored).
    """
    rows = values(cells, "entropy", group="explode")
    wide = rows.pivot_table(index=["arm", "unit"], columns="step", values="value")
    over = wide.sub(wide[0], axis=0) > EXPLODED
    first = over.idxmax(axis=1).where(over.any(axis=1), steps)
    return first.unstack("arm").astype(float)


def terms(cells: pd.DataFrame) -> pd.DataFrame:
    """Return, per update of the plain learner in the ``learn`` runs, the terms and the change."""
    rows = cells[
        cells["metric"].isin(["net", "mean_gap", "covariance", "signal", "entropy_change"])
    ]
    rows = rows[(rows["group"] == "learn") & (rows["learner"] == "plain")]
    keys = ["sampler", "rule", "norm", "task", "unit", "step"]
    wide = rows.pivot_table(index=keys, columns="metric", values="value").dropna().reset_index()
    return wide.assign(net_term=wide["net"] * wide["mean_gap"], change=wide["entropy_change"])


#: Updates during which the arms of a seed still see nearly the same rollouts.
EARLY = 5


def paired_terms(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the terms and the measured change of early updates, minus those of ``zeronet``.

    Arms of a seed start from the same weights, prompts and noise, so that in the first `EARLY`
    updates the differences come from the baseline and not from the states.

    Returns
    -------
    DataFrame
        Index sampler, task, unit, step, rule, norm; columns ``mismatch`` and ``signal`` (what they
        do to the entropy per unit step, so with the minus sign) and ``change`` (measured).
    """
    table = terms(cells)
    table = table[table["step"] < EARLY]
    table = table.assign(
        mismatch=-(table["net_term"] + table["covariance"]), signal=-table["signal"]
    )
    keys = ["sampler", "task", "unit", "step"]
    own = table.set_index([*keys, "rule", "norm"])[["mismatch", "signal", "change"]]
    base = own.xs(("zeronet", "token"), level=("rule", "norm"))
    rest = own.drop("zeronet", level="rule")
    return rest - base.reindex(rest.index.droplevel(["rule", "norm"])).to_numpy()


def accuracy_differences(cells: pd.DataFrame) -> pd.DataFrame:
    """Return held-out accuracy minus that of ``fail`` with the same sampler, in points.

    Returns
    -------
    DataFrame
        Index sampler, arm, step; columns mean, low and high (95 % t interval), seeds.
    """
    rows = values(cells, "held_out")
    rows = rows[rows["arm"].isin([f"{s}-{r}" for s in ("narrow", "exact") for r in _COMPARED])]
    wide = rows.pivot_table(index=["sampler", "step", "unit"], columns="arm", values="value")
    found = []
    for (sampler, step), part in wide.groupby(level=["sampler", "step"]):
        base = part[f"{sampler}-fail"]
        for arm in part.columns.drop(f"{sampler}-fail"):
            gain = 100 * (part[arm] - base).dropna()
            if len(gain):
                found.append((sampler, arm, int(step), gain.mean(), *t_interval(gain), len(gain)))
    names = ["sampler", "arm", "step", "mean", "low", "high", "seeds"]
    return pd.DataFrame(found, columns=names).set_index(names[:3]).round(1)


#: Rules whose held-out accuracy is compared (the analogue of c8).
_COMPARED = ("fail", "zeronet", "fail-renorm")


def remedies(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the terms of the language model's first update, by remedy.

    Returns
    -------
    DataFrame
        Index remedy; mean over prompts and 95 % t interval, in 1e-3 nats per unit step, of what
        signal and mismatch do to the entropy (below 0 sharpens), and the net advantage.
    """
    rows = cells[cells["arm"] != "rollouts"]
    found = {}
    for arm, part in rows.groupby("arm", sort=False):
        wide = part.pivot_table(index="unit", columns="metric", values="value")
        low, high = t_interval(-1e3 * wide["mismatch"])
        found[arm] = {
            "signal, 1e-3 nats": -1e3 * wide["signal"].mean(),
            "mismatch, 1e-3 nats": -1e3 * wide["mismatch"].mean(),
            "95 % low": low,
            "95 % high": high,
            "net advantage N": wide["net"].mean(),
            "prompts": len(wide),
        }
    table = pd.DataFrame(found).T.round(3) + 0.0  # no negative zero
    return table.astype({"prompts": int})
