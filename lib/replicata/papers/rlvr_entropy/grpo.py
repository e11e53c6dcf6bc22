"""The paper's scale: TRL's ``GRPOTrainer`` with the rules, the decomposition and the replay.

Two things are overridden, the advantages and, for the renormalised learner, the log-probability.
Rollouts, rewards, loss and optimiser are TRL's. TRL divides the logits by the sampling temperature
before it takes log-probabilities, so that a temperature is no mismatch here (it is a renormalised
learner already); top-k, top-p and min-p are.
"""

from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from replicata.errors import UsageError
from replicata.papers.rlvr_entropy.method import (
    Batch,
    Rule,
    State,
    advantages,
    decompose,
    describe_states,
    empty_groups,
    net_advantages,
    token_weights,
)
from replicata.papers.rlvr_entropy.samplers import Sampler

#: Tokens whose logits over the vocabulary are held at a time.
CHUNK = 512


class DriftTrainer(GRPOTrainer):
    """GRPO with a rule for the baseline, a log of the entropy drift, and replayed kept sets.

    Parameters
    ----------
    rule, shift
        As for `method.advantages`; they replace TRL's advantages.
    renormalise
        Differentiate the sampler's own distribution on the kept sets recorded at sampling time.
    *args, **kwargs
        As for ``GRPOTrainer``. ``scale_rewards`` and ``mask_truncated_completions`` must be off,
        since the rule does both, and ``loss_type`` must be ``dapo`` (the spec's ``token`` norm).

    Attributes
    ----------
    drift_log
        One mapping of metrics per rollout batch, under the names of the tiny runs.

    Raises
    ------
    UsageError
        For settings that would undo the rule.
    """

    def __init__(
        self, *args: Any, rule: Rule, shift: float, renormalise: bool, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        settings = self.args
        for name, value, wanted in (
            ("scale_rewards", self.scale_rewards, "none"),
            ("mask_truncated_completions", settings.mask_truncated_completions, False),
            ("loss_type", self.loss_type, "dapo"),
        ):
            if value != wanted:
                raise UsageError(
                    f"GRPO: {name} is {value!r}, expected {wanted!r}: the rule does it"
                )
        if renormalise and self.use_vllm and self.vllm_importance_sampling_correction:
            raise UsageError(
                "GRPO: a renormalised learner with vllm_importance_sampling_correction, expected "
                "one of the two: both correct for the truncation"
            )
        self.rule, self.shift, self.renormalise = rule, shift, renormalise
        self.truncation = Sampler(1.0, self.top_k or 0, self.top_p, self.min_p or 0.0)
        self.drift_log: list[dict[str, float]] = []
        self._replayed: tuple[Tensor, Tensor] | None = None
        if self.use_vllm and self.vllm_mode == "colocate":
            self.vllm_generation.sync_weights = lambda: reload_weights(self.vllm_generation)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        """Keep the rewards (all processes), which TRL turns into its own advantages."""
        per_function = super()._calculate_rewards(*args, **kwargs)
        self._rewards = (per_function * self.reward_weights.to(per_function.device)).nansum(1)
        return per_function

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Replace TRL's advantages by the rule's, and log the terms of the drift."""
        self._replayed = None
        output = super()._generate_and_score_completions(inputs)
        ids, mask = output["completion_ids"], output["completion_mask"]
        state, kept = self._states(output)
        ends = torch.isin(ids, torch.tensor(self.eos_token_ids, device=ids.device)) & mask.bool()
        mine = {"mask": mask.bool(), "overlong": ~ends.any(-1), **vars(state)}
        every = {name: self._gather(value) for name, value in mine.items()}
        state = State(**{name: every[name] for name in vars(state)})
        batch = Batch(
            self._rewards, every["overlong"], every["mask"], state.gap, self.num_generations
        )
        advantage, in_loss = advantages(batch, self.rule, shift=self.shift)
        empty = empty_groups(in_loss, self.num_generations, self.rule)
        self.drift_log.append(_describe(batch, advantage, in_loss, state, empty))
        first = self.accelerator.process_index * len(ids)
        here = slice(first, first + len(ids))
        output["advantages"] = advantage[here]
        output["completion_mask"] = mask * in_loss[here, None]
        output["num_items_in_batch"] = (batch.mask * in_loss[:, None]).sum()
        if self.renormalise:
            output["kept_ids"], output["kept_count"] = kept
        return output

    def _gather(self, x: Tensor) -> Tensor:
        """Return a (B,) or (B, T) tensor of all processes."""
        if x.ndim > 1:
            x = self.accelerator.pad_across_processes(x, dim=1)
        return self.accelerator.gather(x)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Replay the recorded kept sets while the loss is computed."""
        if self.renormalise:
            if "kept_ids" not in inputs:
                raise UsageError("GRPO: learner renorm without recorded kept sets, expected them")
            self._replayed = inputs["kept_ids"], inputs["kept_count"]
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return TRL's log-probabilities, or those on the replayed kept sets."""
        found = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        if self._replayed is None:
            return found
        kept_ids, count = self._replayed
        logits = self._logits(model, input_ids, attention_mask, logits_to_keep)
        outside = torch.arange(kept_ids.shape[-1], device=count.device) >= count[..., None]
        kept = logits.gather(-1, kept_ids).masked_fill(outside, -torch.inf)
        chosen = input_ids[:, -logits_to_keep:, None]
        return logits.gather(-1, chosen)[..., 0] - kept.logsumexp(-1), *found[1:]

    def _logits(self, model: Any, ids: Tensor, mask: Tensor, keep: int) -> Tensor:
        """Return the learner's logits (B, T, V), divided by the temperature as TRL does."""
        logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=keep + 1).logits
        return logits[:, :-1].float() / self.temperature

    @torch.no_grad()
    def _states(self, output: dict[str, Any]) -> tuple[State, tuple[Tensor, Tensor]]:
        """Return the states (B, T) of the rollouts, and their kept sets as ids and counts."""
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
        length = output["completion_ids"].shape[1]
        states: list[State] = []
        kept_ids, counts = [], []
        for row in range(len(ids)):  # one response at a time: the vocabulary is large
            logits = self._logits(self.model, ids[row : row + 1], mask[row : row + 1], length)[0]
            for start in range(0, length, CHUNK):
                part = logits[start : start + CHUNK]
                kept = self.truncation.kept(part)
                chosen = ids[row, -length:][start : start + CHUNK]
                states.append(describe_states(part, kept, 1.0, chosen))
                if self.renormalise:
                    counts.append(kept.sum(-1))
                    # All three truncations keep a head of the descending order.
                    kept_ids.append(part.topk(int(counts[-1].max()), -1).indices)
        joined = {
            name: torch.cat([vars(s)[name] for s in states]).view(len(ids), length)
            for name in vars(states[0])
        }
        if not self.renormalise:
            return State(**joined), (ids, ids)
        widest = max(x.shape[-1] for x in kept_ids)
        padded = [torch.nn.functional.pad(x, (0, widest - x.shape[-1])) for x in kept_ids]
        sets = torch.cat(padded).view(len(ids), length, widest)
        return State(**joined), (sets, torch.cat(counts).view(len(ids), length))


def _describe(
    batch: Batch, advantage: Tensor, in_loss: Tensor, state: State, empty: Tensor
) -> dict[str, float]:
    """Return the metrics of a rollout batch, under the names of the tiny runs."""
    drift = decompose(advantage, token_weights(batch.mask * in_loss[:, None], "token"), state)
    every = token_weights(batch.mask, "token")
    metrics = {
        **vars(drift),
        **net_advantages(batch),
        "empty_groups": empty,
        "entropy": (every * state.entropy).sum(),
        "kept_mass": (every * state.kept_mass).sum(),
        "length": batch.mask.sum(-1).float().mean(),
        "overlong": batch.overlong.float().mean(),
        "accuracy": batch.rewards.float().mean(),
    }
    return {name: float(value) for name, value in metrics.items()}


def reload_weights(generation: Any) -> None:
    """Push the trainer's weights into a colocated vLLM by vLLM's own layerwise reload.

    TRL hands each tensor to the model's ``load_weights``. On CPU that fails, because the backend
    repacks linear weights after loading and drops the originals; the reload restores the layers'
    load-time form, loads, and repacks.
    """
    runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
    runner.reload_weights(weights_iterator=generation._iter_named_params())
    generation.llm.reset_prefix_cache()
