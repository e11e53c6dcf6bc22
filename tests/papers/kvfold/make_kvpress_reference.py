"""Write ``kvpress_reference.json``: what kvpress keeps of a small random model's cache.

kvpress 0.5.5 needs transformers below 5.3, hence an environment of its own:

    pip install kvpress==0.5.5 "transformers<5.3"
    python tests/papers/kvfold/make_kvpress_reference.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import torch
from kvpress import SnapKVPress, StreamingLLMPress
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

LENGTH, WINDOW, HEAD_DIM = 32, 4, 8
PRESSES = {
    "snapkv, kernel 5": SnapKVPress(compression_ratio=0.5, window_size=WINDOW, kernel_size=5),
    "snapkv, kernel 3": SnapKVPress(compression_ratio=0.75, window_size=WINDOW, kernel_size=3),
    "streaming, 4 sinks": StreamingLLMPress(compression_ratio=0.5, n_sink=4),
    "streaming, 2 sinks": StreamingLLMPress(compression_ratio=0.75, n_sink=2),
}


def main() -> None:
    """Run one layer, compress its cache with each press, and write which keys are left."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
    )
    model = LlamaForCausalLM(config).eval()
    attention = model.model.layers[0].self_attn
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight.data *= 20  # random weights attend almost uniformly otherwise
    seen = {}
    attention.register_forward_hook(
        lambda module, args, kwargs, output: seen.update(kwargs), with_kwargs=True
    )
    cache = DynamicCache()
    with torch.no_grad():
        model(torch.randint(64, (1, LENGTH)), past_key_values=cache)
        hidden = seen["hidden_states"]
        queries = attention.q_proj(hidden).view(1, LENGTH, -1, HEAD_DIM).transpose(1, 2)
        queries, _ = apply_rotary_pos_emb(queries, queries, *seen["position_embeddings"])
        keys, values = cache.layers[0].keys, cache.layers[0].values
        cases = []
        for name, press in PRESSES.items():
            left, _ = press.compress(attention, hidden, keys, values, None, seen)
            same = (left[0].unsqueeze(2) == keys[0].unsqueeze(1)).all(-1)
            kept = same.int().argmax(-1).sort(-1).values.tolist()
            cases.append({"name": name, "kept": kept})
    reference = {
        "kvpress": version("kvpress"),
        "transformers": version("transformers"),
        "keys": keys[0].tolist(),
        "queries": queries[0, :, -WINDOW:].tolist(),
        "cases": cases,
    }
    Path(__file__).with_name("kvpress_reference.json").write_text(json.dumps(reference) + "\n")


if __name__ == "__main__":
    main()
