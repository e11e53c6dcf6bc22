"""The method: the sharpness gap, the decomposition of the entropy drift, and the group baselines.

Notation of the spec: at a state the learner is p = softmax(z), the sampler draws y ~ q. One step on
the logits is dz = eta E_q[A (e_y - p)] (1). Numbers in parentheses are the spec's equations.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from replicata.errors import RunError, UsageError
from replicata.papers.rlvr_entropy.samplers import sampler_log_probs

Rule = Literal["fail", "mask", "mask_kept", "zeronet", "sharp"]
LossNorm = Literal["token", "seq_mean", "constant"]

# -------------------------------------------------------------------------------------------------
# At one state


def entropy_score(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Return H(p) = -sum p log p, shape (...), and f = p (log p + H), shape (..., V).

    f is minus the gradient of the entropy by the logits, dH/dz = -f, and sums to 0.
    """
    p = log_p.exp()
    # p log p -> 0 as p -> 0: an underflown probability has log p = -inf.
    plogp = torch.where(p > 0, p * log_p, torch.zeros_like(p))
    entropy = -plogp.sum(-1)
    return entropy, plogp + p * entropy[..., None]


@dataclass(frozen=True)
class State:
    """What a state contributes, each of shape (...): one number per state.

    Attributes
    ----------
    entropy
        H of the learner over the full vocabulary, nats.
    gap
        The sharpness gap S = E_q f - E_p f (2).
    kept_mass
        P, the learner's mass on the kept set (3.4).
    expected_f
        E_q f, the centre of the signal term (3).
    chosen_f
        f of the token that was drawn.
    """

    entropy: Tensor
    gap: Tensor
    kept_mass: Tensor
    expected_f: Tensor
    chosen_f: Tensor


def describe_states(
    logits: Tensor, kept: Tensor, temperature: float | Tensor, chosen: Tensor
) -> State:
    """Return every state's quantities; no gradient.

    Parameters
    ----------
    logits
        (..., V), float32 or more: in bfloat16 the gap is noise.
    kept
        (..., V), bool: the sampler's kept set, recorded when the token was drawn.
    temperature
        The sampler's; broadcasts against ``logits``.
    chosen
        (...), the tokens drawn.
    """
    with torch.no_grad():
        log_p = logits.log_softmax(-1)
        entropy, f = entropy_score(log_p)
        q = sampler_log_probs(logits, kept, temperature).exp()
        p = log_p.exp()
        return State(
            entropy=entropy,
            gap=((q - p) * f).sum(-1),
            kept_mass=(p * kept).sum(-1),
            expected_f=(q * f).sum(-1),
            chosen_f=f.gather(-1, chosen[..., None])[..., 0],
        )


def sharpness_gap(p: Tensor, q: Tensor) -> Tensor:
    """Return S = E_q f - E_p f = Cov_p(q/p, f) (2), shape (...), from distributions (..., V).

    Theorem 1: S >= 0 where q/p rises with p, S <= 0 where it falls, 0 where q = p. It holds with
    ties at a cut too: f depends on p alone, so q may be averaged over tokens of equal p.
    """
    _, f = entropy_score(p.log())
    return ((q - p) * f).sum(-1)


# -------------------------------------------------------------------------------------------------
# Over a batch of responses; B responses in groups of G, at most L tokens each


def token_weights(mask: Tensor, norm: LossNorm) -> Tensor:
    """Return the loss weights w (..., B, L), summing to 1 over the last two axes (3.3).

    Parameters
    ----------
    mask
        (..., B, L): 1 at response tokens that count.
    norm
        ``token`` (DAPO: 1/sum of lengths), ``seq_mean`` (GRPO: 1/(number * own length)) or
        ``constant`` (Dr. GRPO: every token alike, by a fixed length). The last differs from
        ``token`` by a factor per batch only, which is divided out here.
    """
    weights = mask.to(torch.float32)
    if norm == "seq_mean":
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
    return weights / weights.sum((-2, -1), keepdim=True).clamp(min=1e-12)


@dataclass(frozen=True)
class Batch:
    """A step's responses, grouped by prompt; ``...`` may be an axis of policies.

    Attributes
    ----------
    rewards
        (..., B), the verifier's, which is 0 for an over-long response: that is what counts it as
        a failure. (A coin is a coin for over-long responses too.)
    overlong
        (..., B), bool: no end token within the limit.
    mask
        (..., B, L), 1 at response tokens, the end token included.
    gap
        (..., B, L), S at each token's state.
    group_size
        G; responses i*G to (i+1)*G share a prompt.
    """

    rewards: Tensor
    overlong: Tensor
    mask: Tensor
    gap: Tensor
    group_size: int

    def __post_init__(self) -> None:
        if self.overlong is None:
            raise UsageError("batch: overlong is missing, expected a flag for each response")
        if self.rewards.shape[-1] % self.group_size:
            raise UsageError(
                f"batch: {self.rewards.shape[-1]} responses, expected groups of {self.group_size}"
            )


