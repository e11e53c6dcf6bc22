"""What the method is compared with: importance ratios between sampler and learner (spec 3.4, 4).

Three ratios go by the same name. ``sampler``: p_old/q, learner over sampler, at the weights that
drew the rollout. ``ppo``: p_new/p_old, which is 1 on the first update. ``both``: p_new/q.
"""

from typing import Literal

import torch
from torch import Tensor

from replicata.errors import RunError

Ratio = Literal["none", "sampler", "sampler_truncated", "sampler_masked", "ppo", "both"]

#: TRL's default upper bound of ``vllm_importance_sampling_correction``.
CAP = 3.0


def importance_weights(
    ratio: Ratio, log_new: Tensor, log_old: Tensor, log_q: Tensor, mask: Tensor, cap: float = CAP
) -> Tensor:
    """Return the token weights (..., L) that multiply the loss; no gradient.

    Parameters
    ----------
    ratio
        Which one. ``sampler_truncated`` is cut at ``cap``; ``sampler_masked`` leaves out responses
        whose product of ratios exceeds it (TRL's ``sequence_mask``).
    log_new, log_old, log_q
        (..., L): log-probability of the chosen tokens under the learner now, the learner at
        sampling time and the sampler.
    mask
        (..., L), 1 at response tokens; what stands elsewhere is not read.
    cap
        Upper bound.

    Raises
    ------
    RunError
        If a ratio at a response token is not a number.
    """
    with torch.no_grad():
        numerator = log_new if ratio in ("ppo", "both") else log_old
        denominator = log_old if ratio == "ppo" else log_q
        if ratio == "none":
            return torch.ones_like(log_old)
        inside = mask.bool()
        # Masked before exp: at padded positions the difference may overflow.
        difference = torch.where(inside, numerator - denominator, 0.0)
        bad = (~torch.isfinite(difference)).nonzero()
        if len(bad):
            *row, token = bad[0].tolist()
            raise RunError(
                f"importance ratio {ratio}: log-ratio of response {row}, token {token} is not "
                "finite, expected the sampler's and the learner's log-probability of a token that "
                "the sampler drew"
            )
        if ratio == "sampler_masked":
            inside_cap = difference.sum(-1, keepdim=True).exp() <= cap
            return difference.exp() * inside_cap
        weights = difference.exp()
        return weights.clamp(max=cap) if ratio == "sampler_truncated" else weights
