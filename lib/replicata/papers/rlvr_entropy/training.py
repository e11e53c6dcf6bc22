"""Policy-gradient training of several arms at once (spec 3.6).

The arms of a block are policies of one stack: they start from the same base, see the same prompts,
the same sampling noise and, where rewards are random, the same coins.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from replicata.errors import RunError
from replicata.papers.rlvr_entropy.arms import Arm
from replicata.papers.rlvr_entropy.baselines import importance_weights
from replicata.papers.rlvr_entropy.method import (
    Batch,
    State,
    advantages,
    decompose,
    describe_states,
    empty_groups,
    learner_log_probs,
    net_advantages,
    token_weights,
)
from replicata.papers.rlvr_entropy.rollout import Rollout, gumbel_noise, response_logits, roll
from replicata.papers.rlvr_entropy.samplers import SAMPLERS
from replicata.papers.rlvr_entropy.task import Task, verify
from replicata.training.stacked import clip_gradients, stack_policies
from replicata.workflow.seeds import derive_seed

if TYPE_CHECKING:
    from replicata.papers.rlvr_entropy.experiment import RlParams


def train_block(
    base: PreTrainedModel, task: Task, arms: Sequence[Arm], rl: "RlParams", steps: int, seed: int
) -> pd.DataFrame:
    """Train every arm for some steps from the base policy; one unit (seed).

    Parameters
    ----------
    base
        The base policy; it is stacked in place.
    task
        What is rewarded.
    arms
        Distinct arms.
    rl
        Batch sizes, optimiser, and what is measured.
    steps
        Gradient steps.
    seed
        Of prompts, noise and coins.

    Returns
    -------
    DataFrame
        Tidy rows: the arm's fields, ``step``, ``metric``, ``value``. Entropies are the learner's,
        in nats, over the full vocabulary; step t is measured before update t.
    """
    model = stack_policies(base, len(arms))
    make = torch.optim.Adam if rl.optimizer == "adam" else torch.optim.SGD
    options = {"betas": (0.9, 0.95), "fused": True} if rl.optimizer == "adam" else {}
    optimizer = make(model.parameters(), lr=rl.lr, **options)
    probe = _roll(model, task, ["exact"] * len(arms), rl, derive_seed(seed, "probe"))
    log = _Log(arms)
    for step in range(steps):
        _evaluate(model, task, rl, step, seed, log)
        if step % rl.probe_every == 0:
            log.add(step, probe_entropy=_mean_entropy(model, probe))
        own = derive_seed(seed, "step", step)
        rollout = _roll(model, task, [arm.sampler for arm in arms], rl, own)
        logits = response_logits(model, rollout)
        state = describe_states(logits, rollout.kept, _temperatures(arms), rollout.tokens)
        right = verify(_prompts(rollout), rollout.tokens)
        rewards = _coins(right, own) if rl.reward == "coin" else right
        losses = [
            _loss(arm, m, rollout, logits[m], rewards[m], state, rl, step, log)
            for m, arm in enumerate(arms)
        ]
        torch.stack(losses).sum().backward()
        norms = clip_gradients(model.parameters(), rl.clip)
        optimizer.step()
        optimizer.zero_grad()
        log.add(step, grad_norm=norms, accuracy=right.mean(-1), **_shape(rollout, state))
        if rl.measure_change:
            before = log.last("entropy", step)
            log.add(step, entropy_change=_mean_entropy(model, rollout) - before)
    _evaluate(model, task, rl, steps, seed, log)
    log.add(steps, probe_entropy=_mean_entropy(model, probe))
    return log.table()


def _loss(
    arm: Arm,
    m: int,
    rollout: Rollout,
    logits: Tensor,
    rewards: Tensor,
    state: State,
    rl: "RlParams",
    step: int,
    log: "_Log",
) -> Tensor:
    """Return the loss of policy m, and log its terms."""
    own = State(**{name: value[m] for name, value in vars(state).items()})
    batch = Batch(rewards, rollout.overlong[m], rollout.mask[m], own.gap, rl.group_size)
    advantage, kept = advantages(batch, arm.rule, shift=arm.shift, norm=arm.norm)
    empty = empty_groups(kept, rl.group_size, arm.rule)
    weights = token_weights(batch.mask * kept[:, None], arm.norm)
    temperature = SAMPLERS[arm.sampler].temperature if arm.learner == "renorm" else None
    log_p = learner_log_probs(logits, rollout.tokens[m], rollout.kept[m], temperature)
    log_p = torch.where(batch.mask, log_p, 0.0)  # padding may lie outside a kept set
    old = logits.detach().log_softmax(-1).gather(-1, rollout.tokens[m][..., None])[..., 0]
    ratio = importance_weights(arm.ratio, old, old, rollout.log_q[m], batch.mask)
    drift = decompose(ratio * advantage[:, None], weights, own)
    mass = (weights * own.gap * own.kept_mass).sum() / drift.mean_gap if drift.mean_gap else 1.0
    log.add_one(
        step, m, **asdict(drift), **net_advantages(batch), empty_groups=empty, gap_kept_mass=mass
    )
    return -(weights * ratio * advantage[:, None] * log_p).sum()


def _roll(
    model: PreTrainedModel, task: Task, samplers: Sequence[str], rl: "RlParams", seed: int
) -> Rollout:
    """Draw this step's prompts and let every policy answer them."""
    rng = np.random.default_rng(derive_seed(seed, "prompts"))
    chosen = rng.choice(len(task.train_prompts), size=rl.prompts, replace=False)
    prompts = task.train_prompts[chosen].repeat_interleave(rl.group_size, 0)
    noise = gumbel_noise(len(prompts), task.max_length, task.vocabulary, seed)
    return roll(model, [SAMPLERS[name] for name in samplers], prompts, noise)


