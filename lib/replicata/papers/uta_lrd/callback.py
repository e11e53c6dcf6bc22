"""UTA-R in transformers' and TRL's trainers: a callback of the ``Trainer``.

    schedule = UTASchedule(optimizer, total_steps, warmup)
    trainer = Trainer(..., optimizers=(optimizer, schedule))
    trainer.add_callback(UTACallback(schedule, probe_batch))

The trainer saves and restores the schedule as it does any other.
"""

from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from replicata.papers.uta_lrd import parallel
from replicata.papers.uta_lrd.method import UTASchedule


class UTACallback(TrainerCallback):
    """Feeds the schedule of a trainer.

    Parameters
    ----------
    schedule
        The one given to the trainer.
    probe_batch
        Arguments of the model's forward, labels included; the same batch at every boundary.
    """

    def __init__(self, schedule: UTASchedule, probe_batch: dict[str, torch.Tensor]) -> None:
        self.schedule, self.probe_batch = schedule, probe_batch
        self._micro: list[float] = []
        self._hook: Any = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        """Watch the losses of the micro-batches: trainers do not hand them to callbacks."""

        def record(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            if module.training and getattr(output, "loss", None) is not None:
                self._micro.append(output.loss.detach())

        self._hook = model.register_forward_hook(record)

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        """Observe the mean loss of the step's micro-batches, and probe at a boundary."""
        if not self._micro:
            raise ValueError("the model's output has no loss, expected one: pass labels.")
        self.schedule.observe(parallel.mean(torch.stack(self._micro).float().mean()))
        self._micro.clear()
        if self.schedule.needs_probe():
            now = self._loss(model)
            with self.schedule.averaged():
                averaged = self._loss(model)
            self.schedule.probe(parallel.from_first(now), parallel.from_first(averaged))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Stop watching."""
        if self._hook is not None:
            self._hook.remove()

    @torch.no_grad()
    def _loss(self, model: PreTrainedModel) -> float:
        was_training = model.training
        model.eval()
        batch = {key: value.to(model.device) for key, value in self.probe_batch.items()}
        loss = float(model(**batch).loss)
        model.train(was_training)
        return loss
