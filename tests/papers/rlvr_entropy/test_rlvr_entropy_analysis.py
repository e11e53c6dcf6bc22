"""Evidence and rules on made-up tables whose answer is known: each rule can fail."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import replicata.papers.rlvr_entropy as room
from replicata.claims.ledger import load_ledger
from replicata.claims.verdicts import decide
from replicata.papers.rlvr_entropy import analysis, estimates
from replicata.papers.rlvr_entropy.arms import Arm, explode_arms, learn_arms, null_arms
from replicata.papers.rlvr_entropy.experiment import GROUPS, Params
from replicata.papers.rlvr_entropy.figures import FIGURES

HOME = Path(room.__file__).parent
PROFILE = HOME.parents[3] / "params" / "rlvr_entropy" / "cpu.yaml"
CLAIMS = {claim.suffix: claim for claim in load_ledger(HOME / "claims.yaml").claims}
SEEDS, STEPS = 8, 6
#: What a unit of net advantage does to the slope, by sampler.
EFFECT = {"topp": -0.1, "topk": -0.1, "minp": -0.1, "cool": -0.2, "hot": 0.2, "exact": 0.0}


@pytest.fixture(scope="module")
def params():
    return Params.model_validate_json(json.dumps(yaml.safe_load(PROFILE.read_text())))


def verdict(name, cells, params):
    evidence = analysis.EVIDENCE[name](cells, params)
    return decide(CLAIMS[name], evidence).verdict, evidence


def test_every_testable_claim_has_evidence_and_the_groups_exist():
    testable = {name for name, claim in CLAIMS.items() if claim.not_testable is None}
    assert testable == set(analysis.EVIDENCE)
    assert {group for claim in CLAIMS.values() for group in claim.groups} <= set(GROUPS)
    assert {group for groups, _, _ in FIGURES.values() for group in groups} <= set(GROUPS)


def rows_of(arm, unit, series, group, metric="entropy", optimizer="adam", task="long_wrong"):
    """Rows of one metric of one run, one a step."""
    fixed = {
        "arm": arm.name, "unit": f"seed-{unit}", "group": group, "optimizer": optimizer,
        "task": task, "metric": metric, **vars(arm),
    }  # fmt: skip
    return [{**fixed, "step": step, "value": float(x)} for step, x in enumerate(series)]


def line(slope):
    return 2 + slope * np.arange(STEPS)


def null_table(effect=EFFECT, bend=0.0, kept=0.9, noise=1e-3, cool_left=0.0):
    rng, rows = np.random.default_rng(0), []
    for unit in range(SEEDS):
        base = rng.normal(0, 0.01)
        for optimizer in ("adam", "sgd"):
            for arm in null_arms([-0.1, -0.05, 0.0, 0.05, 0.1], optimizer):
                own = effect[arm.sampler]
                if arm.ratio == "sampler":
                    own *= kept if arm.sampler == "topp" else cool_left
                if arm.learner == "renorm":
                    own = 0.0
                slope = base + own * arm.shift + bend * own * arm.shift**3
                slope += rng.normal(0, noise)
                for metric, series in (
                    ("entropy", line(slope)),
                    ("probe_entropy", line(slope)),
                    ("gap_kept_mass", [0.9] * STEPS),
                    ("kept_mass", [0.92] * STEPS),
                ):
                    rows += rows_of(arm, unit, series, "null", metric, optimizer)
    return pd.DataFrame(rows)


def proofs(gap=0.1, exact=0.0, error=1e-6, control=-0.1, mass=1e-12, identity=1e-15, drift=1e-9):
    rows = [(kind, "gap", gap) for kind in ("topk", "topp", "minp", "cool")]
    rows += [(kind, "gap", -gap) for kind in ("hot", "mix")]
    rows += [("exact", "gap", exact), ("drop_first", "gap", control)]
    rows += [("topk", "difference_error", error), ("topk", "kept_mass_error", mass)]
    rows += [("topk", "drift_ratio_error", mass), ("cool", "removed_error", mass)]
    rows += [("batch", "identity_error", identity), ("topk", "drift_error", drift)]
    table = pd.DataFrame(rows, columns=["arm", "metric", "value"])
    return table.assign(unit="round-000", group="theorem")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "supported"),
        ({"gap": -1e-6}, "contradicted"),
        ({"exact": 1e-6}, "contradicted"),
        ({"error": 5e-3}, "inconclusive"),
        ({"control": 0.1}, "inconclusive"),
    ],
)
def test_c1(change, expected, params):
    assert verdict("c1", proofs(**change), params)[0] == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "supported"),
        ({"hot": -0.2}, "contradicted"),
        ({"minp": 0.0}, "inconclusive"),
        ({"exact": -0.05}, "inconclusive"),
    ],
)
def test_c2(change, expected, params):
    found, evidence = verdict("c2", null_table({**EFFECT, **change}), params)
    assert found == expected
    assert evidence.quantities["topp_contrast"] == pytest.approx(-0.02, abs=2e-3)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, "supported"),
        ({"bend": 100.0}, "inconclusive"),
        ({"effect": {**EFFECT, "topp": 0.1}}, "contradicted"),
        ({"effect": {**EFFECT, "exact": -0.08}}, "contradicted"),
        ({"noise": 0.03}, "inconclusive"),
    ],
)
def test_c3(table, expected, params):
    assert verdict("c3", null_table(**table), params)[0] == expected


@pytest.mark.parametrize(
    ("table", "proof", "expected"),
    [
        ({}, {}, "supported"),
        ({"kept": 0.4}, {}, "contradicted"),
        ({"cool_left": 0.5}, {}, "inconclusive"),
        ({}, {"mass": 1e-3}, "contradicted"),
    ],
)
def test_c4(table, proof, expected, params):
    cells = pd.concat([null_table(noise=3e-4, **table), proofs(**proof)], ignore_index=True)
    found, evidence = verdict("c4", cells, params)
    assert found == expected
    low, high = evidence.interval
    assert low <= evidence.quantities["ratio"] <= high


def learn_table(net=(-0.05, 0.1), effect=-0.1):
    rng, rows = np.random.default_rng(1), []
    for task in ("long_wrong", "long_right"):
        for unit in range(SEEDS):
            for arm in learn_arms():
                own = net[1] if arm.rule == "mask" else net[0]
                # Masking costs signal with any sampler; the mismatch acts under top-p alone.
                slope = -0.03 + 0.01 * (arm.rule == "mask") + rng.normal(0, 5e-4)
                slope += effect * own * (arm.sampler == "topp") * (arm.learner == "plain")
                rows += rows_of(arm, unit, line(slope), "learn", task=task)
                for rule, value in zip(("fail", "mask"), net, strict=True):
                    series = value + rng.normal(0, 0.005, STEPS)
                    rows += rows_of(arm, unit, series, "learn", f"net_{rule}", task=task)
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "supported"),
        ({"net": (0.05, 0.1)}, "inconclusive"),
        ({"effect": 0.1}, "contradicted"),
        ({"effect": 0.0}, "inconclusive"),
    ],
)
def test_c5(change, expected, params):
    assert verdict("c5", learn_table(**change), params)[0] == expected


def terms_table():
    rng, rows = np.random.default_rng(2), []
    for unit in range(SEEDS):
        arms = [Arm(sampler, rule) for sampler in ("topp", "exact") for rule in ("fail", "zeronet")]
        for arm in arms:
            drawn = {m: rng.normal(0, 0.01, STEPS) for m in ("signal", "net", "covariance")}
            gap = np.full(STEPS, 0.5 if arm.sampler == "topp" else 0.0)
            drawn["covariance"] *= arm.sampler == "topp"
            total = drawn["signal"] + drawn["net"] * gap + drawn["covariance"]
            for metric, series in (
                *drawn.items(),
                ("mean_gap", gap),
                ("entropy_change", -2 * total),
            ):
                rows += rows_of(arm, unit, series, "learn", metric)
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("change", "expected"),
    [({}, "supported"), ({"identity": 1e-6}, "contradicted"), ({"drift": 1e-5}, "inconclusive")],
)
def test_c6(change, expected, params):
    found, evidence = verdict("c6", pd.concat([proofs(**change), terms_table()]), params)
    assert found == expected
    assert "signal -2.00, net_term -2.00, covariance -2.00" in " ".join(evidence.notes)
    assert "exact: measured change of an update on the terms, coefficients signal -2.00;" in (
        " ".join(evidence.notes)
    )


def explode_table(at):
    """Entropy curves that exceed the threshold at a step, by arm (never where it is not named)."""
    rows, steps = [], np.arange(100)
    for unit in range(SEEDS):
        for arm in explode_arms():
            over = steps >= at.get(arm.name, 1000) + unit
            series = 2.0 + 0.01 * unit * steps / 100 + 0.7 * over
            rows += rows_of(arm, unit, series, "explode", task="hard")
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ({"narrow-fail": 20, "narrow-zeronet": 40, "narrow-zeronet-+0.05": 80}, "supported"),
        ({"narrow-fail": 40, "narrow-zeronet": 20, "narrow-zeronet-+0.05": 80}, "contradicted"),
        ({"narrow-fail": 20, "exact-fail": 20, "narrow-zeronet": 40}, "contradicted"),
        ({"narrow-fail": 20, "narrow-sharp": 30, "narrow-zeronet": 40}, "contradicted"),
        ({"narrow-fail": 20}, "inconclusive"),
        ({}, "inconclusive"),
    ],
)
def test_c7(at, expected, params):
    assert verdict("c7", explode_table(at), params)[0] == expected


def test_explosion_times_by_hand():
    times = estimates.explosion_times(explode_table({"narrow-fail": 20}), 100)
    assert times["narrow-fail"].tolist() == [20.0 + unit for unit in range(SEEDS)]
    assert (times["exact-fail"] == 100).all()


def test_slopes_and_coefficients_agree_with_polyfit():
    table = null_table()
    found = estimates.slopes(table, group="null", optimizer="adam")
    own = table[(table["metric"] == "entropy") & (table["optimizer"] == "adam")]
    for (arm, unit), part in list(own.groupby(["arm", "unit"]))[:12]:
        expected = np.polyfit(part["step"], part["value"], 1)[0]
        row = found[(found["arm"] == arm) & (found["unit"] == unit)]
        assert row["slope"].item() == pytest.approx(expected, abs=1e-12)
    plain = found[(found["learner"] == "plain") & (found["ratio"] == "none")]
    series = estimates.coefficients(plain, "topp")
    one = plain[(plain["sampler"] == "topp") & (plain["unit"] == "seed-0")]
    assert series["seed-0"] == pytest.approx(np.polyfit(one["shift"], one["slope"], 1)[0])


def test_accuracy_differences_are_paired():
    rows = [
        {"arm": f"narrow-{rule}", "sampler": "narrow", "unit": f"seed-{u}", "step": 10,
         "metric": "held_out", "value": 0.2 + 0.1 * u + gain}
        for u in range(3)
        for rule, gain in (("fail", 0.0), ("zeronet", 0.05), ("fail-renorm", -0.1))
    ]  # fmt: skip
    table = estimates.accuracy_differences(pd.DataFrame(rows))
    assert table.loc[("narrow", "narrow-zeronet", 10)].tolist() == [5.0, 5.0, 5.0, 3.0]
    assert table.loc[("narrow", "narrow-fail-renorm", 10), "mean"] == -10.0