def _prompts(rollout: Rollout) -> Tensor:
    length = rollout.sequences.shape[-1] - rollout.tokens.shape[-1]
    return rollout.sequences[:, :length].unflatten(0, rollout.tokens.shape[:2])


def _coins(like: Tensor, seed: int) -> Tensor:
    """Return fair coins (M, B), the same for all policies: the null reward."""
    rng = np.random.default_rng(derive_seed(seed, "coins"))
    return torch.from_numpy(rng.integers(2, size=like.shape[1])).float().expand_as(like)


def _temperatures(arms: Sequence[Arm]) -> Tensor:
    return torch.tensor([SAMPLERS[arm.sampler].temperature for arm in arms]).view(-1, 1, 1, 1)


def _token_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over response tokens, (M,), of (M, B, L)."""
    return (x * mask).sum((-2, -1)) / mask.sum((-2, -1))


def _mean_entropy(model: PreTrainedModel, rollout: Rollout) -> Tensor:
    """Return each policy's mean entropy (M,) at the states of a rollout."""
    with torch.no_grad():
        log_p = response_logits(model, rollout).log_softmax(-1)
        return _token_mean(-(log_p.exp() * log_p).sum(-1), rollout.mask)


def _shape(rollout: Rollout, state: State) -> dict[str, Tensor]:
    """Return what the visited states and the responses look like."""
    return {
        "entropy": _token_mean(state.entropy, rollout.mask),
        "kept_mass": _token_mean(state.kept_mass, rollout.mask),
        "length": rollout.mask.sum(-1).float().mean(-1),
        "overlong": rollout.overlong.float().mean(-1),
    }


def _evaluate(
    model: PreTrainedModel, task: Task, rl: "RlParams", step: int, seed: int, log: "_Log"
) -> None:
    """Log held-out accuracy at the steps asked for, sampling from the learner itself."""
    if step not in rl.evaluate_at:
        return
    prompts = task.test_prompts.repeat_interleave(rl.group_size, 0)
    noise = gumbel_noise(len(prompts), task.max_length, task.vocabulary, derive_seed(seed, "test"))
    rollout = roll(model, [SAMPLERS["exact"]] * len(log.arms), prompts, noise)
    log.add(step, held_out=verify(_prompts(rollout), rollout.tokens).mean(-1))


class _Log:
    """Numbers per arm, step and metric; a number that is not finite ends the run."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.arms = arms
        self._values: dict[tuple[int, str], np.ndarray] = {}

    def add(self, step: int, **metrics: Tensor) -> None:
        """Record values of shape (M,)."""
        for metric, values in metrics.items():
            for m, value in enumerate(values.detach().double().tolist()):
                self._set(step, m, metric, value)

    def add_one(self, step: int, policy: int, **metrics: Tensor) -> None:
        """Record one policy's values."""
        for metric, value in metrics.items():
            self._set(step, policy, metric, float(value))

    def _set(self, step: int, policy: int, metric: str, value: float) -> None:
        if not math.isfinite(value):
            raise RunError(
                f"arm {self.arms[policy].name}, step {step}: {metric} is {value}, expected a "
                "finite number"
            )
        row = self._values.setdefault((step, metric), np.full(len(self.arms), np.nan))
        row[policy] = value

    def last(self, metric: str, step: int) -> Tensor:
        """Return what was recorded at a step, (M,)."""
        return torch.from_numpy(self._values[step, metric])

    def table(self) -> pd.DataFrame:
        """Return tidy rows."""
        parts = []
        for m, arm in enumerate(self.arms):
            keys = pd.DataFrame(list(self._values), columns=["step", "metric"])
            values = [row[m] for row in self._values.values()]
            parts.append(keys.assign(arm=arm.name, **asdict(arm), value=values))
        return pd.concat(parts, ignore_index=True)
