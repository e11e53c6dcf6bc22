"""Training: resume bit for bit, trainers, AMP, pairing, and every profile's params."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

from replicata.papers.uta_lrd import data, parallel, studies
from replicata.papers.uta_lrd.analysis import EVIDENCE
from replicata.papers.uta_lrd.callback import UTACallback
from replicata.papers.uta_lrd.experiment import GROUPS, Params, cells
from replicata.papers.uta_lrd.experiment import run as run_cell
from replicata.papers.uta_lrd.method import UTASchedule
from replicata.papers.uta_lrd.training import Run, batch_statistics, evaluate, micro_batches, train
from replicata.workflow.params import load_params

STEPS = 24


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params("uta_lrd", "smoke")


def make(params: Params, name: str = "uta", seed: int = 3) -> Run:
    corpus = data.standard_library()
    return studies.lm_run(params, corpus, name, seed, 3e-3, STEPS, 2, 0.1)


def weights(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


@pytest.mark.parametrize("name", ["uta", "uta_scale", "cosine", "wsd20"])
@pytest.mark.parametrize("stop", [7, 16])
def test_a_resumed_run_is_the_same_to_the_last_bit(
    params: Params, tmp_path: Path, name: str, stop: int
) -> None:
    whole = make(params, name)
    expected = train(whole)
    at = {"checkpoint": tmp_path / "run.pt", "every": stop}
    train(replace(make(params, name), **at), stop_at=stop)
    resumed = replace(make(params, name), **at)
    found = train(resumed)
    assert found.lr == expected.lr
    assert found.losses == expected.losses
    assert torch.equal(weights(resumed), weights(whole))


def test_arms_of_a_seed_share_weights_and_data(params: Params) -> None:
    one, two, other = make(params), make(params, "cosine"), make(params, "cosine", 4)
    assert torch.equal(weights(one), weights(two))
    assert torch.equal(one.batch_at(5)[0], two.batch_at(5)[0])
    assert not torch.equal(one.batch_at(5)[0], other.batch_at(5)[0])


def test_held_out_text_is_never_trained_on(params: Params) -> None:
    corpus = data.standard_library()
    last = corpus.cut - params.model.sequence
    assert last > 0
    tokens = torch.arange(len(corpus.tokens))
    marked = data.Corpus(tokens, 1, "")
    run = studies.lm_run(params, marked, "uta", 0, 1e-3, STEPS, 4, 0.1)
    test, _ = studies.held_out(params.model, marked)
    assert max(int(run.batch_at(t)[0].max()) for t in range(STEPS)) < marked.cut
    assert int(test.min()) >= marked.cut


class Examples(torch.utils.data.Dataset):
    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def trainer(params: Params, folder: Path, save_at: int) -> tuple[Trainer, UTASchedule]:
    model: LlamaForCausalLM = studies.make_model(params.model, 0)
    tokens = data.standard_library().tokens[: 96 * 32].reshape(96, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = UTASchedule(optimizer, 12, 2, boundaries=4)
    settings = TrainingArguments(
        str(folder), max_steps=12, per_device_train_batch_size=2, gradient_accumulation_steps=3,
        save_steps=save_at, report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
        logging_strategy="no",
    )  # fmt: skip
    batch = {"input_ids": tokens[:4], "labels": tokens[:4]}
    made = Trainer(
        model, settings, train_dataset=Examples(tokens), optimizers=(optimizer, schedule)
    )
    made.add_callback(UTACallback(schedule, batch))
    return made, schedule


def test_transformers_trainer_with_accumulation_and_resume(params: Params, tmp_path: Path) -> None:
    whole, schedule = trainer(params, tmp_path, 7)
    whole.train()
    # One observation an optimizer step, not one a micro-batch, and of the trainer's own size: its
    # micro-batches' losses are already divided by the tokens of the whole step.
    assert len(schedule.losses) == 12
    logged = whole.state.log_history[-1]["train_loss"]
    assert sum(schedule.losses) / 12 == pytest.approx(logged, rel=1e-4)
    assert schedule.losses[0] > 5
    assert [entry["step"] for entry in schedule.history] == schedule.boundaries
    assert schedule.get_last_lr() == [pytest.approx(3e-4)]
    resumed, again = trainer(params, tmp_path, 7)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert again.history == schedule.history
    for one, two in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_gradient_scaler_that_skips_steps_does_not_break_the_schedule() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    schedule = UTASchedule(optimizer, 10, boundaries=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for t in range(10):
        optimizer.zero_grad()
        loss = (weight**2).sum() * (float("inf") if t == 3 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.observe(loss.detach())
        if schedule.needs_probe():
            schedule.probe(1.0, 0.9)
        schedule.step()
    assert torch.isfinite(weight).all()
    assert schedule.get_last_lr() == [pytest.approx(0.01)]


def test_bf16_autocast_trains(params: Params) -> None:
    run = replace(make(params), bf16=True)
    log = train(run)
    assert log.losses[-1] < log.losses[0]


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
def test_params_and_cells(profile: str) -> None:
    own = load_params("uta_lrd", profile)
    planned = cells(own)
    assert len({cell.id for cell in planned}) == len(planned)
    assert {cell.group for cell in planned} <= set(GROUPS)
    units = [u for c in planned if c.group == "short" for u in c.params["units"]]
    assert units == list(range(own.short.tuning + own.short.seeds))


def test_the_papers_code_path_with_a_tiny_model(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profile paper's loop: checkpoints and bfloat16; a finished run is not trained again."""
    monkeypatch.setattr(studies, "repo_root", lambda: tmp_path)
    raw = params.model_dump(mode="json")
    raw |= {"bf16": True, "checkpoints": "checkpoints", "vision": None, "finetune": None}
    raw["long"] |= {"arms": ["uta", "cosine"], "seeds": 2, "steps": 20}
    own = Params.model_validate_json(json.dumps(raw))
    cell = next(c for c in cells(own) if c.group == "long")
    first, again = studies.lm_study(own, cell), studies.lm_study(own, cell)
    timed = ["overhead"]
    pd.testing.assert_frame_equal(
        first[~first["metric"].isin(timed)], again[~again["metric"].isin(timed)]
    )
    assert len(list((tmp_path / "checkpoints").glob("*.pt"))) == 4


