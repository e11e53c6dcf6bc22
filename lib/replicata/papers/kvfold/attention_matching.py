"""Attention Matching, the compaction that folding starts from (spec 3.1).

Per KV head it keeps ``t`` of ``T`` keys, gives each a bias so that the kept keys carry the mass of
all keys, and refits their values so that the attention output is that of the full cache:

1. *selection*: ``highest_attention_keys`` or ``omp_keys``;
2. *bias*: ``fit_bias``, least squares in ``B = exp(bias)`` between bounds;
3. *values*: ``fit_values``, a ridge regression.

Everything is batched over the ``H`` KV heads of a layer; shapes and precision as in
``attention.py``, and what is solved is solved in float64.

Source: "Fast KV Compaction via Attention Matching", arXiv 2602.16284. Where we differ from its
public code: the bounded problem is solved to optimality, where that code takes two projected
gradient steps or clamps an unbounded solution; its rows are scaled by the total mass
(``row_scaling="rowmax"`` is theirs); the values carry a small ridge.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from replicata.errors import RunError, UsageError
from replicata.papers.kvfold.attention import (
    FullAttention,
    PlainCache,
    RowScaling,
    attention_output,
    full_attention,
    gather_rows,
    mass_features,
    pool_queries,
    query_blocks,
    working_dtype,
)
from replicata.papers.kvfold.bounded import bounded_least_squares
from replicata.papers.kvfold.selection import check_budget, highest_attention_keys, omp_keys

__all__ = [
    "Compacted",
    "FullAttention",
    "PlainCache",
    "attention_matching",
    "attention_output",
    "fit_bias",
    "fit_values",
    "full_attention",
    "highest_attention_keys",
    "omp_keys",
    "pool_queries",
]

BIAS_BOUNDS: dict[str, tuple[float, float]] = {"highest_attention": (-3.0, 3.0), "omp": (-7.0, 7.0)}
"""Bounds of the bias by selection, nats. With OMP the public code has no lower bound: it drops keys
below -7, as ``omp_keys`` does. The few that fall below it all the same are held at -7 (ours)."""


@dataclass(frozen=True)
class Compacted:
    """A compacted cache that needs a bias in the attention.

    Attributes
    ----------
    keys
        Kept keys C1, ``(H, t, d)``.
    bias
        β, added to the logits of the kept keys, ``(H, t)``, nats.
    values
        Refitted values C2, ``(H, t, d)``.
    index
        Positions of the kept keys in the context, ``(H, t)``, ascending.
    """

    keys: Tensor
    bias: Tensor
    values: Tensor
    index: Tensor


def fit_bias(
    keys: Tensor,
    queries: Tensor,
    index: Tensor,
    scale: float,
    lower: float = -3.0,
    upper: float = 3.0,
    row_scaling: RowScaling = "relative",
    attention: FullAttention | None = None,
) -> Tensor:
    """Fit the bias with which the kept keys carry the mass of all keys.

    ``B = argmin |E[:, S] B - E 1|^2`` subject to ``e^lower <= B <= e^upper``; the bias is log B.
    A kept key without any mass has bias 0.

    Parameters
    ----------
    keys
        All keys, ``(H, T, d)``.
    queries
        ``(H, n, d)``.
    index
        Positions S of the kept keys, ``(H, t)``.
    scale
        Factor of the logits.
    lower, upper
        Bounds of the bias, nats, ``lower <= 0 <= upper``.
    row_scaling
        See ``mass_features``.
    attention
        Result of ``full_attention`` for the same keys and queries, if there is one.

    Returns
    -------
    Tensor
        ``(H, t)``, float64.
    """
    attention = attention or full_attention(keys, queries, scale)
    heads, t = index.shape
    gram = torch.zeros(heads, t, t, dtype=torch.float64, device=keys.device)
    moment = gram.new_zeros(heads, t)
    kept = gather_rows(keys, index)
    for features, target in mass_features(kept, queries, scale, attention, row_scaling):
        gram += features.mT @ features
        moment += (features.mT @ target.unsqueeze(-1)).squeeze(-1)
    start = torch.ones_like(moment)
    weights = bounded_least_squares(gram, moment, math.exp(lower), math.exp(upper), start)
    return weights.log().clamp(lower, upper)  # log(exp(x)) may miss the bound by a rounding


def fit_values(
    keys: Tensor,
    bias: Tensor | None,
    queries: Tensor,
    targets: Tensor,
    scale: float,
    ridge: float = 1e-4,
) -> Tensor:
    """Fit the values with which the kept keys give the target outputs.

    ``C2 = argmin |P C2 - targets|^2 + ridge |P|_2^2 |C2|^2`` with ``P = softmax(scale Q K^T +
    bias)``, by the normal equations: ``P^T P`` is formed once, and its largest eigenvalue is
    ``|P|_2^2``.

    Parameters
    ----------
    keys
        Kept (or folded) keys, ``(H, t, d)``.
    bias
        ``(H, t)``, or None for none.
    queries
        ``(H, n, d)``.
    targets
        Outputs of the full cache, ``(H, n, d)``.
    scale
        Factor of the logits.
    ridge
        Relative to the squared spectral norm of P.

    Returns
    -------
    Tensor
        ``(H, t, d)``, at least float32.

    Raises
    ------
    RunError
        If the fit is singular, which takes a ridge of 0.
    """
    dtype = working_dtype(keys, queries, targets)
    heads, t = keys.shape[:2]
    transposed = keys.to(dtype).mT
    shift = 0.0 if bias is None else bias.to(dtype).unsqueeze(1)
    gram = torch.zeros(heads, t, t, dtype=torch.float64, device=keys.device)
    moment = gram.new_zeros(heads, t, targets.shape[-1])
    for block in query_blocks(queries, t):
        logits = (queries[:, block].to(dtype) * scale) @ transposed + shift
        weights = logits.softmax(-1).double()
        gram += weights.mT @ weights
        moment += weights.mT @ targets[:, block].double()
    penalty = ridge * torch.linalg.eigvalsh(gram)[:, -1:]
    gram.diagonal(dim1=-2, dim2=-1).add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed.any():
        bad = failed.nonzero().flatten().tolist()
        raise RunError(f"the value fit of heads {bad} is singular with ridge {ridge}, expected > 0")
    return torch.cholesky_solve(moment, factor).to(dtype)


def attention_matching(
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    budget: int,
    scale: float,
    selection: Literal["highest_attention", "omp"] = "highest_attention",
    row_scaling: RowScaling = "relative",
    ridge: float = 1e-4,
    attention: FullAttention | None = None,
) -> Compacted:
    """Compact a layer's cache to ``budget`` keys per head: selection, bias, values.

    Parameters
    ----------
    keys, values
        ``(H, T, d)``.
    queries
        Reference queries, ``(H, n, d)``.
    budget
        Keys kept per head, 1 to T.
    scale
        Factor of the logits: ``1 / sqrt(d)``, or the model's own.
    selection
        ``highest_attention`` or ``omp``; each has its bounds of the bias, ``BIAS_BOUNDS``.
    row_scaling, ridge
        See ``mass_features`` and ``fit_values``.
    attention
        Result of ``full_attention`` for the same keys, values and queries. Pass it where several
        budgets share them.

    Raises
    ------
    UsageError
        If the budget is outside 1 to T, or the selection is unknown.
    """
    if selection not in BIAS_BOUNDS:
        raise UsageError(f"selection is {selection!r}, expected one of {', '.join(BIAS_BOUNDS)}")
    check_budget(budget, keys.shape[1])
    if attention is None or attention.output is None:
        attention = full_attention(keys, queries, scale, values)
    if selection == "omp":
        index = omp_keys(keys, queries, budget, scale, attention, row_scaling)
    else:
        index = highest_attention_keys(keys, queries, budget, scale, attention)
    lower, upper = BIAS_BOUNDS[selection]
    bias = fit_bias(keys, queries, index, scale, lower, upper, row_scaling, attention)
    kept = gather_rows(keys, index)
    bias = bias.to(working_dtype(keys, queries))
    fitted = fit_values(kept, bias, queries, attention.output, scale, ridge)
    return Compacted(keys=kept, bias=bias, values=fitted, index=index)
