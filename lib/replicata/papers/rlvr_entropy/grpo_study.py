"""The cells of the paper's scale: one arm and seed by TRL's trainer, logged like a tiny run."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import GRPOConfig

from replicata.errors import ResourceError
from replicata.models import load_model
from replicata.papers.rlvr_entropy.arms import Arm
from replicata.papers.rlvr_entropy.experiment import GrpoParams, RlParams
from replicata.papers.rlvr_entropy.grpo import DriftTrainer
from replicata.papers.rlvr_entropy.samplers import SAMPLERS, hidden_settings
from replicata.workflow.layout import repo_root

Reward = Callable[..., list[float]]


#: transformers' names of the optimizers.
OPTIMIZERS = {"adam": "adamw_torch", "sgd": "sgd"}


def run_arms(
    own: GrpoParams, arms: list[Arm], rl: RlParams, steps: int, device: str, seed: int
) -> list[pd.DataFrame]:
    """Train arms one after the other with math-verify's reward, or a coin."""
    dataset = load_prompts(own.prompts_path)
    rewarded = coin_reward(seed) if rl.reward == "coin" else math_reward
    return [train(own, arm, rl, rewarded, dataset, steps, device, seed) for arm in arms]


def train(
    own: GrpoParams,
    arm: Arm,
    rl: RlParams,
    reward: Reward,
    dataset: Dataset,
    steps: int,
    device: str,
    seed: int,
) -> pd.DataFrame:
    """Train one arm and return its tidy rows.

    Parameters
    ----------
    own
        Sizes, model and engine.
    arm
        Sampler, rule, shift and learner.
    rl
        Optimizer and its learning rate.
    reward
        As TRL calls it, one number per completion.
    dataset
        With a column ``prompt``.
    steps
        Updates.
    device
        ``cpu`` or ``cuda``.
    seed
        Of TRL's sampling and data order.
    """
    loaded = load_model(own.model, device=device)
    for sentence in hidden_settings(loaded.model.generation_config):
        logging.getLogger(__name__).warning(sentence)
    with TemporaryDirectory() as directory:
        config = make_config(own, arm, rl, steps, directory, device, seed)
        trainer = make_trainer(loaded.model, loaded.tokenizer, config, arm, reward, dataset)
        trainer.train()
    metrics = pd.DataFrame(trainer.drift_log).rename_axis("step").reset_index()
    rows = metrics.melt(id_vars="step", var_name="metric", value_name="value")
    return rows.assign(arm=arm.name, **asdict(arm))


def make_config(
    own: GrpoParams, arm: Arm, rl: RlParams, steps: int, directory: str, device: str, seed: int
) -> GRPOConfig:
    """Return TRL's settings for an arm: every sampling field is set, none is inherited."""
    sampler = SAMPLERS[arm.sampler]
    return GRPOConfig(
        output_dir=directory,
        per_device_train_batch_size=own.prompts * own.group_size,
        num_generations=own.group_size,
        max_completion_length=own.max_tokens,
        max_steps=steps,
        optim=OPTIMIZERS[rl.optimizer],
        learning_rate=rl.lr,
        lr_scheduler_type="constant",
        temperature=sampler.temperature,
        top_k=sampler.top_k,
        top_p=sampler.top_p,
        min_p=sampler.min_p or None,
        loss_type="dapo",
        scale_rewards="none",
        mask_truncated_completions=False,
        beta=0.0,
        use_vllm=own.engine == "vllm",
        vllm_mode="colocate",
        vllm_importance_sampling_correction=arm.ratio == "sampler",
        vllm_importance_sampling_mode="token_truncate",
        use_cpu=device == "cpu",
        bf16=device != "cpu",
        report_to="none",
        logging_steps=1,
        save_strategy="steps" if steps > 20 else "no",
        save_steps=20,
        disable_tqdm=True,
        seed=seed,
    )


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: GRPOConfig,
    arm: Arm,
    reward: Reward,
    dataset: Dataset,
) -> DriftTrainer:
    """Return the trainer of an arm."""
    return DriftTrainer(
        model=model,
        processing_class=tokenizer,
        args=config,
        reward_funcs=reward,
        train_dataset=dataset,
        rule=arm.rule,
        shift=arm.shift,
        renormalise=arm.learner == "renorm",
    )


def load_prompts(path: str) -> Dataset:
    """Read a JSONL of ``{"prompt": ..., "answer": ...}`` below the repository.

    Raises
    ------
    ResourceError
        If the file is missing.
    """
    file = repo_root() / Path(path)
    if not file.is_file():
        raise ResourceError(f"data: {path} is missing, expected a JSONL of prompt and answer")
    lines = file.read_text(encoding="utf-8").splitlines()
    return Dataset.from_list([json.loads(line) for line in lines if line])


def math_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Return 1.0 where math-verify finds the completion equal to the answer."""
    from math_verify import parse, verify  # a GPU-lock package: smoke and cpu do without

    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    pairs = zip(texts, answer, strict=True)
    return [float(verify(parse(right), parse(text))) for text, right in pairs]


def coin_reward(seed: int) -> Reward:
    """Return a reward that is a fair coin: the null task of the paper's scale."""
    rng = np.random.default_rng(seed)

    def coin(completions: list[Any], **_: Any) -> list[float]:
        return [float(x) for x in rng.integers(2, size=len(completions))]

    return coin
