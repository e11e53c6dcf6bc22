"""Every arm of one context, for the whole model: from a prefill to caches that can be measured.

``method.py``, ``attention_matching.py`` and ``baselines.py`` work on one layer; here they are run
over all layers, and what budgets and arms share is computed once.

Arms: ``am`` (bias applied), ``fold``, ``drop`` (bias forgotten), ``nobias`` (values refitted with
bias 0), ``fold_refit`` (values refitted to the folded keys), ``fold_repeat`` (direction fitted on
repeat instead of context queries), ``am_direct`` (kept keys with their own values), ``snapkv``,
``streaming``, ``random``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replicata.errors import UsageError, nearest
from replicata.papers.kvfold.attention import FullAttention, attention_output, full_attention
from replicata.papers.kvfold.attention_matching import Compacted, attention_matching, pool_queries
from replicata.papers.kvfold.baselines import (
    am_direct,
    drop_bias,
    fold_refit,
    no_bias,
    random_keys,
    snapkv,
    streaming_llm,
)
from replicata.papers.kvfold.measure import ArmCache, Prefill
from replicata.papers.kvfold.method import Folded, fold_direction, fold_keys, fold_layer

#: Last tokens whose queries SnapKV selects by, as in its paper's short setting.
SNAPKV_WINDOW = 16


@dataclass(frozen=True)
class FitQueries:
    """Which repeat queries fit, and which are held out.

    Attributes
    ----------
    pooled
        Most queries per KV head in a fit; tokens are taken evenly when there are more.
    heldout_every
        Every so many-th repeated token is held out from all fits.
    """

    pooled: int
    heldout_every: int

    def split(self, tokens: int, group: int) -> tuple[Tensor, Tensor]:
        """Split token positions into fitted and held out; ``group`` query heads share a KV head."""
        positions = torch.arange(tokens)
        held = positions % self.heldout_every == self.heldout_every - 1
        fit = positions[~held]
        most = max(1, self.pooled // group)
        if len(fit) > most:
            fit = fit[torch.linspace(0, len(fit) - 1, most).round().long()]
        return fit, positions[held]


class ContextArms:
    """Arms of one context.

    Parameters
    ----------
    prefill
        The full cache and its queries.
    scale
        Factor of the attention logits.
    fit
        Which queries fit.
    selection
        Attention Matching's key selection: ``highest_attention`` or ``omp``.
    """

    def __init__(
        self, prefill: Prefill, scale: float, fit: FitQueries, selection: str = "highest_attention"
    ) -> None:
        self.prefill = prefill
        self.scale = scale
        self.selection = selection
        self.layers, self.heads = prefill.keys.shape[:2]
        self.group = prefill.context_queries.shape[1] // self.heads
        self._fit, self._held = fit.split(prefill.repeat_queries.shape[2], self.group)
        self._compacted: dict[int, list[Compacted]] = {}

    def fit_queries(self, layer: int) -> Tensor:
        """Repeat queries that Attention Matching is fitted on, ``(H, n, d)``."""
        return pool_queries(self.prefill.repeat_queries[layer][:, self._fit], self.heads)

    def heldout_queries(self, layer: int) -> Tensor:
        """Repeat queries held out from every fit, ``(H, n, d)``."""
        return pool_queries(self.prefill.repeat_queries[layer][:, self._held], self.heads)

    def context_queries(self, layer: int) -> Tensor:
        """Return the queries of the prefill, which the direction is fitted on, ``(H, n, d)``."""
        return pool_queries(self.prefill.context_queries[layer], self.heads)

    @cached_property
    def full(self) -> list[FullAttention]:
        """Full attention of the fitted queries, per layer; shared by all budgets."""
        p = self.prefill
        return [
            full_attention(p.keys[i], self.fit_queries(i), self.scale, p.values[i])
            for i in range(self.layers)
        ]

    def compacted(self, budget: int) -> list[Compacted]:
        """Attention Matching with ``budget`` keys per head, per layer."""
        if budget not in self._compacted:
            p = self.prefill
            self._compacted[budget] = [
                attention_matching(
                    p.keys[i],
                    p.values[i],
                    self.fit_queries(i),
                    budget,
                    self.scale,
                    selection=self.selection,
                    attention=self.full[i],
                )
                for i in range(self.layers)
            ]
        return self._compacted[budget]

    def folded(self, budget: int) -> list[Folded]:
        """Folding of ``compacted(budget)``, per layer."""
        return [
            fold_layer(c, self.context_queries(i), self.scale, groups=self.group)
            for i, c in enumerate(self.compacted(budget))
        ]

    def full_cache(self) -> ArmCache:
        """Return the cache before compaction."""
        return ArmCache(self.prefill.keys, self.prefill.values, self.prefill.length)

    def no_context(self) -> ArmCache:
        """Return a cache without entries: the question alone, at its position."""
        empty = self.prefill.keys[:, :, :0]
        return ArmCache(empty, empty, self.prefill.length)

    def arm(self, name: str, budget: int, seed: int = 0) -> ArmCache:
        """Build an arm's cache of ``budget`` keys per head; ``seed`` is for ``random``."""
        makers: dict[str, Callable[[int], tuple[Tensor, ...]]] = {
            "am": lambda i: self._tensors(self.compacted(budget)[i]),
            "fold": lambda i: self._fold(i, budget, self.context_queries(i)),
            "fold_repeat": lambda i: self._fold(i, budget, self.fit_queries(i)),
            "fold_refit": lambda i: self._fold_refit(i, budget),
            "drop": lambda i: self._plain(drop_bias(self.compacted(budget)[i])),
            "nobias": lambda i: self._no_bias(i, budget),
            "am_direct": lambda i: self._dropped(i, self.compacted(budget)[i].index),
            "snapkv": lambda i: self._dropped(i, self._snapkv(i, budget)),
            "streaming": lambda i: self._dropped(
                i, streaming_llm(self.prefill.length, budget, heads=self.heads)
            ),
            "random": lambda i: self._dropped(
                i, random_keys(self.prefill.length, budget, seed + i, self.heads)
            ),
        }
        if name not in makers:
            known = ", ".join(makers)
            raise UsageError(
                f"unknown arm {name!r}: expected one of {known}{nearest(name, makers)}"
            )
        parts = [makers[name](i) for i in range(self.layers)]
        keys, values = (torch.stack([part[j] for part in parts]) for j in (0, 1))
        bias = torch.stack([part[2] for part in parts]) if len(parts[0]) == 3 else None
        return ArmCache(keys, values, self.prefill.length, bias)

    @staticmethod
    def _tensors(c: Compacted) -> tuple[Tensor, Tensor, Tensor]:
        return c.keys, c.values, c.bias

    @staticmethod
    def _plain(cache: object) -> tuple[Tensor, Tensor]:
        return cache.keys, cache.values  # type: ignore[attr-defined]

    def _fold(self, layer: int, budget: int, queries: Tensor) -> tuple[Tensor, Tensor]:
        folded = fold_layer(self.compacted(budget)[layer], queries, self.scale, groups=self.group)
        return self._plain(folded.cache)

    def _fold_refit(self, layer: int, budget: int) -> tuple[Tensor, Tensor]:
        keys, _ = self._fold(layer, budget, self.context_queries(layer))
        targets = self.full[layer].output
        return self._plain(fold_refit(keys, self.fit_queries(layer), targets, self.scale))

    def _no_bias(self, layer: int, budget: int) -> tuple[Tensor, Tensor]:
        p, index = self.prefill, self.compacted(budget)[layer].index
        queries, full = self.fit_queries(layer), self.full[layer]
        return self._plain(
            no_bias(p.keys[layer], p.values[layer], queries, index, self.scale, attention=full)
        )

    def _dropped(self, layer: int, index: Tensor) -> tuple[Tensor, Tensor]:
        p = self.prefill
        return self._plain(am_direct(p.keys[layer], p.values[layer], index))

    def _snapkv(self, layer: int, budget: int) -> Tensor:
        window = min(SNAPKV_WINDOW, budget)
        last = self.prefill.context_queries[layer][:, -window:]
        return snapkv(self.prefill.keys[layer], last, budget, self.scale)

    # -----------------------------------------------------------------------------------------
    # Unequal budgets: one length per head, which only per-head masks can express

    def head_errors(self, grid: list[int]) -> NDArray[np.float64]:
        """Attention Matching's summed squared output error ``(L * H, grid)`` on fitted queries."""
        table = np.zeros((self.layers * self.heads, len(grid)))
        for column, budget in enumerate(grid):
            for i, c in enumerate(self.compacted(budget)):
                out = attention_output(self.fit_queries(i), c.keys, c.values, self.scale, c.bias)
                error = (out - self.full[i].output).double().square().sum((1, 2))
                table[i * self.heads : (i + 1) * self.heads, column] = error.cpu().numpy()
        return table

    def unequal(self, budgets: NDArray[np.int64]) -> dict[str, ArmCache]:
        """Arms ``am``, ``fold`` and ``drop`` with ``budgets (L, H)`` keys.

        Heads are padded to the longest; a padded entry has bias ``-inf`` and so no weight.
        """
        longest = int(budgets.max())
        p = self.prefill
        shape = (self.layers, self.heads, longest, p.keys.shape[-1])
        kept, folded, values = (p.keys.new_zeros(shape, dtype=torch.float32) for _ in range(3))
        bias = kept.new_full(shape[:3], -torch.inf)
        hidden = bias.clone()
        for i in range(self.layers):
            queries, context, full = self.fit_queries(i), self.context_queries(i), self.full[i]
            for h in range(self.heads):
                one, t = slice(h, h + 1), int(budgets[i, h])
                c = attention_matching(
                    p.keys[i][one],
                    p.values[i][one],
                    queries[one],
                    t,
                    self.scale,
                    selection=self.selection,
                    attention=full.heads(one),
                )
                direction = fold_direction(context[one])
                kept[i, h, :t] = c.keys[0]
                values[i, h, :t] = c.values[0]
                bias[i, h, :t] = c.bias[0]
                folded[i, h, :t] = fold_keys(c.keys, c.bias, direction, self.scale)[0]
                hidden[i, h, :t] = 0.0
        return {
            "am": ArmCache(kept, values, p.length, bias),
            "fold": ArmCache(folded, values, p.length, hidden),
            "drop": ArmCache(kept, values, p.length, hidden),
        }
