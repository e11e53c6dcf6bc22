"""Models, prompts and the hand-written decoding loop that engines are compared with."""

from dataclasses import dataclass

import pytest
import torch

from replicata.models import load_model

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea, and make it short.",
)
HOSTILE_SETTINGS = {
    "do_sample": True,
    "temperature": 5.0,
    "top_k": 1,
    "repetition_penalty": 1.3,
    "min_new_tokens": 7,
}
"""Decoding settings no engine may pick up from a model directory."""


@dataclass
class Decoded:
    token_ids: list[int]
    distributions: torch.Tensor  # (tokens, vocabulary), log-probabilities, float64


@torch.no_grad()
def argmax_loop(model, prompt, max_tokens, stop=()):
    """Greedy decoding as the definition says: a full forward pass per token, no cache."""
    ids, rows = list(prompt), []
    while len(rows) < max_tokens:
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].double()
        rows.append(logits - logits.logsumexp(0))
        ids.append(int(logits.argmax()))
        if ids[-1] in stop:
            break
    return Decoded(ids[len(prompt) :], torch.stack(rows))


@pytest.fixture(scope="session")
def greedy():
    return argmax_loop


@pytest.fixture(scope="session")
def hostile_settings():
    return HOSTILE_SETTINGS


@pytest.fixture(scope="session")
def tiny():
    return load_model("tiny-llama")


@pytest.fixture(scope="session")
def tiny_prompts(tiny):
    """Four prompts of different lengths."""
    texts = ("hello there", "a", "what a long and winding prompt this is", "12345")
    return [tiny.tokenizer.encode(text) for text in texts]


@pytest.fixture(scope="session")
def real():
    return load_model("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def real_prompts(real):
    """Three questions in the chat template."""
    return [
        real.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for question in QUESTIONS
    ]
