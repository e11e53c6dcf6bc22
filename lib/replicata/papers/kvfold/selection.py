"""Which keys Attention Matching keeps (spec 3.1, step 1). Shapes as in ``attention.py``."""

import math

import torch
from torch import Tensor

from replicata.errors import UsageError
from replicata.papers.kvfold.attention import (
    FullAttention,
    RowScaling,
    full_attention,
    gather_rows,
    mass_features,
)
from replicata.papers.kvfold.bounded import bounded_least_squares

LOWEST_WEIGHT = 1e-12  # of a key chosen by matching pursuit; its logarithm must stay finite
REFILLS = 3


def check_budget(budget: int, length: int) -> None:
    """Raise a ``UsageError`` unless ``1 <= budget <= length``."""
    if not 1 <= budget <= length:
        raise UsageError(f"budget is {budget} keys, expected 1 to the context's {length}")


def highest_attention_keys(
    keys: Tensor,
    queries: Tensor,
    budget: int,
    scale: float,
    attention: FullAttention | None = None,
) -> Tensor:
    """Select the keys of largest root-mean-square attention weight over the queries.

    Among equals the earlier key wins. Returns positions ``(H, budget)``, ascending.
    """
    check_budget(budget, keys.shape[1])
    attention = attention or full_attention(keys, queries, scale)
    order = attention.rms_weight.argsort(dim=-1, descending=True, stable=True)
    return order[:, :budget].sort(dim=-1).values


def omp_keys(
    keys: Tensor,
    queries: Tensor,
    budget: int,
    scale: float,
    attention: FullAttention | None = None,
    row_scaling: RowScaling = "relative",
    drop_below: float = -7.0,
    upper: float = 7.0,
) -> Tensor:
    """Select keys by orthogonal matching pursuit of the partition function.

    Each step adds the key whose exponentiated logits correlate most with the mass that the chosen
    keys don't explain yet, then refits all weights between 0 and ``e^upper``. Keys with a bias
    below ``drop_below`` are banned, the rest is refitted and their places are filled anew, at most
    three times.
    All steps run on the ``T x T`` Gram matrix: their cost does not depend on the queries.

    Returns positions ``(H, budget)``, ascending.
    """
    heads, length = keys.shape[:2]
    check_budget(budget, length)
    attention = attention or full_attention(keys, queries, scale)
    gram = torch.zeros(heads, length, length, dtype=torch.float64, device=keys.device)
    moment = gram.new_zeros(heads, length)
    for features, target in mass_features(keys, queries, scale, attention, row_scaling):
        gram += features.mT @ features
        moment += (features.mT @ target.unsqueeze(-1)).squeeze(-1)

    pursuit = _Pursuit(gram, moment, budget, math.exp(upper))
    pursuit.fill()
    for _ in range(REFILLS):
        if not pursuit.drop(math.exp(drop_below)):
            break
        pursuit.fill()
    return pursuit.index.sort(dim=-1).values


class _Pursuit:
    """Matching pursuit of all heads in step; ``count`` places of each head are filled."""

    def __init__(self, gram: Tensor, moment: Tensor, budget: int, upper: float) -> None:
        heads, length = moment.shape
        self.gram, self.moment, self.budget, self.upper = gram, moment, budget, upper
        self.allowed = torch.ones(heads, length, dtype=torch.bool, device=gram.device)
        self.index = torch.zeros(heads, budget, dtype=torch.long, device=gram.device)
        self.weights = gram.new_ones(heads, budget)
        self.count = torch.zeros(heads, dtype=torch.long, device=gram.device)

    def fill(self) -> None:
        """Fill the empty places, one key a step."""
        for place in range(int(self.count.min()), self.budget):
            adding = self.count <= place  # the others have dropped fewer keys
            residual = self.moment - self._explained()
            best = residual.masked_fill(~self.allowed, -torch.inf).argmax(-1)
            best = torch.where(adding, best, self.index[:, place])
            self.index[:, place] = best
            self.allowed.scatter_(1, best.unsqueeze(-1), False)
            self.count = torch.where(adding, place + 1, self.count)
            self._refit()

    def drop(self, weight: float) -> bool:
        """Ban the keys below a weight, as far as there are others to take their places."""
        low = self.weights < weight
        low &= (low.sum(-1) <= self.allowed.sum(-1)).unsqueeze(-1)
        order = low.to(torch.int8).argsort(dim=-1, stable=True)
        self.index = self.index.gather(1, order)
        self.weights = self.weights.gather(1, order)
        self.count = self.budget - low.sum(-1)
        if not low.any():
            return False
        if self.count.any():
            self._refit()
        return True

    def _filled(self) -> tuple[int, Tensor]:
        width = int(self.count.max())
        return width, torch.arange(width, device=self.index.device) < self.count.unsqueeze(-1)

    def _explained(self) -> Tensor:
        """``G[:, S] B``, ``(H, T)``."""
        width, filled = self._filled()
        weights = (self.weights[:, :width] * filled).unsqueeze(1)
        return (weights @ gather_rows(self.gram, self.index[:, :width])).squeeze(1)

    def _refit(self) -> None:
        """Refit all weights; places still empty are cut out by an identity row without a target."""
        width, filled = self._filled()
        chosen = self.index[:, :width]
        small = gather_rows(gather_rows(self.gram, chosen).mT, chosen)
        pair = filled.unsqueeze(-1) & filled.unsqueeze(-2)
        small = torch.where(pair, small, torch.diag_embed((~filled).to(small.dtype)))
        target = self.moment.gather(1, chosen) * filled
        start = self.weights[:, :width].clone()
        fitted = bounded_least_squares(small, target, LOWEST_WEIGHT, self.upper, start)
        self.weights[:, :width] = torch.where(filled, fitted, 1.0)
