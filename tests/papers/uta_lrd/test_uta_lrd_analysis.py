"""From rows to evidence, on tables whose outcome is known."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import permutation_test
from statsmodels.stats.multitest import multipletests

from replicata.papers.uta_lrd.analysis import EVIDENCE
from replicata.papers.uta_lrd.contrasts import against, better, worse
from replicata.papers.uta_lrd.estimates import lab_ratios, ranges, tuned, tuned_peaks
from replicata.papers.uta_lrd.experiment import Params
from replicata.workflow.params import load_params

ARMS = {"uta": 2.0, "cosine": 2.2, "linear": 2.1, "uba0.3": 2.05, "uba1": 2.15, "wsd20": 1.9}


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params("uta_lrd", "cpu")


def runs(group: str, levels: dict[str, float], seeds: int = 8) -> pd.DataFrame:
    """Losses around a level, every seed of an arm with the same shift: pairing removes it."""
    draw = np.random.default_rng(7)
    shift = draw.normal(0, 0.3, seeds)
    rows = []
    for arm, level in levels.items():
        for seed in range(seeds):
            for role, own in (("tune", 0.0), ("test", 1.0)):
                for peak in (0.001, 0.002):
                    # The lower peak is better on the tuning seeds, the higher on the test seeds.
                    extra = 0.5 * ((peak == 0.002) == (role == "tune"))
                    rows.append({
                        "group": group, "arm": arm, "unit": f"seed-{seed:02d}-{role}",
                        "role": role, "metric": "loss", "peak": peak, "final_ratio": 0.1,
                        "value": own + level + shift[seed] + extra + draw.normal(0, 1e-3),
                    })  # fmt: skip
    return pd.DataFrame(rows)


def test_peaks_are_chosen_on_tuning_seeds_alone() -> None:
    cells = runs("short", ARMS)
    assert set(tuned_peaks(cells).values()) == {0.001}
    table = tuned(cells)
    assert list(table.index) == [f"seed-{k:02d}-test" for k in range(8)]
    # On the test seeds the chosen peak is the worse one: it is used all the same.
    assert table["wsd20"].mean() == pytest.approx(1.0 + 1.9 + 0.5, abs=0.5)
    assert (table["uta"] - table["wsd20"]).mean() == pytest.approx(0.1, abs=2e-3)


def test_differences_tests_and_holm_agree_with_scipy_and_statsmodels(params: Params) -> None:
    table = tuned(runs("short", ARMS | {"linear": 2.0}))
    names = ("cosine", "linear", "wsd20", "uba0.3", "uba1")
    found = against(table, names, params)
    raw = []
    for name in names:
        data = (table["uta"] - table[name]).to_numpy()
        assert found.loc[name, "mean"] == pytest.approx(data.mean())
        assert found.loc[name, "low"] <= data.mean() <= found.loc[name, "high"]
        peer = permutation_test(
            (data,), np.mean, permutation_type="samples", n_resamples=np.inf,
            alternative="two-sided",
        )  # fmt: skip
        raw.append(peer.pvalue)
    assert found["p"].tolist() == pytest.approx(raw)
    assert found["adjusted"].tolist() == pytest.approx(multipletests(raw, method="holm")[1])
    assert better(found) == {"cosine", "uba0.3", "uba1"}
    assert worse(found) == {"wsd20"}


def test_one_better_baseline_contradicts_gains(params: Params) -> None:
    long = runs("long", {k: v for k, v in ARMS.items() if k != "uba1"})
    long = long[long["peak"] == 0.001]
    lost = EVIDENCE["c3"](pd.concat([runs("short", ARMS), long]), params).quantities
    assert (lost["all_below"], lost["worse_than"]) == (False, 1)
    assert lost["beats_cosine_and_linear"]
    assert lost["cosine_difference"] == pytest.approx(-0.2, abs=2e-3)
    won = {**ARMS, "wsd20": 2.3}
    cells = pd.concat(
        [runs("short", won), runs("long", {k: v for k, v in won.items() if k != "uba1"})]
    )
    cells = cells[(cells["group"] == "short") | (cells["peak"] == 0.001)]
    kept = EVIDENCE["c3"](cells, params).quantities
    assert (kept["all_below"], kept["worse_than"]) == (True, 0)


def test_a_range_is_largest_minus_smallest() -> None:
    table = pd.DataFrame(
        [{"unit": "s", "arm": arm, "peak": peak, "value": value}
         for arm, values in (("uta", (1.0, 1.5, 1.2)), ("cosine", (2.0, 2.1, 1.8)))
         for peak, value in zip((1, 2, 3), values, strict=True)]
    )  # fmt: skip
    found = ranges(table, "peak").loc["s"]
    assert (found["uta"], found["cosine"]) == (pytest.approx(0.5), pytest.approx(0.3))


def test_laboratory_ratios_are_taken_at_the_best_peak_or_beside_it() -> None:
    rows = [{"unit": "p", "arm": "optimum", "metric": "loss", "value": 2.0, "peak": np.nan}]
    rows += [
        {"unit": "p", "arm": "uta", "metric": "loss", "value": value, "peak": peak}
        for peak, value in ((0.1, 5.0), (0.2, 3.0), (0.4, 4.0))
    ]
    cells = pd.DataFrame(rows)
    assert lab_ratios(cells).loc["p", "uta"] == 1.5
    assert lab_ratios(cells, 1).loc["p", "uta"] == 2.0
    assert lab_ratios(cells, 5).loc["p", "uta"] == 2.0
