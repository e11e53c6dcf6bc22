"""A whole cell on canned texts, and the evidence from tables whose answer is known."""

import math

import numpy as np
import pandas as pd
import pytest

from replicata.papers.cacc import experiment
from replicata.papers.cacc.analysis import EVIDENCE, identities, joint, mcnemar, slopes
from replicata.papers.cacc.figures import FIGURES
from replicata.papers.cacc.preflight import cost_estimate
from replicata.papers.cacc.votes import released_votes
from replicata.workflow.params import load_params


@pytest.fixture(scope="module")
def smoke():
    return load_params("cacc", "smoke")


@pytest.fixture(scope="module")
def table(smoke, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICATA_CACHE", str(tmp_path_factory.mktemp("cache")))
        return pd.concat(experiment.run(smoke, cell) for cell in experiment.cells(smoke))


def test_every_claim_and_figure_can_be_made(smoke, table):
    for name, make in EVIDENCE.items():
        assert make(table, smoke).n > 0, name
    for name, (_, draw, caption) in FIGURES.items():
        assert draw(table, smoke).axes, name
        assert caption if isinstance(caption, str) else caption(table, smoke)


def test_arms_relate_as_they_must(smoke, table):
    """Alignment only adds; the placebo fills every gap; the budget arm spends what repair did."""
    main = table[(table["part"] == "main") & table["metric"].isin(["sel", "unparsed", "tokens"])]
    wide = main.pivot_table(
        index=["family", "interface", "unit"], columns=["metric", "arm"], values="value"
    )
    assert (wide["sel", "align"] >= wide["sel", "identity"]).all()
    assert (wide["unparsed", "align_repair"] <= wide["unparsed", "align"]).all()
    filled = table[(table["part"] == "placebo") & (table["metric"] == "unparsed")]
    assert (filled[filled["family"].isin(["mcq4", "mcq10"])]["value"] == 0).all()
    fixed = {family.id: family.interfaces[0] for family in smoke.families}
    for family, interface in fixed.items():
        tokens = wide.loc[family, interface]["tokens"].sum()
        extra = tokens["budget"] - tokens["identity"]
        spent = tokens["cacc"] - tokens["identity"]
        assert spent <= extra <= spent + 32  # within one candidate


def test_weights_and_selector_stay(smoke, table):
    assert EVIDENCE["c8"](table, smoke).quantities == {"weights_changed": 0, "selectors_in_use": 1}


def _rows(**columns):
    frame = pd.DataFrame(columns)
    for column, value in {
        "part": "main", "proposer": "p", "family": "mcq10", "interface": "letter-first",
        "k": 8.0, "budget": math.nan, "draw": math.nan, "ops": "", "text": "",
    }.items():  # fmt: skip
        if column not in frame:
            frame[column] = value
    return frame


def test_identities_count_what_breaks_them(smoke):
    rows = _rows(
        arm="identity",
        unit=["a", "a", "a", "b", "b", "b"],
        metric=["raw", "sel", "acc"] * 2,
        value=[1, 1, 0, 0, 1, 1],
    )
    assert identities(rows, smoke).quantities["violations"] == 1
    rows["draw"] = [0.0] * 6  # a column in use must not hide rows
    assert identities(rows, smoke).quantities["violations"] == 1


def test_mcnemar_counts_pairs():
    index = list("abcdef")
    found = mcnemar(pd.Series([1, 0, 0, 0, 1, 0], index), pd.Series([0, 1, 1, 1, 1, 0], index))
    assert (found.only_a, found.only_b) == (1, 3)
    assert found.p_value == pytest.approx(2 * (1 + 4) / 16)


def test_joint_bootstrap_sees_both_directions(smoke):
    units = [f"u{i}" for i in range(40)]

    def arm(name, sel, acc):
        return [
            _rows(arm=name, unit=units, metric="sel", value=sel),
            _rows(arm=name, unit=units, metric="acc_expected", value=acc),
        ]

    rows = pd.concat(
        [*arm("identity", [0.0] * 40, [1.0] * 40), *arm("cacc", [1.0] * 40, [0.0] * 40)]
    )
    assert joint(rows, smoke)["p_joint"] == 1
    assert joint(rows, smoke)["accuracy_gain"] == -1
    rows = pd.concat(
        [*arm("identity", [0.0] * 40, [0.0] * 40), *arm("cacc", [1.0] * 40, [1.0] * 40)]
    )
    assert joint(rows, smoke)["p_joint"] == 0


def test_slope_is_least_squares():
    y = [0.1, 0.4, 0.3, 0.9]
    rows = _rows(arm="cacc", unit="a", metric="sel", value=y, k=[1.0, 2.0, 4.0, 8.0], part="k")
    assert slopes(rows, "mcq10", "cacc", "sel")["a"] == pytest.approx(np.polyfit(range(4), y, 1)[0])


def test_released_votes_by_hand():
    """Strict votes B B A, right A: one more A makes a tie, so that accuracy gains one half."""
    strict = _rows(
        arm="identity", unit="a", metric="right", part="consumable", ops="strict",
        text=list("BBA"), value=[0, 0, 1],
    )  # fmt: skip
    added = _rows(
        arm="cacc", unit="a", metric="right", part="consumable", ops="align",
        text=["A", "B", "C"], value=[1, 0, 0],
    )  # fmt: skip
    found = released_votes(pd.concat([strict, added]), "mcq10", "letter-first")
    assert found.table["observed"].tolist() == [0.5, 0, 0]
    assert found.table["lead"].tolist() == [-1, -1, -1]
    assert (found.a, found.b) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert found.predicted == pytest.approx(1 / 6)
    assert found.observed == pytest.approx(1 / 6)


def test_cost_of_the_paper_profile():
    assert "14049 questions" in cost_estimate(load_params("cacc", "paper"))
