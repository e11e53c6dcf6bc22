import json
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from replicata.errors import ResourceError, RunError, VerificationError
from replicata.papers.kvfold.cache_header import (
    CacheHeader,
    CacheMismatchError,
    CacheRecord,
    CorruptCacheError,
    MissingCacheError,
    config_hash,
    rope_spec,
)
from replicata.papers.kvfold.folded_cache import FoldedCache

LAYERS, HEADS, ENTRIES, DIM = 2, 2, 5, 16


def tiny_config(**changes):
    return LlamaConfig(
        **{
            "vocab_size": 64,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": HEADS,
            "head_dim": DIM,
            "max_position_embeddings": 128,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        }
        | changes
    )


def record(**changes):
    return CacheRecord(
        **{
            "context_length": 20,
            "model_fingerprint": "f" * 64,
            "config_hash": config_hash(tiny_config()),
            "rope": rope_spec(tiny_config()),
            "tokenizer_hash": "a" * 64,
            "budget": 0.25,
            "query_source": "context",
            "ridge": 1e-3,
            "epsilon": {"rms": 0.05},
        }
        | changes
    )


def random_cache(seed=0, dtype=torch.float32, **changes):
    draw = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, LAYERS, HEADS, ENTRIES, DIM, generator=draw).to(dtype)
    return FoldedCache(keys, values, record(**changes))


@settings(max_examples=20, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 4)] * 4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
)
def test_what_is_saved_is_what_is_loaded(tmp_path_factory, shape, dtype, seed):
    draw = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, *shape, generator=draw).to(dtype)
    cache = FoldedCache(keys, values, record())
    path = tmp_path_factory.mktemp("c") / "context.safetensors"
    sha256 = cache.save(path)
    back = FoldedCache.load(path, expected_sha256=sha256, expected_length=shape[2])
    assert torch.equal(back.keys, keys)
    assert torch.equal(back.values, values)
    assert back.keys.dtype == dtype
    assert back.record == cache.record
    assert CacheHeader.read(path).shape == shape


def test_the_layout_other_programs_read(tmp_path):
    cache = random_cache()
    cache.save(tmp_path / "c")
    tensors = load_file(tmp_path / "c")
    assert set(tensors) == {"k.0", "k.1", "v.0", "v.1"}
    assert torch.equal(tensors["v.1"], cache.values[1])


def test_equal_caches_have_equal_bytes(tmp_path):
    first = random_cache().save(tmp_path / "a")
    assert first == random_cache().save(tmp_path / "b")
    assert first != random_cache(budget=0.5).save(tmp_path / "c")
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["a", "b", "c"]  # no temporary file


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "c"
    sha256 = random_cache().save(path)

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(ResourceError, match="no space left"):
        random_cache(seed=1).save(path)
    FoldedCache.load(path, expected_sha256=sha256)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_missing_file(tmp_path):
    for read in (FoldedCache.load, CacheHeader.read):
        with pytest.raises(MissingCacheError, match=r"(?i)absent: cannot be read: no such file"):
            read(tmp_path / "absent")
        with pytest.raises(MissingCacheError, match="cannot be read"):
            read(tmp_path)
    assert issubclass(MissingCacheError, ResourceError)
    assert issubclass(CorruptCacheError, VerificationError)
    assert issubclass(CacheMismatchError, VerificationError)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 100, -1])
def test_partial_file(tmp_path, kept):
    path = tmp_path / "c"
    sha256 = random_cache().save(path)
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    for read in (FoldedCache.load, CacheHeader.read):
        with pytest.raises(CorruptCacheError, match=r"c: not a whole folded cache"):
            read(path)
    with pytest.raises(CacheMismatchError, match=f"expected {sha256}"):
        FoldedCache.load(path, expected_sha256=sha256)


def test_one_changed_bit_is_found_by_the_digest_only(tmp_path):
    path = tmp_path / "c"
    sha256 = random_cache().save(path)
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    FoldedCache.load(path)
    with pytest.raises(CacheMismatchError, match="its SHA-256 is"):
        FoldedCache.load(path, expected_sha256=sha256)


