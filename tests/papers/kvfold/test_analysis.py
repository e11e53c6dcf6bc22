"""Evidence and rules on made-up tables whose answer is known: each rule can fail."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import replicata.papers.kvfold as room
from replicata.claims.ledger import load_ledger
from replicata.claims.verdicts import decide
from replicata.papers.kvfold import analysis
from replicata.papers.kvfold.experiment import Params

HOME = Path(room.__file__).parent
PROFILE = HOME.parents[3] / "params" / "kvfold" / "cpu.yaml"
CLAIMS = {claim.id.split(".")[1]: claim for claim in load_ledger(HOME / "claims.yaml").claims}


@pytest.fixture(scope="module")
def params():
    return Params.model_validate(yaml.safe_load(PROFILE.read_text()))


def verdict(name, cells, params):
    evidence = analysis.EVIDENCE[name](cells, params)
    return decide(CLAIMS[name], evidence).verdict, evidence


def test_every_claim_has_evidence_and_the_groups_exist(params):
    from replicata.papers.kvfold.experiment import GROUPS

    assert set(CLAIMS) == set(analysis.EVIDENCE)
    assert {group for claim in CLAIMS.values() for group in claim.groups} <= set(GROUPS)


def geometry(ratio=0.5, error=1e-9, mismatch=0.0):
    rows = [
        ("fold", "shape_mismatch", mismatch, None),
        ("fold", "direction_error", error, None),
        ("fold", "kkt_residual", 1e-12, None),
        ("fold", "max_ratio", ratio, "repeat"),
        ("fold", "median_ratio", ratio / 2, "repeat"),
        ("fold", "queries", 100, "repeat"),
        ("fold", "spearman", 0.5, "repeat"),
        ("fold", "mean_error", 0.1, "repeat"),
        ("drop", "mean_error", 0.9, "repeat"),
    ]
    cells = pd.DataFrame(rows, columns=["arm", "metric", "value", "source"])
    return cells.assign(unit="context", group="geometry")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "supported"),
        ({"error": 1e-4}, "inconclusive"),
        ({"mismatch": 1.0}, "contradicted"),
    ],
)
def test_c1(change, expected, params):
    assert verdict("c1", geometry(**change), params)[0] == expected


@pytest.mark.parametrize(("ratio", "expected"), [(1.0, "supported"), (1.001, "contradicted")])
def test_c2_one_violation_contradicts(ratio, expected, params):
    found, evidence = verdict("c2", geometry(ratio), params)
    assert found == expected
    assert evidence.quantities["violations"] == int(ratio > 1.0001)


def serving(fp32=60, bf16=60, gap=0.01, control=0, hooks=0):
    rows = []
    for dtype, right in (("float32", fp32), ("bfloat16", bf16)):
        for question in range(60):
            equal = float(question < right)
            rows.append(("fold", "equal", equal, dtype, question))
            rows.append(("fold", "max_logprob_difference", 1e-5, dtype, question))
            if not equal and gap is not None:
                rows.append(("fold", "gap", gap, dtype, question))
        rows += [("connector_off", "equal", float(q < control), dtype, q) for q in range(10)]
        for metric, value in (
            ("hooks", hooks),
            ("changed_attributes", 0),
            ("stock_transformers", 1),
            ("stock_vllm", 1),
            ("attention_layers", 30),
        ):
            rows.append(("fold", metric, value, dtype, None))
    columns = ["arm", "metric", "value", "dtype", "question"]
    return pd.DataFrame(rows, columns=columns).assign(unit="context", group="serving")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "supported"),
        ({"bf16": 50}, "supported"),
        ({"bf16": 59, "gap": 0.2}, "inconclusive"),
        ({"bf16": 59, "gap": None}, "inconclusive"),
        ({"fp32": 59}, "inconclusive"),
        ({"fp32": 40}, "contradicted"),
        ({"control": 10}, "inconclusive"),
    ],
)
def test_c3(change, expected, params):
    assert verdict("c3", serving(**change), params)[0] == expected


def test_c7_a_hook_contradicts(params):
    assert verdict("c7", serving(), params)[0] == "supported"
    assert verdict("c7", serving(hooks=1), params)[0] == "contradicted"


def answers(fold_right, am_right, full_right=0.8, contexts=20, questions=20):
    """Accuracies given per arm; which questions are right is spread over contexts by a seed."""
    rng = np.random.default_rng(0)
    rows = []
    for family in ("squad", "records"):
        for c in range(contexts // 2):
            unit = f"{family}-{c}"
            hard = rng.random(questions)
            for q in range(questions):
                rows.append(("full", family, unit, np.nan, q, float(hard[q] < full_right)))
                for budget in (0.1, 0.2):
                    rows.append(("am", family, unit, budget, q, float(hard[q] < am_right)))
                    rows.append(("fold", family, unit, budget, q, float(hard[q] < fold_right)))
    columns = ["arm", "family", "unit", "budget", "question", "value"]
    return pd.DataFrame(rows, columns=columns).assign(metric="correct", group="quality")


@pytest.mark.parametrize(
    ("fold", "am", "full", "expected"),
    [
        (0.60, 0.61, 0.8, "supported"),
        (0.40, 0.70, 0.8, "contradicted"),
        (0.60, 0.61, 0.3, "inconclusive"),  # the full cache is near chance
        (0.10, 0.11, 0.8, "inconclusive"),  # AM kept nothing: equality is empty
    ],
)
def test_c4(fold, am, full, expected, params):
    found, evidence = verdict("c4", answers(fold, am, full), params)
    assert found == expected
    assert evidence.n == 20


def kl(ratio, spread=0.1, group="quality", budgets=(0.05, 0.1), contexts=8, seed=0):
    """Fold's KL is ``ratio`` times drop's, up to a log-normal spread between contexts."""
    rng = np.random.default_rng(seed)
    rows = []
    for family in ("squad", "records"):
        for c in range(contexts):
            for budget in budgets:
                drop = rng.uniform(0.5, 2.0)
                fold = drop * ratio * np.exp(spread * rng.normal())
                for question, weight in enumerate((0.5, 1.5)):
                    for arm, value in (("fold", fold), ("drop", drop), ("am", fold)):
                        rows.append(
                            (arm, family, f"{family}-{c}", budget, question, value * weight)
                        )
    columns = ["arm", "family", "unit", "budget", "question", "value"]
    return pd.DataFrame(rows, columns=columns).assign(metric="kl", group=group)


def test_the_log_ratio_averages_questions_first():
    table = analysis.log_ratio(kl(0.5, spread=0.0), "fold", "drop")
    assert table.shape == (16, 2)
    assert np.allclose(table, np.log(0.5))


@pytest.mark.parametrize(
    ("ratio", "spread", "expected"),
    [(0.7, 0.05, "supported"), (1.4, 0.05, "contradicted"), (1.0, 0.5, "inconclusive")],
)
def test_c5(ratio, spread, expected, params):
    found, evidence = verdict("c5", kl(ratio, spread), params)
    assert found == expected
    if expected == "supported":
        assert evidence.quantities["pooled_ratio"] == pytest.approx(0.7, rel=0.05)
        assert evidence.p_value < 0.001


@pytest.mark.parametrize(
    ("equal", "unequal", "spread", "expected"),
    [
        (0.5, 1.0, 0.05, "supported"),
        (0.5, 0.6, 0.05, "contradicted"),
        (1.0, 1.0, 0.3, "inconclusive"),
    ],
)
def test_c6(equal, unequal, spread, expected, params):
    paired = answers(0.6, 0.6).query("budget == 0.1").assign(group="unequal")
    budgets = pd.DataFrame({"arm": "budget", "metric": "relative_budget", "value": [0.5, 2.0]})
    cells = pd.concat(
        [
            kl(equal, spread, "quality", seed=1),
            kl(unequal, spread, "unequal", budgets=(0.1,), seed=2),
            paired,
            budgets.assign(unit="calibration", group="unequal"),
        ]
    )
    assert verdict("c6", cells, params)[0] == expected
