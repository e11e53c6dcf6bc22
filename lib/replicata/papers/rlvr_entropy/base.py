"""The base policy: a tiny Llama trained on demonstrations once per task, then cached on disk."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from replicata.models.cache import cached_directory
from replicata.models.quiet import no_progress_bars
from replicata.papers.rlvr_entropy.task import END, PAD, Task
from replicata.workflow.files import canonical_json, sha256_bytes
from replicata.workflow.seeds import derive_seed

if TYPE_CHECKING:
    from replicata.papers.rlvr_entropy.experiment import ModelParams, SftParams


def build_policy(model: "ModelParams", vocabulary: int) -> LlamaForCausalLM:
    """Return an untrained policy; weights come from torch's global random state."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=model.width,
        intermediate_size=2 * model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    return LlamaForCausalLM(config)


def base_policy(
    task: Task, model: "ModelParams", sft: "SftParams", steps: int, seed: int
) -> LlamaForCausalLM:
    """Return the trained base policy of a task, from the cache or trained now.

    The cache's key is a digest of the task, the model, the recipe and the seed.

    Raises
    ------
    ResourceError
        If the cache cannot be written.
    """
    recipe = [vars(task) | {"_prompts": None}, model.model_dump(), sft.model_dump(), steps, seed]
    key = f"rlvr_entropy-base-{sha256_bytes(canonical_json(recipe))[:16]}"

    def build(directory: Path) -> None:
        train_base(task, model, sft, steps, seed).save_pretrained(directory)

    with no_progress_bars():
        directory = cached_directory(key, build)
        return LlamaForCausalLM.from_pretrained(directory).eval()


def train_base(
    task: Task, model: "ModelParams", sft: "SftParams", steps: int, seed: int
) -> LlamaForCausalLM:
    """Train a base policy on demonstrations; the answer's token counts ``answer_weight`` times."""
    rng = np.random.default_rng(derive_seed(seed, "rlvr_entropy", "demonstrations"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "rlvr_entropy", "weights"))
        policy = build_policy(model, task.vocabulary).train()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=sft.lr, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    for _ in range(steps):
        sequences, marks = task.demonstrations(sft.batch, rng)
        weights = torch.where(marks == 2, sft.answer_weight, marks)[:, 1:]
        logits = policy(sequences, use_cache=False).logits[:, :-1]
        losses = cross_entropy(logits.transpose(1, 2), sequences[:, 1:], reduction="none")
        ((losses * weights).sum() / weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return policy
