"""Rollouts: transformers' ``generate`` and cache, with the arms' samplers and replayable noise.

A token is drawn by adding Gumbel noise to log q and taking the largest, which samples from q
exactly. The noise belongs to a response and a position, not to an arm: arms of one seed see the
same noise, so that their contrasts are paired, and a policy's rollouts do not depend on what else
is in the batch. The same call serves one plain model and a stack of them
(``replicata.training.stacked``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from replicata.papers.rlvr_entropy.samplers import Sampler, sampler_log_probs
from replicata.papers.rlvr_entropy.task import END, PAD, response_mask


@dataclass(frozen=True)
class Rollout:
    """What M policies answered to B prompts each, in at most L tokens.

    Attributes
    ----------
    sequences
        (M*B, prompt + L), prompts and responses.
    tokens, mask
        (M, B, L): response tokens, and where they count.
    overlong
        (M, B), bool.
    kept
        (M, B, L, V), bool: each token's kept set.
    log_q
        (M, B, L): log-probability of each token under its sampler.
    """

    sequences: Tensor
    tokens: Tensor
    mask: Tensor
    overlong: Tensor
    kept: Tensor
    log_q: Tensor


class RecordingSampler(LogitsProcessor):
    """Turn logits into log q plus noise, and record kept sets and log q of what will be chosen."""

    def __init__(self, samplers: Sequence[Sampler], noise: Tensor) -> None:
        self.samplers, self.noise = samplers, noise
        self.temperature = torch.tensor([s.temperature for s in samplers]).view(-1, 1, 1)
        self.kept: list[Tensor] = []
        self.log_q: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Map logits (M*B, V) to log q + noise, of the same shape."""
        logits = scores.view(len(self.samplers), -1, scores.shape[-1])
        pairs = zip(self.samplers, logits, strict=True)
        kept = torch.stack([sampler.kept(own) for sampler, own in pairs])
        log_q = sampler_log_probs(logits, kept, self.temperature)
        noisy = log_q + self.noise[:, len(self.kept)]
        self.kept.append(kept)
        self.log_q.append(log_q.gather(-1, noisy.argmax(-1, keepdim=True))[..., 0])
        return noisy.view_as(scores)


def gumbel_noise(rows: int, length: int, vocabulary: int, seed: int) -> Tensor:
    """Return noise (rows, length, vocabulary) for `roll`."""
    return torch.from_numpy(
        np.random.default_rng(seed).gumbel(size=(rows, length, vocabulary)).astype(np.float32)
    )


def roll(
    model: PreTrainedModel, samplers: Sequence[Sampler], prompts: Tensor, noise: Tensor
) -> Rollout:
    """Let every policy answer the prompts by its sampler.

    Parameters
    ----------
    model
        One policy, or a stack of M.
    samplers
        One for each policy.
    prompts
        (B, P), without padding.
    noise
        (B, L, V), from `gumbel_noise`; L is the limit on response tokens.
    """
    sampling = RecordingSampler(samplers, noise)
    # Every field that samples is set here: a checkpoint's own settings must not slip in.
    settings = GenerationConfig(
        max_new_tokens=noise.shape[1], do_sample=False, eos_token_id=END, pad_token_id=PAD
    )
    with torch.no_grad():
        sequences = model.generate(
            prompts.repeat(len(samplers), 1),
            attention_mask=torch.ones(len(samplers) * len(prompts), prompts.shape[1]),
            generation_config=settings,
            logits_processor=LogitsProcessorList([sampling]),
        )
    tokens = sequences[:, prompts.shape[1] :].unflatten(0, (len(samplers), -1))
    mask, overlong = response_mask(tokens)
    return Rollout(
        sequences=sequences,
        tokens=tokens,
        mask=mask,
        overlong=overlong,
        kept=torch.stack(sampling.kept, 2),
        log_q=torch.stack(sampling.log_q, 2),
    )


def response_logits(model: PreTrainedModel, rollout: Rollout) -> Tensor:
    """Return the model's logits (M, B, L, V) at the states where the tokens were drawn."""
    length = rollout.tokens.shape[-1]
    logits = model(rollout.sequences, use_cache=False).logits[:, -length - 1 : -1]
    return logits.unflatten(0, rollout.tokens.shape[:2])
