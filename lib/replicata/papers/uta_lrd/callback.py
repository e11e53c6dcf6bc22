"""UTA-R in transformers' and TRL's trainers: a callback of the ``Trainer``.

    schedule = UTASchedule(optimizer, total_steps, warmup)
    trainer = Trainer(..., optimizers=(optimizer, schedule))
    trainer.add_callback(UTACallback(schedule, probe_batch))

The trainer saves and restores the schedule as it does any other.
"""

from typing import Any

import torch
import torch.distributed as dist
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
        self._parts: list[torch.Tensor] = []
        self._shared = False
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

        def record(module: torch.nn.Module, inputs: Any, given: dict[str, Any], out: Any) -> None:
            if not module.training:
                return
            if getattr(out, "log_probs", None) is not None:  # TRL's fused head leaves no loss
                total, count = -out.log_probs.detach().float().sum(), out.label_mask.sum()
            elif getattr(out, "loss", None) is not None:
                # The trainer divides by the tokens of all micro-batches, so that these add up.
                self._shared = given.get("num_items_in_batch") is not None
                total, count = out.loss.detach().float(), torch.ones_like(out.loss.detach())
            else:
                return
            self._parts.append(torch.stack([total, count.to(total)]))

        self._hook = model.register_forward_hook(record, with_kwargs=True)

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        """Observe the mean loss of the step's micro-batches, and probe at a boundary."""
        if not self._parts:
            raise ValueError("the model's output has no loss, expected one: pass labels.")
        summed = torch.stack(self._parts).sum(0)
        if dist.is_initialized():
            dist.all_reduce(summed)
        self.schedule.observe(summed[0] / (1.0 if self._shared else summed[1]))
        self._parts.clear()
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
