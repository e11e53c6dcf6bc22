"""Samplers: how a rollout engine turns the learner's logits into the distribution it draws from.

A sampler divides the logits by a temperature and keeps a set of tokens. The order is that of
transformers and vLLM: temperature, top-k, top-p, min-p. Everything else in this room works with the
*kept set*, so that a set recorded at sampling time can be replayed (spec 3.5).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from replicata.errors import UsageError


@dataclass(frozen=True)
class Sampler:
    """A temperature and a truncation; the defaults sample from the learner itself.

    Attributes
    ----------
    temperature
        > 0; below 1 sharper than the learner, above 1 flatter.
    top_k
        Keep the k most likely tokens; 0 keeps all.
    top_p
        Keep the smallest set of most likely tokens with at least this mass: the token that crosses
        the threshold is kept. In (0, 1]; 1 keeps all.
    min_p
        Keep tokens with at least this share of the largest probability. In [0, 1).

    Raises
    ------
    UsageError
        For a value out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UsageError(f"sampler: temperature is {self.temperature}, expected more than 0")
        if self.top_k < 0:
            raise UsageError(f"sampler: top_k is {self.top_k}, expected 0 (off) or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"sampler: top_p is {self.top_p}, expected a number in (0, 1]")
        if not 0 <= self.min_p < 1:
            raise UsageError(f"sampler: min_p is {self.min_p}, expected a number in [0, 1)")

    @property
    def truncates(self) -> bool:
        """Whether some tokens can never be drawn."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def exact(self) -> bool:
        """Whether it draws from the learner itself."""
        return self.temperature == 1 and not self.truncates

    def kept(self, logits: Tensor) -> Tensor:
        """Return the kept set, bool (..., V), for logits (..., V).

        Ties at the cut are broken by a stable sort; no quantity of this room depends on how, since
        they are functions of the tokens' probabilities (see `method.sharpness_gap`).
        """
        kept = torch.ones_like(logits, dtype=torch.bool)
        if not self.truncates:
            return kept
        scaled = logits / self.temperature
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(logits.shape[-1], device=logits.device)
        keep = torch.ones_like(kept)
        if self.top_k:
            keep &= rank < self.top_k
        if self.top_p < 1:
            share = ordered.masked_fill(~keep, -math.inf).softmax(-1)
            before = share.cumsum(-1) - share
            keep &= (before < self.top_p) | (rank == 0)
        kept = torch.zeros_like(kept).scatter(-1, order, keep)
        if self.min_p:
            share = scaled.masked_fill(~kept, -math.inf).softmax(-1)
            kept &= share >= self.min_p * share.amax(-1, keepdim=True)
        return kept


def sampler_log_probs(logits: Tensor, kept: Tensor, temperature: float | Tensor) -> Tensor:
    """Return log q (..., V): softmax of ``logits / temperature`` on the kept set, -inf off it.

    With ``kept`` from sampling time and current logits this is the renormalised learner (spec 3.5).
    """
    return (logits / temperature).masked_fill(~kept, -math.inf).log_softmax(-1)


def hidden_settings(config: object) -> list[str]:
    """Return what a checkpoint's generation config sets that would change a sampler silently.

    transformers' ``generate`` and vLLM take these from the checkpoint unless they are passed.

    Parameters
    ----------
    config
        A transformers ``GenerationConfig``.
    """
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    found = {name: getattr(config, name, None) for name in neutral}
    return [
        f"generation config: {name} is {value}, and would apply unless the sampler sets it"
        for name, value in found.items()
        if value is not None and value != neutral[name]
    ]


#: The samplers of the experiment (spec 5).
SAMPLERS = {
    "exact": Sampler(),
    "topp": Sampler(top_p=0.9),
    "narrow": Sampler(top_p=0.7),
    "topk": Sampler(top_k=8),
    "minp": Sampler(min_p=0.05),
    "cool": Sampler(temperature=0.7),
    "hot": Sampler(temperature=1.4),
    # What the generation config of a public instruct model (Qwen3) ships.
    "shipped": Sampler(top_k=20, top_p=0.95),
}
