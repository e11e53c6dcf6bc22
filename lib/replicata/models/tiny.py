"""``tiny-llama``: a random two-layer Llama that needs no download, for smoke runs and tests.

It has the shape of the real thing (grouped-query attention, rotary positions, a chat template) at
a ten-thousandth of the size, with a vocabulary of its own: the 256 bytes and three special tokens.
"""

import hashlib

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 0

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the byte-level tokenizer: ids 0 to 2 are special, id 3 + rank is a byte."""
    symbols = [END_OF_TEXT, TURN_START, TURN_END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=TURN_START,
        eos_token=TURN_END,
        pad_token=TURN_END,
        unk_token=END_OF_TEXT,
        model_max_length=2048,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(dtype: torch.dtype, attn_implementation: str, vocab_size: int) -> LlamaForCausalLM:
    """Return the model with its fixed random weights, leaving the global random state alone.

    Parameters
    ----------
    dtype
        Weights are drawn in float32 and then cast, so that all dtypes share them.
    attn_implementation
        As for transformers.
    vocab_size
        Number of tokens.
    """
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        # Ten times the usual spread: attention is far from uniform, and greedy decoding from ties.
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        attn_implementation=attn_implementation,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return LlamaForCausalLM(config).to(dtype)


def hash_in_memory(model: LlamaForCausalLM) -> str:
    """Return the SHA-256 over the config and each weight's name, dtype, shape and bytes, in hex."""
    digest = hashlib.sha256(model.config.to_json_string().encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
