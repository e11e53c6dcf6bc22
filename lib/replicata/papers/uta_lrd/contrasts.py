"""UTA against other arms, paired over units: differences, intervals, exact tests, Holm (spec 7)."""

import pandas as pd

from replicata.papers.uta_lrd.experiment import Params
from replicata.statistics.multiplicity import holm
from replicata.statistics.paired import sign_flip_test
from replicata.statistics.power import minimal_detectable_effect
from replicata.statistics.resampling import cluster_bootstrap

ALPHA = 0.05


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


def notes(found: pd.DataFrame, prefix: str) -> list[str]:
    """Return one sentence for each contrast."""
    return [
        f"{prefix}, UTA minus {name}: {row['mean']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f}),"
        f" Holm-adjusted p {row['adjusted']:.3g}."
        for name, row in found.iterrows()
    ]


def better(found: pd.DataFrame) -> set[str]:
    """Return the arms that UTA beats."""
    return set(found.index[(found["mean"] < 0) & (found["adjusted"] <= ALPHA)])


def worse(found: pd.DataFrame) -> set[str]:
    """Return the arms that beat UTA."""
    return set(found.index[(found["mean"] > 0) & (found["adjusted"] <= ALPHA)])


def comparison(found: pd.DataFrame, data: pd.Series, name: str, n_unit: str,
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
