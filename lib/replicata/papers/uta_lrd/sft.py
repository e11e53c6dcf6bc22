"""Fine-tuning at profile ``paper``: TRL's ``SFTTrainer`` under each arm's schedule (c10)."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from trl import SFTConfig, SFTTrainer

from replicata.errors import ResourceError
from replicata.models.loading import load_model
from replicata.papers.uta_lrd.arms import arm, make_scheduler
from replicata.papers.uta_lrd.callback import UTACallback
from replicata.papers.uta_lrd.experiment import Params, SftParams
from replicata.papers.uta_lrd.method import UTASchedule

if TYPE_CHECKING:
    from datasets import Dataset


def load_texts(source: str, held_out: int) -> tuple["Dataset", "Dataset"]:
    """Return the training and the held-out records (the last ``held_out``).

    Parameters
    ----------
    source
        A JSONL file with a column ``text`` or ``messages``, or a data set of the hub.

    Raises
    ------
    ResourceError
        If it cannot be read, or has too few records.
    """
    from datasets import load_dataset

    try:
        if Path(source).is_file():
            records = load_dataset("json", data_files=source, split="train")
        else:
            records = load_dataset(source, split="train")
    # No network, no access, no such file: the library's errors have no common base.
    except Exception as error:
        raise ResourceError(
            f"texts {source!r}: expected a JSONL file or a data set of the hub "
            f"({type(error).__name__}: {error})"
        ) from error
    if len(records) <= held_out:
        raise ResourceError(
            f"texts {source!r} has {len(records)} records, expected more than the {held_out} "
            "that are held out"
        )
    cut = len(records) - held_out
    return records.select(range(cut)), records.select(range(cut, len(records)))


def make_trainer(params: Params, name: str, seed: int, folder: str) -> SFTTrainer:
    """Return TRL's trainer of one arm; the order of the data depends on ``seed`` alone."""
    own: SftParams = params.finetune
    loaded = load_model(own.model, device=params.device)
    model = loaded.model.train()
    texts, test = load_texts(own.source, own.held_out)
    settings = SFTConfig(
        folder,
        max_steps=own.steps,
        per_device_train_batch_size=own.micro_batch,
        gradient_accumulation_steps=own.batch // (own.micro_batch * params.processes),
        max_length=own.sequence,
        bf16=params.bf16,
        use_cpu=params.device == "cpu",
        seed=seed,
        data_seed=seed,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=own.peaks[0], weight_decay=0.0)
    warmup = int(params.warmup * own.steps)
    schedule = make_scheduler(arm(name), optimizer, own.steps, warmup, params.final_ratio)
    trainer = SFTTrainer(
        model=model,
        args=settings,
        train_dataset=texts,
        eval_dataset=test,
        processing_class=loaded.tokenizer,
        optimizers=(optimizer, schedule),
    )
    if isinstance(schedule, UTASchedule):
        examples = [trainer.train_dataset[i] for i in range(own.probe)]
        trainer.add_callback(UTACallback(schedule, dict(trainer.data_collator(examples))))
    return trainer


def sft_rows(params: Params, name: str, seed: int, context: dict[str, Any]) -> list[dict[str, Any]]:
    """Fine-tune under one arm; return the held-out loss, and what the loop measured."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(params, name, seed, folder)
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
    rows = [{**context, "metric": "loss", "value": loss}]
    if isinstance(trainer.lr_scheduler, UTASchedule):
        for entry in trainer.lr_scheduler.history:
            rows += [
                {**context, "metric": key, "value": entry[key], "step": entry["step"]}
                for key in ("noise", "drift", "phi")
            ]
    return rows
