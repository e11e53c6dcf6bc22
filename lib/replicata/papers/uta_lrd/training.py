"""One training run under one schedule, with checkpoints that resume bit for bit."""

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from replicata.papers.uta_lrd import parallel
from replicata.papers.uta_lrd.method import UTASchedule
from replicata.workflow.files import atomic_write

#: (inputs, targets) of a step; a step's batch depends on the step alone, so a resume finds it.
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass
class RunLog:
    """What a run leaves: learning rates, the training losses, and CPU-seconds."""

    lr: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    schedule_seconds: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Run:
    """What is trained, on what, and how.

    Attributes
    ----------
    loss
        Mean loss of a model on a batch.
    batch_at
        This process's share of a step's batch.
    probe
        The fixed batch of the schedule's boundaries.
    clip
        Largest gradient norm.
    micro
        Sequences or images of one forward; None for a process's whole share of the batch.
    bf16
        Autocast the forward to bfloat16.
    checkpoint, every
        Where, and after how many steps, the state is saved; None for no checkpoints.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: LRScheduler
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    batch_at: Callable[[int], Batch]
    probe: Batch
    steps: int
    clip: float = 1.0
    micro: int | None = None
    bf16: bool = False
    device: str = "cpu"
    checkpoint: Path | None = None
    every: int = 0


def train(run: Run, stop_at: int | None = None) -> RunLog:
    """Train to the budget (or to ``stop_at``), from the checkpoint where there is one."""
    log, start = RunLog(), 0
    if run.checkpoint is not None and run.checkpoint.is_file():
        start = load(run, log)
    run.model.train()
    model = parallel.wrapped(run.model)
    began = time.process_time()
    for step in range(start, run.steps if stop_at is None else stop_at):
        run.optimizer.zero_grad(set_to_none=True)
        value = accumulate(run, model, run.batch_at(step))
        nn.utils.clip_grad_norm_(run.model.parameters(), run.clip)
        log.lr.append(run.optimizer.param_groups[0]["lr"])
        run.optimizer.step()
        log.losses.append(value)
        before = time.process_time()
        advance(run, value)
        log.schedule_seconds += time.process_time() - before
        due = run.checkpoint is not None and run.every and (step + 1) % run.every == 0
        if due and parallel.is_first():
            save(run, log, step + 1)
    log.seconds += time.process_time() - began
    return log


def accumulate(run: Run, model: nn.Module, batch: Batch) -> float:
    """Add up the gradients of a batch over micro-batches and processes; return its mean loss."""
    parts, size = micro_batches(run, batch), len(batch[0])
    total = torch.zeros((), device=run.device)
    for part in parts[:-1]:
        with parallel.not_reduced(model):
            total += _backward(run, model, part, size)
    total += _backward(run, model, parts[-1], size)
    return parallel.mean(total)


def _backward(run: Run, model: nn.Module, part: Batch, size: int) -> torch.Tensor:
    with torch.autocast(run.device.split(":")[0], torch.bfloat16, enabled=run.bf16):
        loss = run.loss(model, part) * (len(part[0]) / size)
    loss.backward()
    return loss.detach()


def micro_batches(run: Run, batch: Batch) -> list[Batch]:
    """Return a batch in parts of ``run.micro`` on the run's device (the last may be smaller)."""
    inputs, targets = (part.split(run.micro or len(part)) for part in batch)
    return [(x.to(run.device), y.to(run.device)) for x, y in zip(inputs, targets, strict=True)]


def advance(run: Run, loss: float) -> None:
    """Step the schedule; all that UTA adds to a training loop is the inner block."""
    schedule = run.schedule
    if isinstance(schedule, UTASchedule):
        schedule.observe(loss)
        if schedule.needs_probe():
            # Running statistics fit the current weights only: batch norm uses the probe's own.
            with batch_statistics(run.model):
                now = evaluate(run, run.probe)
                with schedule.averaged():
                    averaged = evaluate(run, run.probe)
            # One process decides, so that rounding cannot give two of them two schedules.
            schedule.probe(parallel.from_first(now), parallel.from_first(averaged))
    schedule.step()


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch norm use the batch's own statistics, and leave the running ones alone."""
    layers = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    kept = [(layer.running_mean, layer.running_var) for layer in layers]
    try:
        for layer in layers:
            layer.running_mean = layer.running_var = None
        yield
    finally:
        for layer, (mean, variance) in zip(layers, kept, strict=True):
            layer.running_mean, layer.running_var = mean, variance


@torch.no_grad()
def evaluate(run: Run, batch: Batch) -> float:
    """Return the mean loss on a batch, without dropout."""
    run.model.eval()
    loss = 0.0
    for part in micro_batches(run, batch):
        with torch.autocast(run.device.split(":")[0], torch.bfloat16, enabled=run.bf16):
            loss += run.loss(run.model, part).item() * (len(part[0]) / len(batch[0]))
    run.model.train()
    return loss


def save(run: Run, log: RunLog, step: int) -> None:
    """Write the state whole or not at all."""
    state = {
        "step": step,
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "rng": torch.get_rng_state(),
        "lr": log.lr,
        "losses": log.losses,
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    atomic_write(run.checkpoint, buffer.getvalue())


def load(run: Run, log: RunLog) -> int:
    """Restore a run and its log; return the next step."""
    state = torch.load(run.checkpoint, map_location=run.device, weights_only=True)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["rng"].cpu())
    log.lr, log.losses = state["lr"], state["losses"]
    return state["step"]
