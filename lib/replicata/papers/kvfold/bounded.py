"""Least squares between two bounds, for a batch of small problems at once.

scipy's ``nnls`` and ``lsq_linear`` solve one problem at a time from its full matrix. A layer has
one problem per head with tens of thousands of rows, so that only its Gram matrix is kept.
"""

import torch
from torch import Tensor

from replicata.errors import RunError

TOLERANCE = 1e-10
MAX_STEPS = 500


def bounded_least_squares(
    gram: Tensor, moment: Tensor, lower: float, upper: float, start: Tensor
) -> Tensor:
    r"""Minimise ``|A x - b|^2`` subject to ``lower <= x <= upper``, given ``A^T A`` and ``A^T b``.

    Projected Newton method (Bertsekas 1982): variables held at a bound take a gradient step, the
    others a Newton step, both along a projected line search. Once the right variables are at their
    bounds, one step gives the optimum. Columns are scaled to unit length first, so that keys with
    little mass are fitted as well as others. Where the optimum is not unique, the answer is one
    near ``start``; a column of zeros leaves its variable there.

    Parameters
    ----------
    gram
        ``A^T A``, ``(H, t, t)``, float64.
    moment
        ``A^T b``, ``(H, t)``.
    lower, upper
        Bounds of every variable.
    start
        A feasible point, ``(H, t)``.

    Returns
    -------
    Tensor
        ``(H, t)``. With ``g`` the gradient for unit columns, ``|x - clamp(x - g)|`` is at most
        ``TOLERANCE`` times the largest entry of ``A^T b`` (of unit columns).

    Raises
    ------
    RunError
        If an input is not finite or the tolerance is not reached.
    """
    if not (torch.isfinite(gram).all() and torch.isfinite(moment).all()):
        raise RunError("the bias fit got attention weights that are not finite")
    t = moment.shape[-1]
    norm = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    norm = torch.where(norm > 0, norm, 1.0)
    gram = gram / (norm.unsqueeze(-1) * norm.unsqueeze(-2))
    moment = moment / norm
    low, high = lower * norm, upper * norm
    x = torch.clamp(start * norm, low, high)
    tolerance = TOLERANCE * moment.abs().amax(-1)
    least = 1e-12 * t  # above the rounding of a Gram matrix, far below what matters
    damping = torch.full_like(moment[:, :1], least)
    identity = torch.eye(t, dtype=gram.dtype, device=gram.device)

    for _ in range(MAX_STEPS):
        gradient = (gram @ x.unsqueeze(-1)).squeeze(-1) - moment
        residual = (x - torch.clamp(x - gradient, low, high)).abs().amax(-1)
        open_heads = residual > tolerance
        if not open_heads.any():
            # A variable at a bound is returned as that bound, not as its scaled and unscaled value.
            x = torch.where(x <= low, lower, torch.where(x >= high, upper, x / norm))
            return torch.clamp(x, lower, upper)
        # Nearly at a bound and pushed against it: held, else the method could zigzag.
        near = torch.minimum(residual.unsqueeze(-1), 1e-3 * (high - low))
        held = ((x <= low + near) & (gradient > 0)) | ((x >= high - near) & (gradient < 0))
        pair = held.unsqueeze(-1) | held.unsqueeze(-2)
        hessian = torch.where(pair, identity, gram) + damping.unsqueeze(-1) * identity
        factor = torch.linalg.cholesky(hessian)
        direction = -torch.cholesky_solve(gradient.unsqueeze(-1), factor).squeeze(-1)
        step, size = _line_search(gram, gradient, x, direction, low, high, open_heads)
        x = x + step
        # Short steps mean that the projection bends the path; damping turns it to the gradient.
        damping = torch.where(size < 0.5, 100 * damping, 0.1 * damping).clamp(least, 1.0)
    bad = open_heads.nonzero().flatten().tolist()
    raise RunError(f"the bias fit of heads {bad} did not converge in {MAX_STEPS} steps")


def _line_search(
    gram: Tensor,
    gradient: Tensor,
    x: Tensor,
    direction: Tensor,
    low: Tensor,
    high: Tensor,
    pending: Tensor,
) -> tuple[Tensor, Tensor]:
    """Halve the step of each pending head until the projected point decreases the objective."""
    size = torch.ones_like(x[:, :1])
    for _ in range(60):
        step = torch.clamp(x + size * direction, low, high) - x
        # The change of a quadratic, written so that it does not cancel near the optimum.
        slope = (gradient * step).sum(-1)
        change = slope + 0.5 * (step * (gram @ step.unsqueeze(-1)).squeeze(-1)).sum(-1)
        pending = pending & (change > 1e-4 * slope)
        if not pending.any():
            break
        size = torch.where(pending.unsqueeze(-1), 0.5 * size, size)
    return step, size
