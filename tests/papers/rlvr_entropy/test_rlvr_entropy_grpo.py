"""The paper's trainer: real TRL on a tiny model, with TRL's own generation."""

import math

import pytest
import torch
from datasets import Dataset
from transformers.trainer_utils import set_seed

from replicata.errors import ResourceError, UsageError
from replicata.models import load_model
from replicata.papers.rlvr_entropy import grpo_study
from replicata.papers.rlvr_entropy.arms import Arm
from replicata.papers.rlvr_entropy.experiment import GrpoParams, RlParams

OWN = GrpoParams(
    model="tiny-llama",
    prompts_path="data/none.jsonl",
    prompts=2,
    group_size=4,
    max_tokens=10,
    engine="transformers",
)
RL = RlParams(prompts=2, group_size=4, clip=1.0, probe_every=1, lr=1e-3)
PROMPTS = Dataset.from_list([{"prompt": f"Say {i}:", "answer": str(i)} for i in range(8)])


def reward(completions, **_):
    return [float(len(text) % 2) for text in completions]


def trainer(arm, tmp_path, **changes):
    loaded = load_model(OWN.model)
    with torch.no_grad():  # the end token becomes likely, so that lengths differ
        loaded.model.lm_head.weight[2] += loaded.model.lm_head.weight.mean(0) + 0.05
    config = grpo_study.make_config(OWN, arm, RL, 2, str(tmp_path), "cpu", 3)
    for name, value in changes.items():
        setattr(config, name, value)
    set_seed(0)
    return grpo_study.make_trainer(loaded.model, loaded.tokenizer, config, arm, reward, PROMPTS)


