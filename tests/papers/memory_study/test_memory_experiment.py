"""Cells, rows and evidence; a rehearsal of the whole life cycle; preflight."""

from pathlib import Path

import pandas as pd
import pytest

from replicata.errors import NotRun
from replicata.papers.memory_study import analysis, baselines, experiment, preflight, tables
from replicata.papers.memory_study import registration as study
from replicata.papers.memory_study.results import registered_results
from replicata.preregistration.audit import CHECKS
from replicata.preregistration.places import Places
from replicata.preregistration.rehearsal import rehearse
from replicata.preregistration.rerun import shard_observations
from replicata.preregistration.study import Observation
from replicata.workflow.layout import repo_root
from replicata.workflow.params import load_params


@pytest.fixture(scope="module")
def observed(registered):
    """Every cell of a small study, the gullible control in the model's place."""
    reg, responses, found = registered(3, worlds=40), {}, []
    for cell in study.planned_cells(reg.protocol):
        kind = "control_ideal" if cell.endpoint == "control_ideal" else "control_gullible"
        request = study.render(reg, cell, {need: responses[need] for need in cell.needs})
        responses[cell.id] = baselines.answer(kind, request, reg.seed(cell.id))
        outcome = study.outcome_of(reg, cell, responses[cell.id])
        found.append(Observation(cell, responses[cell.id], outcome))
    return found


@pytest.fixture(scope="module")
def rows(observed):
    return experiment.answer_rows(observed)


@pytest.fixture(scope="module")
def params():
    return load_params("memory_study", "cpu")


def test_rows_carry_all_that_the_registered_analysis_uses(observed, rows, params):
    direct = registered_results(study.choices(observed), {}, ["model"], params.seed)
    assert analysis.results_of(rows, params) == direct


def test_evidence_gives_the_numbers_of_the_registered_results(rows, params):
    direct = analysis.results_of(rows, params)
    for claim in ("c1", "c2", "c3", "c5", "c7", "c8"):
        evidence = analysis.EVIDENCE[claim](rows, params)
        assert evidence.quantities["estimate"] == direct[claim]["estimate"]
        assert evidence.p_value == direct[claim]["p_adjusted"]
        assert evidence.interval == (direct[claim]["lower"], direct[claim]["upper"])
        assert evidence.n == 40
    assert analysis.EVIDENCE["c9"](rows, params).quantities == direct["c9"]


def test_a_world_with_a_missing_answer_is_left_out_of_every_contrast(observed, params):
    lost = next(n for n, o in enumerate(observed) if o.cell.params["memory"] == "own")
    item = observed[lost]
    gone = [*observed[:lost], Observation(item.cell, None, None, "no"), *observed[lost + 1 :]]
    kept = analysis.choices_of(experiment.answer_rows(gone))
    assert item.cell.unit not in {choice.world for choice in kept}
    assert analysis.EVIDENCE["c1"](experiment.answer_rows(gone), params).n == 39


def test_cells_are_the_shards_and_the_audit(params):
    listed = experiment.cells(params)
    assert [cell.group for cell in listed].count("audit") == 1
    shards = [cell.params["shard"] for cell in listed if cell.group == "answers"]
    assert len(shards) == 10
    assert len(set(shards)) == 10


def test_an_unfrozen_study_is_not_run():
    places = Places(Path(repo_root()), "memory_study_paper", "paper")
    with pytest.raises(NotRun, match="not frozen"):
        shard_observations(places, "any")


def test_preflight_names_everything_that_is_missing():
    found = preflight.preflight(load_params("memory_study", "paper"))
    assert any("TO BE WRITTEN" in sentence for sentence in found)
    assert any("not frozen" in sentence for sentence in found)
    assert any("tsa-roots.pem" in sentence for sentence in found)
    assert sum("does not answer" in sentence for sentence in found) == 11


def test_the_cost_is_in_requests_and_tokens():
    assert "146,944 requests" in preflight.cost_estimate(load_params("memory_study", "paper"))


def test_a_rehearsal_of_the_controls_passes_its_audit_and_fails_it_when_altered():
    found = rehearse(Path(repo_root()), "memory_study_controls")
    assert found.results["label"] == "CONFIRMATORY"
    assert set(found.audit) == set(CHECKS)
    assert "FAIL" not in found.audit.values()
    assert found.audit["A4"] == "NOT INDEPENDENT"
    assert found.audit["A20"] == "PASS"
    assert [item for item, status in found.tampered.items() if status == "FAIL"] == ["A8"]
    assert len(found.observed) == 960
    # Nothing was written where it was started from.
    assert not (Path(repo_root()) / "protocols/memory_study_controls/frozen.json").exists()


def test_tables_show_what_is_registered(params, rows):
    table = tables.registered(tables.protocol_of(params))
    assert table.loc["c3", "status"] == "confirmatory"
    assert table.loc["c4", "supported if"] == ""
    assert set(tables.flags(rows, params.seed)["status"]) == {"EXPLORATORY"}
    assert len(tables.power(params)) == 8


def test_audit_rows_are_one_unless_an_item_fails():
    listed = experiment.audit_rows([("A1", "a", "PASS", ""), ("A2", "b", "FAIL", "line 3")])
    assert listed["value"].tolist() == [1.0, 0.0]
    evidence = analysis.audited(
        pd.concat([listed, experiment.audit_rows([("A4", "c", "NOT INDEPENDENT", "")])]), None
    )
    assert evidence.quantities == {"failed": 1, "passed": 1, "independent": False}
