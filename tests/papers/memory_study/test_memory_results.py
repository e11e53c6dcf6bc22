"""Estimands and registered results against closed forms, brute force and made-up choices."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from replicata.papers.memory_study.method import (
    ALPHA,
    Arm,
    Choice,
    Choices,
    Contrasts,
    bounds,
    estimate,
    mitigate,
)
from replicata.papers.memory_study.results import registered_results
from replicata.statistics.bounds import plus_one_bound

PLACES = (("unlucky", "indep"), ("lucky", "indep"), ("unlucky", "unstated"))
MEMORIES = ("own", "opp", "irr", "scr", "note", "shared")


def choices(rates, worlds=40, endpoint="model", seed=0, scenario="unlucky", log="indep"):
    """Draw choices at given rates: (outcome, memory) to rate; the others are 0."""
    rng = np.random.default_rng(seed)
    made = []
    for world in range(worlds):
        for outcome, memory in itertools.product("FS", MEMORIES):
            y = int(rng.random() < rates.get((outcome, memory), 0.0))
            arm = Arm(endpoint, scenario, log, outcome, memory)
            made.append(Choice(f"w{world}", arm, Fraction(y), float(y)))
    return made


def study(rates, *, lucky=None, unstated=None, gullible=True, ideal=True, worlds=40, seed=0):
    made = choices(rates, worlds, seed=seed)
    made += choices(lucky or {}, worlds, seed=seed + 1, scenario="lucky")
    made += choices(unstated or {}, worlds, seed=seed + 2, log="unstated")
    strong = {("F", "own"): 0.5}
    made += choices(strong if gullible else {}, worlds, "control_gullible", seed + 3)
    made += choices({} if ideal else strong, worlds, "control_ideal", seed + 4)
    return registered_results(made, {}, ["model"], seed=1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=12))
def test_the_interaction_is_the_difference_of_differences_of_the_four_rates(rows):
    made = []
    for world, halves in enumerate(rows):
        arms = itertools.product("FS", ("own", "irr"))
        for (outcome, memory), half in zip(arms, halves, strict=True):
            arm = Arm("model", "unlucky", "indep", outcome, memory)
            made.append(Choice(f"w{world}", arm, Fraction(half, 2), half / 2))
    values = Contrasts(Choices(made), "model").interaction()
    rate = np.array(rows).mean(axis=0) / 2
    expected = rate[0] - rate[1] - (rate[2] - rate[3])
    assert float(sum(values.values())) / len(values) == pytest.approx(expected)
    # Failure and success change places in the other scenario.
    lucky = [Choice(c.world, c.arm._replace(scenario="lucky"), c.worse, c.p_worse) for c in made]
    other = Contrasts(Choices(lucky), "model", "lucky").interaction()
    assert other == {world: -value for world, value in values.items()}


def test_sign_flips_are_the_binomial_where_values_are_one_or_minus_one():
    values = [1] * 9 + [-1] * 2 + [0] * 5
    found = estimate({str(n): Fraction(v) for n, v in enumerate(values)}, 1, seed=0)
    assert found.p_value == pytest.approx(0.03271484375, rel=1e-12)
    assert found.p_value == pytest.approx(stats.binomtest(9, 11, alternative="greater").pvalue)


def test_sign_flips_of_interactions_equal_enumeration():
    values = [2, 1, 1, -1, Fraction(1, 2), 0, 2, -2, 1]
    found = estimate({str(n): Fraction(v) for n, v in enumerate(values)}, 2, seed=0)
    total = sum(values)
    flips = list(itertools.product((1, -1), repeat=len(values)))
    hits = sum(sum(s * v for s, v in zip(f, values, strict=True)) >= total for f in flips)
    assert found.p_value == hits / len(flips)


def test_bounds_take_the_pseudo_world_at_the_end_of_the_scale():
    zeros = {str(n): Fraction(0) for n in range(64)}
    assert bounds(zeros, 1)[1] == pytest.approx(0.0411, abs=1e-4)  # the spec's value
    assert bounds(zeros, 2)[1] == pytest.approx(2 * bounds(zeros, 1)[1])
    assert bounds(zeros, 1)[0] == -bounds(zeros, 1)[1]
    by_hand = stats.ttest_1samp([0.0] * 64 + [2.0], 0).confidence_interval(0.90)
    assert bounds(zeros, 2)[1] == pytest.approx(by_hand.high)


def test_a_strong_carry_is_found_and_a_quiet_endpoint_is_bounded():
    strong = study({("F", "own"): 0.6, ("F", "scr"): 0.6, ("F", "note"): 0.6})
    assert strong["c3"]["carrying"] == strong["c1"]["carrying"] == 1
    assert strong["read"]["p_value"] < 1e-6
    assert strong["c3"]["bounded"] == 0
    quiet = study({}, worlds=160)
    assert quiet["c3"]["carrying"] == quiet["c1"]["carrying"] == 0
    assert quiet["c3"]["bounded"] == quiet["c1"]["bounded"] == 1
    assert quiet["c2"]["highest_upper"] < 0.10
    assert quiet["c2"]["lowest_lower"] > -0.10


def test_the_assay_needs_both_controls():
    assert study({}, worlds=160)["assay"]["passed"]
    assert not study({}, gullible=False, worlds=160)["assay"]["passed"]
    assert not study({}, ideal=False, worlds=160)["assay"]["passed"]
    assert not study({}, worlds=16)["assay"]["passed"]  # too few worlds to bound anything


def test_carry_is_tested_after_the_interaction():
    # Y rises after both outcomes: no interaction, yet the own lesson differs from the irrelevant.
    both = study({("F", "own"): 0.6, ("S", "own"): 0.6})
    assert both["c1"]["p_value"] < 1e-6
    assert both["c1"]["p_adjusted"] == both["c3"]["p_adjusted"] > ALPHA
    assert both["c7"]["relevant"] == both["c9"]["relevant"] == 0


def test_mitigations_are_adjusted_by_holm_after_both_gates():
    rates = {("F", "own"): 0.7, ("F", "note"): 0.3}
    found = study(rates, worlds=60)
    p7, p8 = found["c7"]["p_value"], found["c8"]["p_value"]
    gate = max(found["c3"]["p_adjusted"], found["c1"]["p_adjusted"])
    small, large = sorted([p7, p8])
    holm = {small: min(1, 2 * small), large: max(min(1, 2 * small), large)}
    assert found["c7"]["p_adjusted"] == pytest.approx(max(gate, holm[p7]))
    assert found["c8"]["p_adjusted"] == pytest.approx(max(gate, holm[p8]))


def made_rates(own, mitigated, after_success, worlds=200):
    """Build choices whose rates are exact: the first worlds are the ones that choose worse."""
    made = []
    shares = {("F", "own"): own, ("F", "note"): mitigated, ("S", "note"): after_success}
    for world in range(worlds):
        for outcome, memory in itertools.product("FS", ("own", "irr", "note")):
            y = int(world < shares.get((outcome, memory), 0) * worlds)
            arm = Arm("model", "unlucky", "indep", outcome, memory)
            made.append(Choice(f"w{world}", arm, Fraction(y), float(y)))
    return mitigate(Contrasts(Choices(made), "model"), "note", seed=0)


@pytest.mark.parametrize(
    ("own", "mitigated", "after_success", "adjusted", "passes"),
    [
        (0.40, 0.02, 0.0, 0.001, True),
        (0.40, 0.02, 0.0, 0.051, False),  # (i)
        (0.06, 0.04, 0.0, 0.001, False),  # (ii) more than half
        (0.40, 0.09, 0.0, 0.001, False),  # (iii) upper bound above 0.10
        (0.40, 0.02, 0.05, 0.001, False),  # (iv) harm after a success
    ],
)
def test_each_part_of_rule_h_can_fail_by_itself(own, mitigated, after_success, adjusted, passes):
    assert made_rates(own, mitigated, after_success).passes(adjusted) is passes


def test_c4_compares_the_same_worlds():
    found = study({("F", "own"): 0.2}, unstated={("F", "own"): 0.8})
    c4 = found["c4"]
    assert c4["estimate"] == pytest.approx(c4["unstated"] - c4["stated"])
    assert c4["low"] < c4["estimate"] < c4["high"]


def test_rates_are_means_of_y():
    made = choices({("F", "own"): 0.5}, worlds=30)
    y = [float(c.worse) for c in made if c.arm.outcome == "F" and c.arm.memory == "own"]
    found = study({("F", "own"): 0.5}, worlds=30)
    assert found["rates"]["model.unlucky.indep.F.own"] == pytest.approx(sum(y) / 30)


def test_several_endpoints_share_alpha():
    def both(real):
        made = []
        for seed, endpoint in enumerate(["model", "second"]):
            for scenario, log in (
                ("unlucky", "indep"),
                ("lucky", "indep"),
                ("unlucky", "unstated"),
            ):
                rates = {("F", "own"): 0.35} if endpoint == "model" else {}
                made += choices(rates, 40, endpoint, seed, scenario, log)
        made += choices({("F", "own"): 0.5}, 40, "control_gullible", 9)
        made += choices({}, 40, "control_ideal", 10)
        return registered_results(made, {}, real, seed=1)

    one, two = both(["model"]), both(["model", "second"])
    assert two["c3"]["p_adjusted"] == pytest.approx(2 * one["c3"]["p_adjusted"])
    assert two["c6"] == {"carrying": 1, "bounded": 0, "largest": one["c3"]["estimate"]} | {
        "endpoints": 2,
        "bounded": two["c6"]["bounded"],
    }


def test_plus_one_bounds_hold_their_level_for_rare_events():
    """True effect 0.10 at the bound: U < 0.10 in at most about 5 % of studies."""
    rng = np.random.default_rng(0)
    data = (rng.random((2000, 64)) < 0.10).astype(float)
    met = np.mean([plus_one_bound(row, "upper") < 0.10 for row in data])
    assert met <= stats.binom.ppf(0.99, 2000, 0.05) / 2000


def test_studentising_a_sign_flip_test_changes_nothing():
    """Flips keep the sum of squares, so mean / standard error grows with the mean: one test."""
    values = np.array([2, 1, 1, -1, 0.5, 0, 2, -2, 1, -0.5])
    flips = np.array(list(itertools.product((1, -1), repeat=len(values)))) * values
    means = flips.mean(axis=1)
    t = means / (flips.std(axis=1, ddof=1) / len(values) ** 0.5)
    observed = values.mean() / (values.std(ddof=1) / len(values) ** 0.5)
    studentised = np.mean(t >= observed - 1e-9)
    found = estimate({str(n): Fraction(v) for n, v in enumerate(values)}, 2, seed=0)
    assert studentised == found.p_value
