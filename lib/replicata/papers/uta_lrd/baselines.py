"""The schedules it is compared with: transformers' where it has them, and the closed forms.

A closed form takes progress p in [0, 1] after warmup and gives f; all arms share the warmup t/W and
the final ratio r, so that the comparison is about the shape alone. transformers' WSD starts its
warmup at r and its linear schedule ends at 0, so these are closed forms here; the tests compare
them with transformers' at r = 0.
"""

import math
from collections.abc import Callable
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers.optimization import (
    get_cosine_with_min_lr_schedule_with_warmup,
    get_inverse_sqrt_schedule,
)


def linear(p: float) -> float:
    """Return 1 - p."""
    return 1 - p


def cosine(p: float) -> float:
    """Return (1 + cos pi p)/2, the shape of SGDR (arXiv 1608.03983)."""
    return (1 + math.cos(math.pi * p)) / 2


def constant(p: float) -> float:
    """Return 1."""
    return 1.0


def wsd(p: float, tail: float) -> float:
    """Return warmup-stable-decay with a linear tail of the last share ``tail`` (2404.06395)."""
    return min(1.0, (1 - p) / tail)


def wsd_sqrt(p: float, tail: float) -> float:
    """Return warmup-stable-decay with a tail of 1 - sqrt (arXiv 2405.18392)."""
    return 1 - math.sqrt(max(0.0, p - (1 - tail)) / tail)


def step(p: float) -> float:
    """Return a staircase: a factor of sqrt(0.1) at one half and at three quarters."""
    return 10 ** (-((p >= 0.5) + (p >= 0.75)) / 2)


def polynomial(p: float, power: float) -> float:
    """Return (1 - p)^power."""
    return (1 - p) ** power


def uba(p: float, phi: float) -> float:
    """Return UBA in its published form (arXiv 2505.24452), f between 0 and 1."""
    c = 1 + math.cos(math.pi * p)
    return 2 * c / (2 * phi + (2 - phi) * c)


#: Closed forms by name.
SHAPES: dict[str, Callable[[float], float]] = {
    "constant": constant,
    "cosine": cosine,
    "linear": linear,
    "wsd20": partial(wsd, tail=0.2),
    "wsd50": partial(wsd, tail=0.5),
    "wsd20_sqrt": partial(wsd_sqrt, tail=0.2),
    "step": step,
    "poly0.5": partial(polynomial, power=0.5),
    "poly2": partial(polynomial, power=2.0),
    **{f"uba{phi:g}": partial(uba, phi=phi) for phi in (0.1, 0.3, 1.0, 3.0, 5.0, 10.0)},
}


def make_baseline(
    name: str, optimizer: Optimizer, total_steps: int, warmup: int, final_ratio: float
) -> LRScheduler:
    """Return a baseline's scheduler: a name of ``SHAPES``, or ``inverse_sqrt``, which knows no r.

    Raises
    ------
    KeyError
        If no baseline has the name.
    """
    if name == "cosine":
        return get_cosine_with_min_lr_schedule_with_warmup(
            optimizer, warmup, total_steps, min_lr_rate=final_ratio
        )
    if name == "inverse_sqrt":
        return get_inverse_sqrt_schedule(optimizer, warmup)
    shape = SHAPES[name]

    def multiplier(t: int) -> float:
        if t < warmup:
            return t / warmup
        p = min(1.0, (t - warmup) / (total_steps - warmup))
        return final_ratio + (1 - final_ratio) * shape(p)

    return LambdaLR(optimizer, multiplier)