def advantages(
    batch: Batch, rule: Rule, *, shift: float = 0.0, norm: LossNorm = "token"
) -> tuple[Tensor, Tensor]:
    """Return A (..., B) and the kept responses, bool (..., B), under a rule (spec 3.3).

    ============= ======================= ====================================================
    rule          responses in the loss   baseline of a group
    ============= ======================= ====================================================
    ``fail``      all                     mean R
    ``mask``      those not over-long     mean R over all responses
    ``mask_kept`` those not over-long     mean R over those in the loss
    ``zeronet``   all                     token-weighted mean of R: N = 0 in every group
    ``sharp``     all                     gap-weighted mean of R: sum of w A S = 0 in every group
    ============= ======================= ====================================================

    ``shift`` is added to every advantage. ``sharp`` falls back to ``zeronet`` in a group whose gaps
    sum to nothing (exact sampling), and keeps the baseline within the group's rewards where gaps
    have mixed signs.

    Raises
    ------
    UsageError
        For a shift with ``sharp`` (its point is to have none).
    """
    if rule == "sharp" and shift:
        raise UsageError(
            f"rule sharp with shift {shift}, expected no shift: it would undo the rule"
        )
    kept = ~batch.overlong if rule in ("mask", "mask_kept") else torch.ones_like(batch.overlong)
    grouped, by_group = (_groups(x, batch.group_size) for x in (batch.rewards, kept))
    weights = token_weights(batch.mask * kept[..., None], norm)
    if rule in ("fail", "mask"):
        baseline = grouped.mean(-1)
    elif rule == "mask_kept":
        baseline = _weighted(grouped, by_group.float(), grouped.mean(-1))
    else:
        tokens = _groups(weights.sum(-1), batch.group_size)
        baseline = _weighted(grouped, tokens, grouped.mean(-1))
        if rule == "sharp":
            gaps = _groups((weights * batch.gap).sum(-1), batch.group_size)
            baseline = _weighted(grouped, gaps, baseline)
            baseline = baseline.clamp(grouped.amin(-1), grouped.amax(-1))
    centred = (grouped - baseline[..., None]).flatten(-2)
    return centred + shift, kept


def net_advantages(batch: Batch) -> dict[str, Tensor]:
    """Return N of the rules ``fail`` and ``mask`` on these same responses (c5), each (...)."""
    nets = {}
    for rule in ("fail", "mask"):
        advantage, kept = advantages(batch, rule)
        weights = token_weights(batch.mask * kept[..., None], "token")
        nets[f"net_{rule}"] = (weights * advantage[..., None]).sum((-2, -1))
    return nets


def empty_groups(kept: Tensor, group_size: int, rule: Rule) -> Tensor:
    """Return the share of groups without a response in the loss, shape (...).

    Such a group contributes nothing; its weights are 0.

    Raises
    ------
    RunError
        If that is more than half of them.
    """
    empty = ~_groups(kept, group_size).any(-1)
    share = empty.float().mean(-1)
    if (share > 0.5).any():
        raise RunError(
            f"rule {rule}: {int(empty.sum())} of {empty.numel()} groups have no response in the "
            "loss, expected at least half of them to have one"
        )
    return share


def _groups(x: Tensor, size: int) -> Tensor:
    """View (..., B) as (..., B/G, G)."""
    return x.unflatten(-1, (-1, size))


def _weighted(values: Tensor, weights: Tensor, otherwise: Tensor) -> Tensor:
    """Return the weighted mean over the last axis; ``otherwise`` where weights sum to nothing."""
    total = weights.sum(-1)
    usable = total.abs() > 1e-6 * weights.abs().sum(-1) + 1e-12
    mean = (weights * values).sum(-1) / torch.where(usable, total, 1.0)
    return torch.where(usable, mean, otherwise)


@dataclass(frozen=True)
class Drift:
    """The terms of minus the first-order entropy drift per unit step, (3) and (4), shape (...).

    ``net`` is N, ``mean_gap`` is S̄, ``covariance`` is Cov_w(A, S), ``signal`` the sampled
    Cov_q(A, f). Then ``mismatch`` = N S̄ + Cov_w(A, S), and dH = -eta (signal + mismatch).
    """

    net: Tensor
    mean_gap: Tensor
    covariance: Tensor
    signal: Tensor

    @property
    def mismatch(self) -> Tensor:
        """The part that vanishes when the sampler is the learner."""
        return self.net * self.mean_gap + self.covariance


def decompose(advantage: Tensor, weights: Tensor, state: State) -> Drift:
    """Split the drift of a batch into its terms (4).

    Parameters
    ----------
    advantage
        (..., B), or (..., B, L) where importance ratios make it differ between tokens.
    weights
        (..., B, L), summing to 1: `token_weights` of the tokens in the loss.
    state
        Of the same tokens, (..., B, L).
    """
    if advantage.ndim < weights.ndim:
        advantage = advantage[..., None]

    def mean(x: Tensor) -> Tensor:
        return (weights * x).sum((-2, -1))

    net, mean_gap = mean(advantage.expand_as(weights)), mean(state.gap)
    centred = state.gap - mean_gap[..., None, None]
    return Drift(
        net=net,
        mean_gap=mean_gap,
        covariance=mean(advantage * centred),
        signal=mean(advantage * (state.chosen_f - state.expected_f)),
    )


# -------------------------------------------------------------------------------------------------
# The learner


def learner_log_probs(
    logits: Tensor, chosen: Tensor, kept: Tensor | None, temperature: float | Tensor | None
) -> Tensor:
    """Return the log-probability that is differentiated, (...), of the chosen tokens.

    Without ``temperature`` that is log softmax(z). With it, the renormalised learner (3.5): the
    sampler's own transform of the current logits on the kept set recorded at sampling time.

    Raises
    ------
    UsageError
        If the learner is renormalised and no kept set was recorded.
    RunError
        If a chosen token is outside the recorded kept set.
    """
    if temperature is None:
        log_p = logits.log_softmax(-1)
    else:
        if kept is None:
            raise UsageError(
                "learner renorm: no kept set was recorded at sampling time, expected one; a set "
                "recomputed from changed logits would not be the sampler's"
            )
        log_p = sampler_log_probs(logits, kept, temperature)
    return log_p.gather(-1, chosen[..., None])[..., 0]
