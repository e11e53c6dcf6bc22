"""The synthetic controls against their closed forms (spec 2.1, 8.6)."""

import itertools

import numpy as np
import pytest
from scipy import stats

from replicata.papers.memory_study import baselines, prompts
from replicata.papers.memory_study import registration as study
from replicata.papers.memory_study.baselines import E, Q
from replicata.papers.memory_study.method import Arm, Choices, Contrasts, estimate
from replicata.papers.memory_study.worlds import make_world, world_id
from replicata.preregistration.study import Observation


def run_controls(registered):
    """Ask both controls everything, and the gullible one in the model's place."""
    observed, responses = [], {}
    for cell in study.planned_cells(registered.protocol):
        kind = "control_ideal" if cell.endpoint == "control_ideal" else "control_gullible"
        request = study.render(registered, cell, {need: responses[need] for need in cell.needs})
        response = baselines.answer(kind, request, registered.seed(cell.id))
        responses[cell.id] = response
        observed.append(Observation(cell, response, study.outcome_of(registered, cell, response)))
    return observed


@pytest.fixture(scope="module")
def studies(registered):
    return [run_controls(registered(seed, worlds=24)) for seed in range(40)]


def test_the_gullible_control_has_the_interaction_q_in_both_scenarios(studies):
    for scenario in ("unlucky", "lucky"):
        means = [
            float(sum(d.values()) / len(d))
            for d in (
                Contrasts(Choices(study.choices(o)), "control_gullible", scenario).interaction()
                for o in studies
            )
        ]
        error = np.std(means, ddof=1) / len(means) ** 0.5
        assert abs(np.mean(means) - Q) < 3 * error
        assert error < 0.02  # so 3 errors could not hide an effect of 0, nor one of 2 q


def test_its_rate_after_a_lesson_for_the_worse_tool_is_the_closed_form(studies):
    arm = Arm("control_gullible", "unlucky", "indep", "F", "own")
    chosen = [float(y) for o in studies for y in Choices(study.choices(o)).worse(arm).values()]
    low, high = stats.binomtest(int(sum(chosen)), len(chosen)).proportion_ci(0.999)
    assert low < Q + (1 - Q) * E < high


def test_the_ideal_control_always_takes_the_better_tool(studies):
    made = [c for o in studies for c in study.choices(o) if c.arm.endpoint == "control_ideal"]
    assert made
    assert not any(choice.worse for choice in made)


def test_a_sign_flip_test_of_the_ideal_control_never_rejects(studies):
    for observed in studies[:5]:
        contrast = Contrasts(Choices(study.choices(observed)), "control_ideal").interaction()
        assert estimate(contrast, 2, seed=0).p_value == 1


def test_both_orders_of_listing_give_the_ideal_control_the_same_choice(registered):
    world = make_world(registered(0), world_id(0))
    for scenario, outcome in itertools.product(("unlucky", "lucky"), "FS"):
        request = prompts.choice_request(world, scenario, outcome, "indep", prompts.IRRELEVANT)
        swapped = request | {"options": request["options"][::-1]}
        taken = []
        for asked in (request, swapped):
            scores = baselines.answer("control_ideal", asked, 0)["scores"]
            taken.append(asked["options"][scores.index(baselines.CHOSEN)])
        assert taken == [f" {world.good}"] * 2