def test_micro_batches_add_up_to_the_batch(params: Params) -> None:
    whole, parts = make(params), replace(make(params), micro=1)
    one, two = train(whole), train(parts)
    assert two.losses == pytest.approx(one.losses, rel=1e-4)
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-3, atol=1e-4)
    batch = (torch.arange(7)[:, None], torch.arange(7))
    sizes = [len(part[0]) for part in micro_batches(replace(whole, micro=3), batch)]
    assert sizes == [3, 3, 1]


def test_micro_batches_of_unequal_size_are_weighted(params: Params) -> None:
    """A mean of means would weigh the last, smaller part too much."""
    corpus = data.standard_library()
    runs = [replace(studies.lm_run(params, corpus, "uta", 3, 3e-3, 1, 5, 0.1), micro=m)
            for m in (None, 2)]  # fmt: skip
    before = evaluate(runs[0], runs[0].batch_at(0))
    one, two = (train(run) for run in runs)
    assert one.losses == pytest.approx([before], rel=1e-6)
    assert two.losses == pytest.approx([before], rel=1e-6)
    grads = [torch.cat([p.grad.flatten() for p in run.model.parameters()]) for run in runs]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-6)
    assert evaluate(runs[1], runs[1].batch_at(0)) == pytest.approx(
        evaluate(replace(runs[1], micro=None), runs[1].batch_at(0)), rel=1e-6
    )


def test_two_processes_train_the_run_of_one(params: Params) -> None:
    """torchrun's launcher and DistributedDataParallel, over Gloo."""
    cell = next(c for c in cells(params) if c.group == "finetune")
    small = {"arms": ("uta",), "seeds": 2, "steps": 12, "pretraining": 10}
    own = params.model_copy(
        update={
            "finetune": params.finetune.model_copy(update=small),
            "micro_batch": 1,
        }
    )
    alone = run_cell(own, cell)
    shared = run_cell(own.model_copy(update={"processes": 2}), cell)
    for metric in ("loss", "noise", "phi"):
        found = [table.loc[table["metric"] == metric, "value"] for table in (alone, shared)]
        assert len(found[0]) > 0
        assert found[1].to_numpy() == pytest.approx(found[0].to_numpy(), rel=0.02), metric


def test_a_probe_uses_the_batchs_own_statistics() -> None:
    layer = torch.nn.BatchNorm2d(1).eval()
    images = torch.tensor([0.0, 2.0]).reshape(2, 1, 1, 1)
    with batch_statistics(layer):
        inside = layer(images).flatten()
    assert inside.tolist() == pytest.approx([-1, 1], abs=1e-4)
    assert layer(images).flatten().tolist() == pytest.approx([0, 2], abs=1e-4)
    assert int(layer.num_batches_tracked) == 0


def test_a_batch_that_cannot_be_shared_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 1)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    batch = torch.arange(4)
    assert parallel.share(batch).tolist() == [2, 3]
    with pytest.raises(ValueError, match="batch of 3 on 2 processes, expected a multiple of 2"):
        parallel.share(batch[:3])


def test_every_claim_has_evidence() -> None:
    assert set(EVIDENCE) == {f"c{i}" for i in range(1, 11)}
