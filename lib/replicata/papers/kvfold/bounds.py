"""What folding may change in a head's output: equations (4), (5) and (5') of ``method.py``.

Shapes as there: bias ``(H, t)``, values ``(H, t, d)``, ``ε = q·u - 1`` ``(H, n)``. All results are
float64.
"""

import torch
from torch import Tensor

from replicata.errors import UsageError
from replicata.papers.kvfold.attention_matching import Compacted


def error_bound(
    bias: Tensor,
    values: Tensor,
    epsilon: Tensor,
    uncompacted: bool = False,
    other_values: Tensor | None = None,
) -> Tensor:
    """Bound the distance of the folded from AM's attention output, equation (4).

    Parameters
    ----------
    bias
        ``(H, t)``.
    values
        Of the compacted keys, ``(H, t, d)``.
    epsilon
        ``q·u - 1``, ``(H, n)``; -1 gives the bound for dropping the bias.
    uncompacted
        Whether queries also attend to tokens that were not compacted (question, answer). Their
        bias is 0, so R then includes 0, and D their values.
    other_values
        Values of those tokens, ``(H, m, d)``; needed if and only if there are any.

    Returns
    -------
    Tensor
        ``(H, n)``, in the unit of the values, float64.

    Raises
    ------
    UsageError
        If ``uncompacted`` and ``other_values`` contradict each other.
    """
    extent, diameter = _ranges(bias, values, uncompacted, other_values)
    return diameter * torch.tanh(epsilon.double().abs() * extent / 4)


def linear_bound(
    bias: Tensor,
    values: Tensor,
    epsilon: Tensor,
    uncompacted: bool = False,
    other_values: Tensor | None = None,
) -> Tensor:
    """Bound of linear form that follows from (4): ``D R |ε| / 4``. Arguments as there."""
    extent, diameter = _ranges(bias, values, uncompacted, other_values)
    return diameter * extent * epsilon.double().abs() / 4


def kl_bound(bias: Tensor, epsilon: Tensor, uncompacted: bool = False) -> Tensor:
    """Bound KL(p ‖ p̃) between AM's and the folded attention weights, (5'): nats, ``(H, n)``."""
    return (epsilon.double() * _bias_range(bias, uncompacted)).square() / 8


def first_order_error(
    compacted: Compacted, queries: Tensor, epsilon: Tensor, scale: float
) -> Tensor:
    """Folding's error to first order in ε, ``ε Cov_p(β, v)``: equation (5), ``(H, n, d)``.

    For queries that attend to the compacted keys only.
    """
    return epsilon.double().unsqueeze(-1) * _covariance(compacted, queries, scale)


def first_order_weights(compacted: Compacted, queries: Tensor, scale: float) -> Tensor:
    """Weigh queries by how much their ε matters to first order, ``|Cov_p(β, v)|²``: ``(H, n)``."""
    return _covariance(compacted, queries, scale).square().sum(-1)


def _covariance(compacted: Compacted, queries: Tensor, scale: float) -> Tensor:
    """``Cov_p(β, v)`` under AM's attention weights, ``(H, n, d)``."""
    bias = compacted.bias.double().unsqueeze(1)
    p = (scale * queries.double() @ compacted.keys.double().mT + bias).softmax(-1)
    centred = bias - (p * bias).sum(-1, keepdim=True)
    return (p * centred) @ compacted.values.double()


def _bias_range(bias: Tensor, uncompacted: bool) -> Tensor:
    """R, ``(H, 1)``."""
    low, high = bias.double().aminmax(dim=-1, keepdim=True)
    return high.clamp(min=0) - low.clamp(max=0) if uncompacted else high - low


def _ranges(
    bias: Tensor, values: Tensor, uncompacted: bool, other_values: Tensor | None
) -> tuple[Tensor, Tensor]:
    """R and D, each ``(H, 1)``."""
    if uncompacted != (other_values is not None):
        raise UsageError(
            f"uncompacted is {uncompacted} and other_values are "
            f"{'missing' if other_values is None else 'given'}, expected both or neither"
        )
    points = values.double()
    if other_values is not None:
        points = torch.cat([points, other_values.double()], dim=1)
    # Not by matrix products: these lose digits, and a bound must not be too small.
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return _bias_range(bias, uncompacted), distances.amax((-2, -1)).unsqueeze(-1)
