"""What TRL users are shown: each remedy does to the terms what the formulas say."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import replicata.papers.rlvr_entropy as room
from replicata.models import load_model
from replicata.papers.rlvr_entropy import experiment, language
from replicata.papers.rlvr_entropy.estimates import remedies
from replicata.papers.rlvr_entropy.method import Batch, State
from replicata.papers.rlvr_entropy.preflight import cost_estimate, preflight

PROFILES = Path(room.__file__).parents[4] / "params" / "rlvr_entropy"


def load(profile):
    text = (PROFILES / f"{profile}.yaml").read_text()
    return experiment.Params.model_validate_json(json.dumps(yaml.safe_load(text)))


def test_the_cell_runs_and_its_table_is_whole():
    params = load("smoke")
    cell = next(c for c in experiment.cells(params) if c.group == "language")
    rows = experiment.run(params, cell)
    assert np.isfinite(rows["value"]).all()
    assert set(rows["unit"]) == {"prompt-00", "prompt-01"}
    table = remedies(rows)
    assert list(table.index) == [name for name, _, _ in language.REMEDIES]
    assert (table["prompts"] == 2).all()


def test_remedies_by_hand():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()
    gap = torch.tensor([[0.2, 0.1, 9.0], [0.3, 0.1, 0.2]])
    mass = torch.tensor([[0.9, 0.8, 0.1], [0.5, 0.9, 1.0]])
    zeros = torch.zeros(2, 3)
    states = State(entropy=zeros, gap=gap, kept_mass=mass, expected_f=zeros, chosen_f=zeros)
    batch = Batch(torch.tensor([1.0, 0.0]), torch.tensor([False, True]), mask, gap, 2)
    rows = language.read(batch, states)
    found = rows[rows["metric"] == "mismatch"].set_index("arm")["value"]
    assert found["TRL default (over-long fail)"] == pytest.approx((0.5 * 0.3 - 0.5 * 0.6) / 5)
    assert found["mask_truncated_completions"] == pytest.approx(0.5 * 0.3 / 2)
    token = 0.5 * (0.2 * 0.9 + 0.1 * 0.8) - 0.5 * (0.3 * 0.5 + 0.1 * 0.9 + 0.2)
    assert found["importance ratio per token"] == pytest.approx(token / 5)
    sequence = 0.5 * 0.3 * 0.72 - 0.5 * 0.6 * 0.45
    assert found["importance ratio per sequence"] == pytest.approx(sequence / 5)
    zero_net = 0.6 * 0.3 - 0.4 * 0.6  # baseline 2/5: advantages 3/5 and -2/5
    assert found["zero-net baseline"] == pytest.approx(zero_net / 5)
    assert found["sharpness-weighted baseline"] == pytest.approx(0, abs=1e-7)
    assert found["renormalised learner"] == 0
    shape = rows[rows["arm"] == "rollouts"].set_index("metric")["value"]
    assert shape["sequence_ratio"] == pytest.approx(0.45)  # torch's median takes the lower one
    assert shape["kept_mass"] == pytest.approx(4.1 / 5)


def test_states_are_those_of_one_forward_pass():
    loaded = load_model("tiny-llama")
    tokens, states = language.answers(loaded, "What is 2 + 2?", 5, 6, seed=1)
    assert tokens.shape == states.gap.shape == (5, 6)
    assert (states.gap > 0).all()
    assert ((states.kept_mass > 0) & (states.kept_mass < 1)).all()
    again, _ = language.answers(loaded, "What is 2 + 2?", 5, 6, seed=1)
    assert torch.equal(tokens, again)


def test_stops_and_numbers():
    tokens = torch.tensor([[5, 2, 7, 2], [5, 6, 7, 8], [2, 2, 2, 2]])
    mask = language.until_stop(tokens, (2,))
    assert mask.tolist() == [
        [True, True, False, False],
        [True, True, True, True],
        [True, False, False, False],
    ]
    assert language.last_number("3 + 4 = 7 apples.") == 7
    assert language.last_number("none") is None


def test_the_paper_profile_says_what_it_lacks_and_costs():
    params = load("paper")
    missing = " ".join(preflight(params))
    assert "data/rlvr/gsm8k_math_train.jsonl is missing" in missing
    assert "GPU-hours" in cost_estimate(params)
