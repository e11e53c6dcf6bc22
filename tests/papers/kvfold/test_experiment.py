"""Parameters and cells: nothing is counted twice, and listing cells is cheap."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from replicata.errors import NotRun, ResourceError
from replicata.inference import Completion
from replicata.papers.kvfold import experiment, serving
from replicata.papers.kvfold.serving import agreement, foreign_functions
from replicata.workflow.params import load_params

PROFILES = ("smoke", "cpu", "paper")


@pytest.mark.parametrize("profile", PROFILES)
def test_cells_cover_every_context_once(profile):
    params = load_params("kvfold", profile)
    cells = experiment.cells(params)
    assert len({cell.id for cell in cells}) == len(cells)
    assert {cell.group for cell in cells} <= set(experiment.GROUPS)
    for family in params.families:
        for group, wanted in (
            ("quality", family.contexts),
            ("unequal", min(family.contexts, params.unequal.contexts)),
        ):
            covered = [
                index
                for cell in cells
                if cell.group == group and cell.params["family"] == family.name
                for index in range(cell.params["start"], cell.params["stop"])
            ]
            assert sorted(covered) == list(range(wanted))


@pytest.mark.parametrize("profile", PROFILES)
def test_what_claims_compare_is_measured(profile):
    """c6 compares KL and accuracy at the unequal budget with the equal ones at the same budget."""
    params = load_params("kvfold", profile)
    assert params.unequal.budget in params.kl_budgets
    assert params.unequal.budget in params.choice_budgets


def test_listing_cells_imports_no_torch():
    code = (
        "import sys; from replicata.workflow.params import load_params;"
        "from replicata.papers.kvfold import analysis, experiment;"
        "experiment.cells(load_params('kvfold', 'cpu'));"
        "assert not {'torch', 'transformers', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def scores(*rows):
    return torch.tensor(rows).log_softmax(-1)


def completion(tokens, logprobs=None):
    return Completion(tokens, "", logprobs or [0.0] * len(tokens), [], "length")


def test_agreement_of_equal_answers():
    table = scores([9.0, 0.0, 0.0], [0.0, 9.0, 0.0])
    chosen = [float(table[0, 0]), float(table[1, 1]) - 0.5]
    found = dict(agreement([0, 1], table, completion([0, 1], chosen)))
    assert found["equal"] == 1.0
    assert found["common"] == 2
    assert found["max_logprob_difference"] == pytest.approx(0.5, abs=1e-6)
    assert "gap" not in found


def test_agreement_measures_the_gap_at_the_first_difference():
    table = scores([9.0, 0.0, 0.0], [2.0, 1.7, 0.0], [0.0, 0.0, 9.0])
    found = dict(agreement([0, 0, 2], table, completion([0, 1, 2])))
    assert found["equal"] == 0.0
    assert found["common"] == 1
    assert found["gap"] == pytest.approx(0.3, abs=1e-6)


def test_agreement_of_an_answer_that_stops_early_has_no_gap():
    found = dict(agreement([0, 1], scores([9.0, 0.0], [0.0, 9.0]), completion([0])))
    assert found["equal"] == 0.0
    assert "gap" not in found


def test_a_replaced_method_is_found(monkeypatch):
    kind = type("Layer", (), {"forward": torch.nn.Module.forward, "__module__": "vllm.fake"})
    layer = kind()
    layer.impl = SimpleNamespace()
    layer.attn_backend = SimpleNamespace()
    home = torch.__path__[0]
    assert list(foreign_functions([layer], home)) == []
    monkeypatch.setattr(kind, "forward", lambda self: None)
    assert list(foreign_functions([layer], home)) == ["Layer.forward"]
    monkeypatch.undo()
    layer.forward = lambda: None
    assert list(foreign_functions([layer], home)) == ["Layer.forward"]


def test_without_vllm_the_serving_cells_are_not_run(monkeypatch):
    smoke = load_params("kvfold", "smoke")
    settings = load_params("kvfold", "cpu").serving.model_copy(update={"contexts": 1})
    params = smoke.model_copy(update={"serving": settings})
    cell = next(c for c in experiment.cells(params) if c.id == "serving-float32")

    def fails(*args, **kwargs):
        raise ResourceError("vLLM is not installed")

    monkeypatch.setattr(serving, "VllmEngine", fails)
    monkeypatch.setattr(serving, "model_directory", lambda name, dtype: None)
    with pytest.raises(NotRun, match="vLLM is not installed"):
        experiment.run(params, cell)
