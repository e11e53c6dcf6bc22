"""What folding is compared with (spec 4): other plain caches of the same size.

Two kinds, both servable by an unmodified engine: caches (``PlainCache``) that treat AM's bias in
another way, and token droppers, which return positions ``(H, t)`` for ``am_direct`` to take keys
and values from. Shapes as in ``attention.py``.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from replicata.errors import UsageError
from replicata.papers.kvfold.attention import (
    FullAttention,
    PlainCache,
    full_attention,
    gather_rows,
    working_dtype,
)
from replicata.papers.kvfold.attention_matching import Compacted, fit_values
from replicata.papers.kvfold.selection import check_budget


def drop_bias(compacted: Compacted) -> PlainCache:
    """Keep AM's keys and values and forget the bias: folding's error with ε = -1."""
    return PlainCache(compacted.keys, compacted.values)


def no_bias(
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    index: Tensor,
    scale: float,
    ridge: float = 1e-4,
    attention: FullAttention | None = None,
) -> PlainCache:
    """AM without a bias: keep the keys ``index (H, t)`` and fit their values with β = 0.

    ``attention`` is ``full_attention`` of the same keys, values and queries, if there is one.
    """
    if attention is None or attention.output is None:
        attention = full_attention(keys, queries, scale, values)
    kept = gather_rows(keys, index)
    return PlainCache(kept, fit_values(kept, None, queries, attention.output, scale, ridge))


def fold_refit(
    folded_keys: Tensor, queries: Tensor, targets: Tensor, scale: float, ridge: float = 1e-4
) -> PlainCache:
    """Folding with its values fitted anew for the folded keys, to targets ``(H, n, d)``."""
    fitted = fit_values(folded_keys, None, queries, targets, scale, ridge)
    return PlainCache(folded_keys, fitted)


def am_direct(keys: Tensor, values: Tensor, index: Tensor) -> PlainCache:
    """Keep the keys ``index (H, t)`` with their own values; what every token dropper serves."""
    return PlainCache(gather_rows(keys, index), gather_rows(values, index))


def streaming_llm(length: int, budget: int, sinks: int = 4, heads: int = 1) -> Tensor:
    """Keep the first ``sinks`` and the latest tokens (StreamingLLM, arXiv 2309.17453).

    Returns positions ``(heads, budget)``, ascending, the same for every head.
    """
    check_budget(budget, length)
    first = torch.arange(min(sinks, budget))
    last = torch.arange(length - budget + len(first), length)
    return torch.cat([first, last]).expand(heads, -1)


def snapkv(
    keys: Tensor, queries_window: Tensor, budget: int, scale: float, kernel: int = 5
) -> Tensor:
    """Keep what the last queries attend to, and their own window (SnapKV, arXiv 2404.14469).

    Parameters
    ----------
    keys
        ``(H, T, d)``.
    queries_window
        Queries of the last w tokens of the context, by query head: ``(H * G, w, d)``.
    budget
        Keys kept per head, at least w.
    scale
        Factor of the logits.
    kernel
        Width of the average that smooths attention along the context, odd.

    Returns
    -------
    Tensor
        Positions ``(H, budget)``, ascending.

    Raises
    ------
    UsageError
        If the budget does not hold the window, or the kernel is even.
    """
    heads, length = keys.shape[:2]
    window = queries_window.shape[1]
    check_budget(budget, length)
    if budget < window:
        raise UsageError(f"budget is {budget} keys, expected at least SnapKV's window of {window}")
    if kernel % 2 == 0:
        raise UsageError(f"kernel is {kernel}, expected an odd width")
    own = torch.arange(length - window, length, device=keys.device).expand(heads, -1)
    if budget == window:
        return own
    dtype = working_dtype(keys, queries_window)
    grouped = queries_window.to(dtype).unflatten(0, (heads, -1))
    logits = scale * grouped @ keys.to(dtype).mT.unsqueeze(1)
    later = torch.ones(window, window, dtype=torch.bool, device=keys.device).triu(1)
    logits[..., length - window :].masked_fill_(later, -torch.inf)
    weight = logits.softmax(-1)[..., : length - window].mean(2)  # (H, G, T - w)
    score = avg_pool1d(weight, kernel, stride=1, padding=kernel // 2).mean(1)
    order = score.argsort(dim=-1, descending=True, stable=True)[:, : budget - window]
    return torch.cat([order.sort(dim=-1).values, own], dim=1)


def random_keys(length: int, budget: int, seed: int, heads: int = 1) -> Tensor:
    """Keep random tokens, drawn for each head. Returns positions ``(heads, budget)``, ascending."""
    check_budget(budget, length)
    rng = np.random.default_rng(seed)
    drawn = [np.sort(rng.choice(length, budget, replace=False)) for _ in range(heads)]
    return torch.from_numpy(np.stack(drawn))
