"""Folding: Attention Matching's bias moved into the keys, so that any engine serves the cache.

Attention Matching (AM) leaves keys ``C1``, values ``C2`` and a bias ``β`` per kept key. Fused
attention kernels and paged caches take no bias. Folding writes it into the keys along one direction
``u`` per KV head on which the context's queries project to about 1:

    K̃_j = C1_j + (β_j / s) u    so that    s q·K̃_j = s q·C1_j + β_j (q·u)                    (1)
    u = argmin_u E(q·u - 1)² + λ|u|² = (E qqᵀ + λI)⁻¹ E q                                      (2)

``s`` is the factor of the logits. What comes out is an ordinary cache of AM's size and head
dimension; queries and values are untouched. A query is served exactly when ``q·u = 1``; with
``ε = q·u - 1`` all biases are off by the same factor ``1 + ε``, which bounds the error:

    |õ - o| <= D · TV(p, p̃) <= D · tanh(|ε| R / 4)                                           (4)
    õ - o = ε Cov_p(β, v) + O(ε²)                                                            (5)
    KL(p ‖ p̃) = log E_p exp(ε(β - E_p β)) <= ε² R² / 8                                       (5')

``p, p̃`` are the attention weights under AM and folded, ``R`` the range of the bias and ``D`` the
largest distance between two values (``bounds.py``). Dropping the bias is the case ``ε = -1``.
Equation numbers are the spec's (3.2 and 3.3), where there is no (3).

Stated by the paper: one closed-form direction per head, fitted on the context's queries, and a
bound by the projection's departure from 1. Reconstructed here: the formulas.

Shapes: keys and values ``(H, t, d)``, bias ``(H, t)``, queries ``(H, n, d)`` pooled over the query
heads of each KV head, after RoPE. The keys are shared by those query heads, hence so is ``u``.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from replicata.errors import RunError, UsageError
from replicata.papers.kvfold.attention import PlainCache, working_dtype
from replicata.papers.kvfold.attention_matching import Compacted
from replicata.papers.kvfold.bounds import (
    error_bound,
    first_order_error,
    first_order_weights,
    kl_bound,
    linear_bound,
)

__all__ = [
    "FoldReport",
    "Folded",
    "error_bound",
    "first_order_error",
    "first_order_weights",
    "fold_direction",
    "fold_keys",
    "fold_layer",
    "fold_report",
    "kl_bound",
    "linear_bound",
    "projection",
]

Variant = Literal["least_squares", "unit_mean", "weighted"]

FOLD_RIDGE = 1e-3
"""λ of equation (2) relative to tr(M)/d."""

UNRELIABLE_SHARE = 0.01
"""A head is unreliable when more than this share of its queries projects to 0 or below: for them
the bias acts with the wrong sign."""


def fold_direction(
    queries: Tensor,
    ridge: float = FOLD_RIDGE,
    variant: Variant = "least_squares",
    weights: Tensor | None = None,
) -> Tensor:
    """Fit the direction on which queries project to 1, equation (2).

    Parameters
    ----------
    queries
        ``(H, n, d)``.
    ridge
        λ relative to the mean eigenvalue of ``E qqᵀ``: ``λ = ridge · tr(E qqᵀ) / d``.
    variant
        ``least_squares``: equation (2). ``unit_mean``: the same direction, scaled so that the mean
        projection is exactly 1. ``weighted``: expectations in (2) weighted by ``weights``.
    weights
        ``(H, n)``, non-negative; only for ``weighted``. ``first_order_weights`` gives those that
        minimise the first-order output error (5). A head whose weights are all 0 has no error
        to minimise and is fitted with equal weights.

    Returns
    -------
    Tensor
        ``u``, ``(H, d)``, float64.

    Raises
    ------
    UsageError
        If the variant is unknown, or weights are missing or not wanted.
    RunError
        If the queries are not finite or, without a ridge, do not span the head dimension; or if
        ``unit_mean`` is impossible because the mean query is 0.
    """
    if variant not in ("least_squares", "unit_mean", "weighted"):
        raise UsageError(
            f"variant is {variant!r}, expected 'least_squares', 'unit_mean' or 'weighted'"
        )
    if (weights is None) == (variant == "weighted"):
        raise UsageError(f"weights go with variant 'weighted' and no other, got {variant!r}")
    q = queries.double()
    share = torch.full(q.shape[:2], 1.0 / q.shape[1], dtype=q.dtype, device=q.device)
    if weights is not None:
        total = weights.double().sum(-1, keepdim=True)
        share = torch.where(total > 0, weights.double() / total, share)
    mean = (share.unsqueeze(1) @ q).squeeze(1)
    moment = q.mT @ (share.unsqueeze(-1) * q)
    if not torch.isfinite(moment).all():
        raise RunError("the fold direction was fitted on queries that are not finite")
    diagonal = moment.diagonal(dim1=-2, dim2=-1)
    diagonal.add_(ridge * diagonal.mean(-1, keepdim=True))
    factor, failed = torch.linalg.cholesky_ex(moment)
    if failed.any():
        raise RunError(
            f"the queries of heads {failed.nonzero().flatten().tolist()} do not span the head "
            f"dimension {q.shape[-1]}, expected a ridge > 0 instead of {ridge}"
        )
    direction = torch.cholesky_solve(mean.unsqueeze(-1), factor).squeeze(-1)
    if variant == "unit_mean":
        direction = direction / (mean * direction).sum(-1, keepdim=True)
        if not torch.isfinite(direction).all():
            raise RunError("the mean query of a head is 0, so that no direction has mean 1 on it")
    return direction


def fold_keys(keys: Tensor, bias: Tensor, direction: Tensor, scale: float) -> Tensor:
    """Write the bias into the keys, equation (1).

    Added in float64 and returned in the dtype of the keys, at least float32: folded keys are longer
    than keys, so that a cast to the model's half precision comes last, after the rotation.

    Raises
    ------
    RunError
        If a bias is not finite.
    """
    if not torch.isfinite(bias).all():
        raise RunError("the bias to fold is not finite")
    shift = (bias.double() / scale).unsqueeze(-1) * direction.double().unsqueeze(1)
    return (keys.double() + shift).to(working_dtype(keys))


def projection(queries: Tensor, direction: Tensor) -> Tensor:
    """Project queries on the direction: ``q·u = 1 + ε``, ``(H, n)``, float64."""
    return (queries.double() @ direction.double().unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class FoldReport:
    """How well the queries of a layer support folding.

    Attributes
    ----------
    rms_epsilon
        Root mean square of ε per query head, ``(H, G)``.
    min_projection
        Smallest ``q·u`` per KV head, ``(H,)``.
    share_nonpositive
        Share of queries with ``q·u <= 0`` per KV head, ``(H,)``.
    unreliable_heads
        KV heads where that share exceeds ``UNRELIABLE_SHARE``: folding is not to be trusted there.
    rank_deficient
        Whether there are fewer queries than head dimensions, so that only the ridge determines u.
    """

    rms_epsilon: Tensor
    min_projection: Tensor
    share_nonpositive: Tensor
    unreliable_heads: list[int]
    rank_deficient: bool

    def warnings(self, layer: int) -> list[str]:
        """Say in a sentence each what is wrong, for a log."""
        said = []
        if self.rank_deficient:
            said.append(f"layer {layer}: fewer queries than head dimensions, the ridge decides u")
        if self.unreliable_heads:
            said.append(
                f"layer {layer}: over {UNRELIABLE_SHARE:.0%} of the queries of KV heads "
                f"{self.unreliable_heads} project to 0 or below, folding is unreliable there"
            )
        return said


def fold_report(queries: Tensor, direction: Tensor, groups: int = 1) -> FoldReport:
    """Report on the projections of queries ``(H, G * n, d)``, ``groups`` = G query heads pooled."""
    heads, pooled, d = queries.shape
    projected = projection(queries, direction)
    share = (projected <= 0).double().mean(-1)
    return FoldReport(
        rms_epsilon=(projected - 1).square().view(heads, groups, -1).mean(-1).sqrt(),
        min_projection=projected.amin(-1),
        share_nonpositive=share,
        unreliable_heads=(share > UNRELIABLE_SHARE).nonzero().flatten().tolist(),
        rank_deficient=pooled < d,
    )


@dataclass(frozen=True)
class Folded:
    """A folded layer: an ordinary cache, its direction ``(H, d)``, a report on its queries."""

    cache: PlainCache
    direction: Tensor
    report: FoldReport


def fold_layer(
    compacted: Compacted,
    queries: Tensor,
    scale: float,
    ridge: float = FOLD_RIDGE,
    variant: Variant = "least_squares",
    groups: int = 1,
) -> Folded:
    """Fold a compacted layer along the direction of the given queries; the values stay AM's.

    Parameters
    ----------
    compacted
        What AM left.
    queries
        Of the context, ``(H, G * n, d)``.
    scale
        Factor of the logits.
    ridge, variant
        See ``fold_direction``.
    groups
        G, for the report per query head.
    """
    weights = first_order_weights(compacted, queries, scale) if variant == "weighted" else None
    direction = fold_direction(queries, ridge, variant, weights)
    keys = fold_keys(compacted.keys, compacted.bias, direction, scale)
    cache = PlainCache(keys, compacted.values)
    return Folded(cache, direction, fold_report(queries, direction, groups))