def test_a_cache_of_something_else(tmp_path):
    path = tmp_path / "c"
    random_cache().save(path)
    expected = {
        "expected_length": 6,
        "expected_config_hash": config_hash(tiny_config(vocab_size=65)),
        "expected_fingerprint": "0" * 64,
    }
    words = ("entries: 5, expected 6", "config hash", "model fingerprint")
    for (key, value), word in zip(expected.items(), words, strict=True):
        with pytest.raises(CacheMismatchError, match=word):
            FoldedCache.load(path, **{key: value})


def write_raw(path, change):
    tensors = {f"{n}.{i}": torch.zeros(HEADS, ENTRIES, DIM) for n in "kv" for i in range(LAYERS)}
    metadata = {"folded_cache": record().model_dump_json()}
    change(tensors, metadata)
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: m.clear(), "expected the metadata 'folded_cache'"),
        (lambda t, m: t.pop("v.1"), "expected the metadata"),
        (lambda t, m: t.update({"k.5": t.pop("k.1")}), r"k\.0, k\.5"),
        (lambda t, m: t.clear(), "found none"),
        (lambda t, m: t.update({"k.1": torch.zeros(HEADS, ENTRIES, 8)}), "one shape"),
        (lambda t, m: t.update({n: torch.zeros(3) for n in t}), "one shape"),
        (lambda t, m: m.update(folded_cache="{"), "metadata folded_cache: Invalid JSON"),
        (lambda t, m: edit(m, lambda r: r.pop("ridge")), "metadata ridge: Field required"),
        (lambda t, m: edit(m, lambda r: r.update(budget=2.0)), r"budget: .* got 2\.0"),
        (lambda t, m: edit(m, lambda r: r.update(format=2)), "format: Input should be 1"),
    ],
)
def test_a_file_that_is_no_folded_cache(tmp_path, change, message):
    write_raw(tmp_path / "c", change)
    for read in (FoldedCache.load, CacheHeader.read):
        with pytest.raises(CorruptCacheError, match=message):
            read(tmp_path / "c")


def edit(metadata, change):
    fields = json.loads(metadata["folded_cache"])
    change(fields)
    metadata["folded_cache"] = json.dumps(fields)


def test_tensors_that_make_no_cache():
    good = torch.zeros(LAYERS, HEADS, ENTRIES, DIM)
    with pytest.raises(RunError, match="two equal non-empty shapes"):
        FoldedCache(good, good[..., :8], record())
    with pytest.raises(RunError, match="two equal non-empty shapes"):
        FoldedCache(good[:, :, :0], good[:, :, :0], record())
    with pytest.raises(RunError, match="5 entries for a context of 4 tokens"):
        FoldedCache(good, good, record(context_length=4))
    broken = good.clone()
    broken[1, 0, 3, 2] = torch.nan
    with pytest.raises(RunError, match="values of layer 1 are not all finite"):
        FoldedCache(good, broken, record())


def test_the_config_hash_sees_what_a_cache_depends_on():
    base = config_hash(tiny_config())
    assert base == config_hash(tiny_config(dtype=torch.bfloat16, rms_norm_eps=1e-3))
    for change in (
        {"num_key_value_heads": 4},
        {"num_hidden_layers": 3},
        {"head_dim": 8},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}},
    ):
        assert config_hash(tiny_config(**change)) != base


@pytest.mark.parametrize("batch", [1, 3])
def test_transformers_continues_from_it(batch):
    """A prefix cached by the model itself and put in a FoldedCache continues as one long prompt."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(tiny_config()).eval()
    ids = torch.randint(64, (batch, 12))
    ids[:, :ENTRIES] = ids[0, :ENTRIES].clone()
    with torch.no_grad():
        whole = model(ids).logits[:, ENTRIES:]
        past = model(ids[:1, :ENTRIES], use_cache=True).past_key_values
        keys = torch.stack([layer.keys[0] for layer in past.layers])
        values = torch.stack([layer.values[0] for layer in past.layers])
        cache = FoldedCache(keys, values, record())
        kept = cache.keys.clone()
        dynamic = cache.to_dynamic_cache(batch)
        assert dynamic.get_seq_length() == cache.length == ENTRIES
        continued = model(ids[:, ENTRIES:], past_key_values=dynamic).logits
    assert torch.allclose(continued, whole, atol=1e-5)
    assert torch.equal(cache.keys, kept)  # continuing grew the copy, not the cache
