"""Attention over one layer's cache, batched over its ``H`` KV heads: what all fits are made of.

Shapes: keys and values ``(H, T, d)``, queries ``(H, n, d)`` (all query heads of a KV head, see
``pool_queries``), all of them after RoPE. Weights are computed in float32, or in float64 if an
input is float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from replicata.errors import UsageError

RowScaling = Literal["relative", "rowmax"]

BLOCK_ELEMENTS = 1 << 20
"""Weights computed at a time: few enough to stay in a CPU's cache, and to bound the memory."""


@dataclass(frozen=True)
class PlainCache:
    """Keys and values of a layer, ``(H, t, d)`` each: what any engine can serve."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class FullAttention:
    """What the fits need from attention over the full cache; reusable for every budget.

    Attributes
    ----------
    log_mass
        Log of the sum over all keys of exp(logit), ``(H, n)``.
    row_max
        Largest logit of each query, ``(H, n)``.
    rms_weight
        Root mean square over queries of the attention weight of each key, ``(H, T)``, float64.
    output
        Attention output, ``(H, n, d)``; ``None`` where no values were given.
    """

    log_mass: Tensor
    row_max: Tensor
    rms_weight: Tensor
    output: Tensor | None

    def heads(self, chosen: slice) -> "FullAttention":
        """Return the part that belongs to some of the KV heads."""
        output = None if self.output is None else self.output[chosen]
        return FullAttention(
            self.log_mass[chosen], self.row_max[chosen], self.rms_weight[chosen], output
        )


def pool_queries(queries: Tensor, kv_heads: int) -> Tensor:
    """Pool the queries of all query heads that share a KV head.

    KV head ``h`` serves the query heads ``h * G`` to ``h * G + G - 1`` (grouped-query attention as
    in the models of transformers).

    Parameters
    ----------
    queries
        ``(H * G, n, d)``.
    kv_heads
        H.

    Returns
    -------
    Tensor
        ``(H, G * n, d)``, query head after query head.

    Raises
    ------
    UsageError
        If the number of query heads is no multiple of ``kv_heads``.
    """
    heads, n, d = queries.shape
    if kv_heads < 1 or heads % kv_heads:
        raise UsageError(f"kv_heads is {kv_heads}, expected a divisor of the {heads} query heads")
    return queries.reshape(kv_heads, heads // kv_heads * n, d)


def gather_rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Take the rows ``index (H, t)`` of ``tensor (H, T, d)``: ``(H, t, d)``."""
    return tensor.gather(1, index.unsqueeze(-1).expand(-1, -1, tensor.shape[-1]))


def working_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Return the widest dtype among the tensors, at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def query_blocks(queries: Tensor, keys: int) -> Iterator[slice]:
    """Cut the queries ``(H, n, d)`` into slices that make about ``BLOCK_ELEMENTS`` weights."""
    heads, n = queries.shape[:2]
    step = max(1, BLOCK_ELEMENTS // (heads * keys))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def attention_output(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """Compute ``softmax(scale * Q K^T + bias) V``, ``(H, n, d)``, with ``bias (H, t)`` or none."""
    dtype = working_dtype(queries, keys, values, bias)
    mask = None
    if bias is not None:
        mask = bias.to(dtype).unsqueeze(1).expand(-1, queries.shape[1], -1)
    return scaled_dot_product_attention(
        queries.to(dtype), keys.to(dtype), values.to(dtype), attn_mask=mask, scale=scale
    )


def full_attention(
    keys: Tensor, queries: Tensor, scale: float, values: Tensor | None = None
) -> FullAttention:
    """Attend over the full cache once, and keep what selection and fits need.

    Works through the queries in blocks: the ``n * T`` weights are never held at once.
    """
    dtype = working_dtype(keys, queries, values)
    transposed = keys.to(dtype).mT
    values = None if values is None else values.to(dtype)
    squares = torch.zeros(keys.shape[:2], dtype=torch.float64, device=keys.device)
    log_mass, row_max, output = [], [], []
    for block in query_blocks(queries, keys.shape[1]):
        weights = (queries[:, block].to(dtype) * scale) @ transposed
        peak = weights.amax(-1, keepdim=True)
        mass = weights.sub_(peak).exp_().sum(-1, keepdim=True)
        weights.div_(mass)
        row_max.append(peak.squeeze(-1))
        log_mass.append((peak + mass.log()).squeeze(-1))
        if values is not None:
            output.append(weights @ values)
        squares += weights.square_().sum(1)
    return FullAttention(
        log_mass=torch.cat(log_mass, 1),
        row_max=torch.cat(row_max, 1),
        rms_weight=(squares / queries.shape[1]).sqrt_(),
        output=torch.cat(output, 1) if output else None,
    )


def mass_features(
    keys: Tensor, queries: Tensor, scale: float, attention: FullAttention, scaling: RowScaling
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows of E for some keys, and their target ``E 1`` over all keys, block by block.

    Parameters
    ----------
    keys
        The keys that make the columns, ``(H, t, d)``.
    queries
        ``(H, n, d)``.
    attention
        Of the same queries over all keys.
    scaling
        ``relative``: each row divided by its total mass, so that every query's relative mass error
        counts the same and the target is 1. ``rowmax``: by its largest entry, as in the public code
        of Attention Matching.

    Yields
    ------
    tuple
        Features ``(H, m, t)`` and targets ``(H, m)``, float64.

    Raises
    ------
    UsageError
        If the scaling is unknown.
    """
    if scaling not in ("relative", "rowmax"):
        raise UsageError(f"row_scaling is {scaling!r}, expected 'relative' or 'rowmax'")
    reference = attention.log_mass if scaling == "relative" else attention.row_max
    dtype = working_dtype(keys, queries)
    transposed = keys.to(dtype).mT
    for block in query_blocks(queries, keys.shape[1]):
        logits = (queries[:, block].to(dtype) * scale) @ transposed
        logits -= reference[:, block].unsqueeze(-1)
        yield logits.exp_().double(), (attention.log_mass - reference)[:, block].double().exp()