def rollouts(made):
    return made._generate_and_score_completions([PROMPTS[i // 4] for i in range(8)])


@pytest.mark.parametrize(
    "arm",
    [
        Arm("shipped", "zeronet", 0.1),
        Arm("shipped", "sharp"),
        Arm("shipped", "fail", learner="renorm"),
    ],
    ids=lambda arm: arm.name,
)
def test_an_arm_trains_and_logs_what_the_tiny_runs_log(arm, tmp_path):
    rows = grpo_study.train(OWN, arm, RL, reward, PROMPTS, 2, "cpu", 3)
    assert set(rows["step"]) == {0, 1}
    assert (rows["arm"] == arm.name).all()
    wide = rows.pivot_table(index="step", columns="metric", values="value")
    assert {"entropy", "net", "mean_gap", "covariance", "signal", "kept_mass"} <= set(wide.columns)
    assert (wide["mean_gap"] > 0).all()
    assert (wide["kept_mass"] < 1).all()
    if arm.rule == "zeronet":
        assert (wide["net"] - 0.1).abs().max() < 1e-6
    if arm.rule == "sharp":
        assert (wide["net"] * wide["mean_gap"] + wide["covariance"]).abs().max() < 1e-7


def test_advantages_are_the_rules_and_the_loss_is_trls(tmp_path):
    made = trainer(Arm("shipped", "zeronet", 0.1), tmp_path)
    output = rollouts(made)
    mask, advantage = output["completion_mask"].float(), output["advantages"]
    lengths = mask.sum(-1).view(2, 4)
    assert ((lengths * advantage.view(2, 4)).sum(1) / lengths.sum(1)).tolist() == pytest.approx(
        [0.1, 0.1], abs=1e-6
    )
    made.current_gradient_accumulation_steps = 1
    made.model.train()
    loss = made._compute_loss(made.model, output)
    # DAPO's loss at ratio 1 is minus the token mean of the advantage.
    expected = -(advantage[:, None] * mask).sum() / mask.sum()
    assert float(loss) == pytest.approx(float(expected), abs=1e-6)


def test_the_renormalised_log_probability_is_that_of_the_replayed_set(tmp_path):
    made = trainer(Arm("shipped", "fail", learner="renorm"), tmp_path)
    output = rollouts(made)
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    attention = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
    length = output["completion_ids"].shape[1]
    with torch.no_grad():
        for parameter in made.model.parameters():  # the policy has moved on since
            parameter.add_(0.05 * torch.randn_like(parameter))
        made._replayed = output["kept_ids"], output["kept_count"]
        found, *_ = made._get_per_token_logps_and_entropies(made.model, ids, attention, length)
        logits = made.model(input_ids=ids, attention_mask=attention).logits[:, -length - 1 : -1]
    for row, token in output["completion_mask"].nonzero().tolist():
        count = int(output["kept_count"][row, token])
        kept = output["kept_ids"][row, token, :count].tolist()
        chosen = int(output["completion_ids"][row, token])
        assert chosen in kept
        assert count <= 20
        total = math.log(sum(math.exp(float(logits[row, token, i])) for i in kept))
        expected = float(logits[row, token, chosen]) - total
        assert float(found[row, token]) == pytest.approx(expected, abs=1e-4)


def test_masking_takes_the_overlong_out_of_the_loss(tmp_path, monkeypatch):
    made = trainer(Arm("shipped", "mask"), tmp_path)
    monkeypatch.setattr(
        "replicata.papers.rlvr_entropy.grpo.empty_groups", lambda *_: torch.tensor(0.0)
    )
    output = rollouts(made)
    ends = (output["completion_ids"] == made.eos_token_ids[0]).any(-1)
    assert torch.equal(output["completion_mask"].any(-1), ends)
    assert int(output["num_items_in_batch"]) == int(output["completion_mask"].sum())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_rewards": "group"}, "scale_rewards is 'group', expected 'none'"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions is True"),
        ({"loss_type": "grpo"}, "loss_type is 'grpo', expected 'dapo'"),
    ],
)
def test_settings_that_would_undo_the_rule_are_refused(changes, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        trainer(Arm("shipped", "fail"), tmp_path, **changes)


def test_a_renormalised_loss_needs_the_recorded_sets(tmp_path):
    made = trainer(Arm("shipped", "fail", learner="renorm"), tmp_path)
    output = rollouts(made)
    del output["kept_ids"]
    with pytest.raises(UsageError, match="without recorded kept sets"):
        made._compute_loss(made.model, output)


def test_trl_takes_every_sampling_field_from_the_arm(tmp_path):
    made = trainer(Arm("shipped", "fail"), tmp_path)
    own = made.generation_config
    assert (own.top_k, own.top_p, own.temperature, own.do_sample) == (20, 0.95, 1.0, True)
    exact = trainer(Arm("exact", "fail"), tmp_path).generation_config
    assert (exact.top_k, exact.top_p, exact.temperature) == (0, 1.0, 1.0)


def test_the_arms_of_a_paper_cell_run_one_after_the_other(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "1 + 1 =", "answer": "2"}\n{"prompt": "2 + 2 =", "answer": "4"}\n')
    own = OWN.model_copy(update={"prompts_path": str(path)})
    arms = [Arm("shipped", "zeronet", 0.1), Arm("exact", "zeronet", 0.1)]
    coin = RL.model_copy(update={"reward": "coin"})
    first, second = grpo_study.run_arms(own, arms, coin, 1, "cpu", 5)
    gap = [rows[rows["metric"] == "mean_gap"]["value"].item() for rows in (first, second)]
    assert gap[0] > 0
    assert gap[1] == 0
    assert first[first["metric"] == "net"]["value"].item() == pytest.approx(0.1, abs=1e-6)


def test_missing_prompts_are_named():
    with pytest.raises(ResourceError, match=r"data/none\.jsonl is missing, expected a JSONL"):
        grpo_study.run_arms(OWN, [], RL, 1, "cpu", 5)


def test_the_optimizer_and_its_rate_are_those_of_the_runs(tmp_path):
    """The null runs by SGD (c3, c4) must be SGD's: an update is the rate times the gradient."""
    arm, made = Arm("shipped", "zeronet", 0.1), {}
    for optimizer, kind in (("adam", torch.optim.AdamW), ("sgd", torch.optim.SGD)):
        rl = RL.model_copy(update={"optimizer": optimizer, "lr": 0.25})
        config = grpo_study.make_config(OWN, arm, rl, 1, str(tmp_path), "cpu", 3)
        loaded = load_model(OWN.model)
        made[optimizer] = grpo_study.make_trainer(
            loaded.model, loaded.tokenizer, config, arm, reward, PROMPTS
        )
        made[optimizer].create_optimizer()
        inner = made[optimizer].optimizer
        assert isinstance(inner, kind)
        assert {group["lr"] for group in inner.param_groups} == {0.25}
    weight = made["sgd"].model.lm_head.weight
    before, weight.grad = weight.detach().clone(), torch.ones_like(weight)
    made["sgd"].optimizer.step()
    assert torch.allclose(weight, before - 0.25)
