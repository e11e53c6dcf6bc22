"""Training: what a block logs holds, and a block is its arms one by one."""

import copy
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import replicata.papers.rlvr_entropy as room
from replicata.errors import RunError
from replicata.papers.rlvr_entropy import experiment, studies, training
from replicata.papers.rlvr_entropy.arms import Arm, explode_arms, learn_arms, null_arms
from replicata.papers.rlvr_entropy.base import build_policy, train_base
from replicata.papers.rlvr_entropy.samplers import SAMPLERS
from replicata.papers.rlvr_entropy.task import verify

PROFILES = Path(room.__file__).parents[4] / "params" / "rlvr_entropy"


def load(profile):
    text = (PROFILES / f"{profile}.yaml").read_text()
    return experiment.Params.model_validate_json(json.dumps(yaml.safe_load(text)))


@pytest.fixture(scope="module")
def params():
    return load("smoke")


@pytest.fixture(scope="module")
def base(params):
    torch.manual_seed(0)
    task = studies.make_task(params, "long_wrong")
    return train_base(task, params.model, params.sft, 150, 3)


def train(params, base, arms, steps=3, **changes):
    task = studies.make_task(params, "long_wrong")
    rl = params.rl.model_copy(update={"lr": 1e-3, **changes})
    return training.train_block(copy.deepcopy(base), task, arms, rl, steps, 11)


ARMS = [
    Arm("topp", "fail"),
    Arm("topp", "zeronet"),
    Arm("topp", "zeronet", 0.1),
    Arm("topp", "sharp"),
    Arm("topp", "zeronet", 0.1, ratio="sampler"),
    Arm("topp", "zeronet", 0.1, learner="renorm"),
    Arm("exact", "fail"),
    Arm("hot", "fail", norm="seq_mean"),
]


@pytest.fixture(scope="module")
def rows(params, base):
    return train(params, base, ARMS, measure_change=True, evaluate_at=(0, 3))


def value(rows, arm, metric, step=None):
    own = rows[(rows["arm"] == arm.name) & (rows["metric"] == metric)]
    return own["value"] if step is None else own[own["step"] == step]["value"].item()


def test_what_the_rules_promise_is_what_is_logged(rows):
    assert value(rows, ARMS[1], "net").abs().max() < 1e-6
    assert (value(rows, ARMS[2], "net") - 0.1).abs().max() < 1e-6
    sharp = {m: value(rows, ARMS[3], m).to_numpy() for m in ("net", "mean_gap", "covariance")}
    assert np.abs(sharp["net"] * sharp["mean_gap"] + sharp["covariance"]).max() < 1e-7
    assert (value(rows, ARMS[6], "mean_gap") == 0).all()
    assert value(rows, ARMS[7], "net").abs().max() < 1e-6
    assert (value(rows, ARMS[7], "mean_gap") < 0).all()
    assert (value(rows, ARMS[0], "mean_gap") > 0).all()
    assert np.isfinite(rows["value"].dropna()).all()
    assert set(rows[rows["metric"] == "held_out"]["step"]) == {0, 3}


def test_a_ratio_shrinks_the_net_advantage_by_the_kept_mass(rows):
    with_ratio, without = (value(rows, ARMS[i], "net", 0) for i in (4, 2))
    assert 0.8 * without < with_ratio < without


def test_a_block_is_its_arms_one_by_one(params, base, rows):
    alone = train(params, base, [ARMS[0]], measure_change=True)
    keys = ["step", "metric"]
    together = rows[rows["arm"] == ARMS[0].name]
    both = alone.merge(together, on=keys, suffixes=("_alone", "_together"))
    assert len(both) == len(alone)
    assert np.allclose(both["value_alone"], both["value_together"], atol=2e-3)


def test_the_same_seed_gives_the_same_numbers(params, base):
    first, second = (train(params, base, ARMS[:2], steps=2) for _ in range(2))
    pd.testing.assert_frame_equal(first, second)


def test_a_step_of_sgd_moves_along_the_plain_gradient(params, base, monkeypatch):
    """One update of one arm against plain autograd on the same rollout, token by token."""
    kept = {}

    def recording(model, *arguments):
        kept["rollout"] = original(model, *arguments)
        return kept["rollout"]

    original = training.roll
    monkeypatch.setattr(training, "roll", recording)
    model = copy.deepcopy(base)
    task = studies.make_task(params, "long_wrong")
    rl = params.rl.model_copy(update={"lr": 0.5, "optimizer": "sgd", "clip": 1e9, "probe_every": 9})
    training.train_block(model, task, [Arm("topp", "zeronet", 0.1)], rl, 1, 11)
    rollout, plain = kept["rollout"], copy.deepcopy(base)
    tokens, mask = rollout.tokens[0], rollout.mask[0].float()
    prompts = rollout.sequences[:, :3]
    reward = verify(prompts, tokens)
    lengths = mask.sum(-1)
    loss, total = 0.0, mask.sum()
    log_p = plain(rollout.sequences, use_cache=False).logits[:, 2:-1].log_softmax(-1)
    for group in range(params.rl.prompts):
        own = range(group * params.rl.group_size, (group + 1) * params.rl.group_size)
        top = sum(lengths[i] * reward[i] for i in own)
        baseline = top / sum(lengths[i] for i in own)
        for i in own:
            for t in range(int(lengths[i])):
                loss = loss - (reward[i] - baseline + 0.1) * log_p[i, t, tokens[i, t]] / total
    loss.backward()
    for (name, after), before in zip(model.named_parameters(), plain.parameters(), strict=True):
        moved = (after[0] - before).detach()
        gradient = before.grad
        # Row 0 is the padding token, whose row nn.Embedding keeps from its gradient as an input.
        rows = slice(1, None) if "embed" in name else slice(None)
        assert torch.allclose(moved[rows], -0.5 * gradient[rows], atol=1e-7, rtol=1e-4), name


def test_a_number_that_is_not_finite_names_arm_and_step(params, base):
    broken = copy.deepcopy(base)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    with pytest.raises(RunError, match=r"arm topp-fail, step 0: \w+ is nan, expected a finite"):
        train(params, broken, [ARMS[0]])


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
def test_arms_have_names_of_their_own_and_every_profile_plans(profile):
    own = load(profile)
    for arms in (
        null_arms(own.null.shifts, "adam"),
        null_arms(own.null.shifts, "sgd"),
        learn_arms(),
        explode_arms(),
    ):
        assert len({arm.name for arm in arms}) == len(arms)
        assert {arm.sampler for arm in arms} <= set(SAMPLERS)
    planned = experiment.cells(own)
    assert len({cell.id for cell in planned}) == len(planned)
    assert {cell.group for cell in planned} <= set(experiment.GROUPS)


def test_the_base_learns_its_demonstrations(params):
    own = load("cpu")
    task = studies.make_task(own, "hard")
    policy = train_base(task, params.model, params.sft, 60, 1)
    torch.manual_seed(0)
    fresh = build_policy(params.model, task.vocabulary)
    sequences, _ = task.demonstrations(200, np.random.default_rng(9))
    losses = [
        torch.nn.functional.cross_entropy(
            m(sequences).logits[:, 2:-1].flatten(0, 1), sequences[:, 3:].flatten(), ignore_index=0
        ).item()
        for m in (policy, fresh)
    ]
    assert losses[0] < losses[1] - 0.5
