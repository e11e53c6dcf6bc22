"""Serving keys: a real model must not be able to tell rotated keys from unrotated ones."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, MistralConfig

from replicata.errors import UsageError
from replicata.papers.kvfold.rope import HALF_SPLIT_MODELS, check_supported, serving_rotation

LENGTH, KEPT, NEW = 90, 17, 6

SUPPORTED = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
REFUSED = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "factor": 2.0,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 64,
    },
}


def config(rope, model="llama"):
    return AutoConfig.for_model(
        model,
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=None,
        max_position_embeddings=256,
        rope_parameters=dict(rope),
    )


def logits(model, keys, values, position, ids):
    past = DynamicCache()
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        past.update(k[None], v[None], layer)
    positions = torch.arange(position, position + len(ids))[None]
    with torch.no_grad():
        return model(torch.tensor([ids]), past_key_values=past, position_ids=positions).logits[0]


@pytest.mark.parametrize("model", HALF_SPLIT_MODELS)
@pytest.mark.parametrize("name", SUPPORTED)
def test_rotated_keys_give_the_logits_of_the_true_positions(name, model):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(SUPPORTED[name], model)).eval()
    with torch.no_grad():
        past = model(torch.randint(97, (1, LENGTH)), use_cache=True).past_key_values
    index = torch.randperm(LENGTH)[:KEPT].sort().values
    keys = torch.stack([layer.keys[0][:, index] for layer in past.layers])
    values = torch.stack([layer.values[0][:, index] for layer in past.layers])
    # Folded keys are no keys of any token: rotation must hold for arbitrary vectors.
    keys = keys + 2.0 * torch.randn_like(keys[:, :, :1])
    ids = torch.randint(97, (NEW,)).tolist()
    true = logits(model, keys, values, LENGTH, ids)
    served = serving_rotation(keys, KEPT - LENGTH, model.config)
    assert torch.allclose(logits(model, served, values, KEPT, ids), true, atol=1e-3)
    assert not torch.allclose(logits(model, keys, values, KEPT, ids), true, atol=1e-3)


def test_rotations_add_up_and_keep_the_norm():
    keys = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = config(SUPPORTED["default"])
    there = serving_rotation(keys, -70, model)
    assert torch.allclose(serving_rotation(there, 70, model), keys, atol=1e-12)
    assert torch.allclose(there.norm(dim=-1), keys.norm(dim=-1), atol=1e-12)
    twice = serving_rotation(serving_rotation(keys, -30, model), -40, model)
    assert torch.allclose(twice, there, atol=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_frequencies_that_change_with_length_are_refused(name):
    with pytest.raises(UsageError, match=name):
        check_supported(config(REFUSED[name]))


def test_unknown_rotary_layouts_are_refused():
    # GLM pairs neighbouring dimensions, which its configuration does not say.
    with pytest.raises(UsageError, match="model_type of the model 'glm' is 'glm'"):
        check_supported(AutoConfig.for_model("glm"))


def test_latent_caches_are_refused():
    with pytest.raises(UsageError, match="kv_lora_rank of the model 'deepseek_v3'"):
        check_supported(AutoConfig.for_model("deepseek_v3"))


def test_partial_rotary_dimensions_are_left_alone():
    keys = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2))
    served = serving_rotation(keys, -70, config(SUPPORTED["default"], "phi"))  # rotates half
    assert torch.equal(served[..., 8:], keys[..., 8:])
    assert not torch.isclose(served[..., 8 - 1], keys[..., 8 - 1], rtol=1e-6).all()


def test_sliding_windows_are_refused():
    window = MistralConfig(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, sliding_window=32
    )
    with pytest.raises(UsageError, match="sliding"):
        check_supported(window)
