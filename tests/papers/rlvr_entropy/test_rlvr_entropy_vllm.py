"""TRL with a real vLLM on the CPU: processed log-probabilities, and weights that follow."""

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from replicata.inference.vllm_engine import ENVIRONMENT
from replicata.models.tiny import build_tokenizer
from replicata.papers.rlvr_entropy import grpo_study
from replicata.papers.rlvr_entropy.arms import Arm
from replicata.papers.rlvr_entropy.experiment import GrpoParams, RlParams
from replicata.papers.rlvr_entropy.samplers import SAMPLERS, sampler_log_probs

OWN = GrpoParams(
    model="tiny",
    prompts_path="data/none.jsonl",
    prompts=1,
    group_size=4,
    max_tokens=8,
    engine="vllm",
)
RL = RlParams(prompts=1, group_size=4, clip=1.0, probe_every=1, lr=3e-2)
PROMPTS = Dataset.from_list([{"prompt": f"Say {i}:"} for i in range(8)])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random Llama with heads of a size that vLLM's CPU attention has."""
    path, tokenizer = tmp_path_factory.mktemp("tiny"), build_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def reward(completions, **_):
    return [float(len(text) % 2) for text in completions]


def sampler_log_prob(model, prompt, tokens):
    """Log q of each token by transformers' logits and our transform."""
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    sampler = SAMPLERS["shipped"]
    log_q = sampler_log_probs(logits, sampler.kept(logits), sampler.temperature)
    return log_q.gather(-1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.mark.vllm
def test_colocated_vllm_samples_from_q_and_follows_the_weights(directory, tmp_path, monkeypatch):
    for name, value in {**ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": "1"}.items():
        monkeypatch.setenv(name, value)
    arm = Arm("shipped", "zeronet", 0.1, ratio="sampler")
    config = grpo_study.make_config(OWN, arm, RL, 2, str(tmp_path), "cpu", 3)
    config.vllm_gpu_memory_utilization, config.vllm_max_model_length = 0.05, 64
    before = AutoModelForCausalLM.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    made = grpo_study.make_trainer(model, tokenizer, config, arm, reward, PROMPTS)
    made.train()

    # TRL's logged ratio p/q is the kept mass (3.4): vLLM's log-probabilities are processed ones.
    assert made.vllm_generation.llm.model_config.logprobs_mode == "processed_logprobs"
    logged = [h for h in made.state.log_history if "sampling/importance_sampling_ratio/mean" in h]
    for entry, drift in zip(logged, made.drift_log, strict=True):
        ratio = entry["sampling/importance_sampling_ratio/mean"]
        # vLLM serves a float32 checkpoint in bfloat16 unless it is told otherwise.
        assert ratio == pytest.approx(drift["kept_mass"], abs=0.02)

    made.vllm_generation.sync_weights()
    prompt = tokenizer("Say 3:")["input_ids"]
    _, completions, log_probs, _ = made.vllm_generation.generate(
        prompts=[prompt] * 4, images=None, num_generations=4
    )
    errors, moves = [], []
    for tokens, found in zip(completions, log_probs, strict=True):
        served = torch.tensor([position[0] for position in found])
        for weights, differences in ((made.model, errors), (before, moves)):
            difference = (served - sampler_log_prob(weights, prompt, list(tokens))).abs()
            differences += difference[difference.isfinite()].tolist()
    assert len(errors) > 8
    assert torch.tensor(errors).median() < 0.05
    assert torch.tensor(moves).median() > 0.25  # the weights it started with give other numbers
