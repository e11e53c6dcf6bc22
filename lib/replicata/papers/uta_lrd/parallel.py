"""One run on several devices: torchrun's launcher, and torch's data parallelism.

Without a process group every function here does nothing, so one process runs the plain loop.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel


def in_processes(count: int, device: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function(*args)`` in ``count`` processes, as torchrun does; return the first's result.

    Parameters
    ----------
    count
        One calls the function in this process.
    device
        ``cuda`` gives each process a device of its own, by NCCL; ``cpu`` uses Gloo.
    function
        Of a module's top level.
    """
    if count == 1:
        return function(*args)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="spawn",
    )
    return elastic_launch(config, _member)(device, function, args)[0]


def _member(device: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        return function(*args)
    finally:
        dist.destroy_process_group()


def is_first() -> bool:
    """Whether this process writes what all have."""
    return not dist.is_initialized() or dist.get_rank() == 0


def wrapped(model: nn.Module) -> nn.Module:
    """Return the model whose backward averages the gradients over the processes."""
    return DistributedDataParallel(model) if dist.is_initialized() else model


def not_reduced(model: nn.Module) -> AbstractContextManager[None]:
    """Leave the gradients of a micro-batch in this process; the last one's backward adds all up."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def share(batch: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a batch.

    Raises
    ------
    ValueError
        If the batch cannot be shared out evenly.
    """
    if not dist.is_initialized():
        return batch
    count, rank = dist.get_world_size(), dist.get_rank()
    if len(batch) % count:
        raise ValueError(
            f"a batch of {len(batch)} on {count} processes, expected a multiple of {count}."
        )
    return batch.chunk(count)[rank]


def mean(value: torch.Tensor) -> float:
    """Return the mean of a number over the processes."""
    if not dist.is_initialized():
        return value.item()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def from_first(value: float) -> float:
    """Return the first process's value."""
    if not dist.is_initialized():
        return value
    shared = [value]
    dist.broadcast_object_list(shared)
    return shared[0]
