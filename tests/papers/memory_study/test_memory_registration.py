"""The study's functions: plan, requests, outcomes, exclusions, and its committed protocols."""

import json
from pathlib import Path

import pytest

from replicata.errors import RunError, UsageError
from replicata.models import load_model
from replicata.papers.memory_study import endpoints, prompts
from replicata.papers.memory_study import registration as study
from replicata.papers.memory_study.worlds import make_world
from replicata.preregistration.protocol import load_draft
from replicata.preregistration.study import Observation
from replicata.workflow.layout import repo_root
from replicata.workflow.params import load_params

PROTOCOLS = Path(repo_root()) / "protocols"


@pytest.mark.parametrize("name", ["memory_study", "memory_study_smoke", "memory_study_paper"])
def test_committed_protocols_plan_what_they_say(name):
    protocol = load_draft(PROTOCOLS / name / "draft.yaml")
    cells = study.planned_cells(protocol)
    assert len(cells) == protocol.sample.planned_cells
    assert len({cell.id for cell in cells}) == len(cells)
    assert len({cell.unit for cell in cells}) == protocol.sample.units
    assert not any(protocol.pilot.covers(cell.unit) for cell in cells)


def test_the_paper_profile_plans_the_32_choices_of_the_spec():
    protocol = load_draft(PROTOCOLS / "memory_study_paper" / "draft.yaml")
    core = [
        cell
        for cell in study.planned_cells(protocol)
        if cell.params["phase"] == "choice"
        and cell.params["memory"] in ("own", "opp", "irr", "instr")
        and not cell.endpoint.startswith("control")
    ]
    assert len(core) == 11 * 256 * 32 == 90_112


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
def test_params_name_the_seed_of_their_protocol(profile):
    params = load_params("memory_study", profile)
    protocol = load_draft(PROTOCOLS / params.study / "draft.yaml")
    assert params.seed == protocol.seeds.global_seed
    assert params.profile == protocol.profile


def test_rules_of_the_ledger_are_those_of_the_protocol():
    from replicata.claims.ledger import load_ledger
    from replicata.workflow.layout import Room

    protocol = load_draft(PROTOCOLS / "memory_study" / "draft.yaml")
    for claim in load_ledger(Room("memory_study", "cpu").ledger).claims:
        registered = protocol.hypothesis(claim.suffix)
        if registered is not None and registered.rule is not None:
            assert claim.rule.supported == registered.rule.supported
            assert claim.rule.contradicted == registered.rule.contradicted


def test_a_choice_needs_the_lesson_it_contains(registered):
    reg = registered(0)
    for cell in study.planned_cells(reg.protocol):
        memory, outcome = cell.params["memory"], cell.params["outcome"]
        if cell.params["phase"] == "choice" and memory in ("own", "opp", "note", "shared"):
            written_after = prompts.opposite(outcome) if memory == "opp" else outcome
            writer = "own" if memory == "opp" else memory
            (need,) = cell.needs
            assert need.split(".")[2:] == [
                "write",
                cell.params["scenario"],
                cell.params["log"],
                written_after,
                writer,
            ]
        else:
            assert cell.needs == ()


def cell_of(reg, **wanted):
    return next(
        cell
        for cell in study.planned_cells(reg.protocol)
        if cell.endpoint == "model" and wanted.items() <= cell.params.items()
    )


def test_the_logged_lesson_is_what_the_choosing_session_reads(registered):
    reg = registered(0)
    cell = cell_of(reg, phase="choice", memory="own", scenario="unlucky", outcome="F")
    world = make_world(reg, cell.unit)
    for scores, verdict in (("-1.0", "-2.0"), "good"), (("-2.0", "-1.0"), "bad"):
        request = study.render(reg, cell, {cell.needs[0]: {"scores": list(scores)}})
        assert prompts.lesson(world, "unlucky", "F", verdict) in request["user"][2]
    free = study.render(reg, cell, {cell.needs[0]: {"text": "Title: words"}})
    assert "Memory:\nTitle: words\n" in free["user"][2]


def test_free_writing_asks_for_texts_in_every_writing_cell(registered):
    reg = registered(0, writing="free")
    cells = [c for c in study.planned_cells(reg.protocol) if c.params["phase"] == "write"]
    assert all("max_tokens" in study.render(reg, cell, {}) for cell in cells)


def test_a_choice_is_worse_half_or_better_by_the_larger_score(registered):
    reg = registered(0)
    cell = cell_of(reg, phase="choice", memory="irr")
    world = make_world(reg, cell.unit)
    bad = world.listed.index(world.bad)
    for lead, worse in ((1.0, "1"), (-1.0, "0"), (5e-7, "1/2"), (2e-6, "1")):
        scores = ["-3.0", "-3.0"]
        scores[bad] = f"{-3.0 + lead:.9f}"
        found = study.outcome_of(reg, cell, {"scores": scores})
        assert found["worse"] == worse
        assert float(found["p_worse"]) == pytest.approx(
            1 / (1 + 2.718281828459045**-lead), abs=1e-6
        )


def test_a_tie_of_verdicts_is_the_first_word(registered):
    assert study.verdict("own", {"scores": ["-1.0", "-1.0"]}) == prompts.SLOT["own"][0]


def test_a_world_with_a_missing_answer_is_excluded_everywhere(registered):
    reg = registered(0)
    cells = study.planned_cells(reg.protocol)
    observed = [Observation(cells[0], None, None, "timeout")]
    assert list(study.exclude(reg, observed)) == [cells[0].unit]


def test_unknown_settings_are_refused_by_name(registered):
    with pytest.raises(UsageError, match=r"settings\.worlds"):
        study.planned_cells(registered(0, worlds=6).protocol)


# ---------------------------------------------------------------------------------------------
# The local endpoint, on a tiny model


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny-llama")


def test_equal_requests_get_equal_answers_whatever_else_is_asked(registered, tiny):
    reg = registered(0)
    world = make_world(reg, "w00000")
    requests = [
        prompts.guided_request(world, "unlucky", o, "indep", "own") | {"options": [" a", " b"]}
        for o in "FS"
    ]
    together = endpoints.answer_requests(tiny, [*requests, requests[0]])
    assert together[0] == together[2] != together[1]
    alone = endpoints.answer_requests(tiny, [requests[1]])[0]
    for left, right in zip(alone["scores"], together[1]["scores"], strict=True):
        assert float(left) == pytest.approx(float(right), abs=1e-4)


def test_options_of_unequal_length_are_refused(registered, tiny):
    world = make_world(registered(0), "w00000")
    request = prompts.choice_request(world, "unlucky", "F", "indep", "m")
    with pytest.raises(RunError, match="differ in their number of tokens"):
        endpoints.answer_requests(tiny, [request | {"options": [" ab", " abc"]}])


def test_a_free_answer_begins_with_what_was_given(registered, tiny):
    world = make_world(registered(0), "w00000")
    request = prompts.free_request(world, "unlucky", "F", "indep", "own") | {"max_tokens": 3}
    (answer,) = endpoints.answer_requests(tiny, [request])
    assert answer["text"].startswith("Title:")


def test_other_weights_than_pinned_are_refused():
    with pytest.raises(RunError, match="the protocol pins"):
        endpoints.local_model("tiny-llama:0000", "float32")


def test_requests_and_answers_are_json(registered, tiny):
    world = make_world(registered(0), "w00000")
    request = prompts.choice_request(world, "lucky", "S", "indep", prompts.IRRELEVANT)
    assert json.loads(json.dumps(request)) == request
