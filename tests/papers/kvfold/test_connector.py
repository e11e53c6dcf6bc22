"""The request side: no engine, no vLLM."""

import hashlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from replicata.errors import ReplicataError, RunError, UsageError
from replicata.papers.kvfold.cache_header import (
    CacheMismatchError,
    CacheRecord,
    CorruptCacheError,
    MissingCacheError,
    config_hash,
)
from replicata.papers.kvfold.connector import (
    FoldedRequest,
    ServedQuestion,
    kv_transfer_config,
    layer_index,
    pad_prompt,
    rank_heads,
    request_params,
    serve,
    slots_for_blocks,
)
from replicata.papers.kvfold.folded_cache import FoldedCache

CONFIG = LlamaConfig(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=4)
ENTRIES = 3


@pytest.fixture
def saved(tmp_path):
    """Return a function that writes a small cache and says how to ask for it."""

    def write(name="context", **changes):
        fields = {
            "context_length": 9,
            "model_fingerprint": "f" * 64,
            "config_hash": config_hash(CONFIG),
            "rope": {},
            "tokenizer_hash": "a" * 64,
            "budget": 1 / 3,
            "query_source": "context",
            "ridge": 1e-3,
            "epsilon": {},
        }
        tensor = torch.ones(1, 1, ENTRIES, 4)
        cache = FoldedCache(tensor, tensor, CacheRecord(**fields | changes))
        return request_params(tmp_path / name, ENTRIES, cache.save(tmp_path / name))

    return write


def test_it_does_not_import_vllm():
    code = "import sys, replicata.papers.kvfold.connector; print('vllm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_transfer_config():
    config = kv_transfer_config()
    assert config["kv_role"] == "kv_consumer"
    assert config["kv_load_failure_policy"] == "fail"
    assert config["kv_connector_extra_config"] == {}
    extra = kv_transfer_config("f" * 64)["kv_connector_extra_config"]
    assert extra == {"model_fingerprint": "f" * 64}


def test_the_worked_example_of_slots():
    slots = slots_for_blocks([7, 3], block_size=32, length=40)
    assert slots == [*range(224, 256), *range(96, 104)]


@given(
    block_ids=st.lists(st.integers(0, 999), min_size=1, max_size=6, unique=True),
    block_size=st.integers(1, 40),
    share=st.floats(0, 1),
)
def test_slots_are_the_blocks_read_in_order(block_ids, block_size, share):
    table = torch.arange(1000 * block_size).view(1000, block_size)
    length = round(share * len(block_ids) * block_size)
    expected = table[block_ids].flatten()[:length].tolist()
    assert slots_for_blocks(block_ids, block_size, length) == expected


def test_too_few_blocks():
    with pytest.raises(RunError, match="65 entries do not fit the request's 2 blocks of 32"):
        slots_for_blocks([0, 1], 32, 65)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("model.layers.0.self_attn.attn", 0),
        ("model.layers.29.self_attn.attn", 29),
        ("language_model.model.layers.3.self_attn.attn", 3),
        ("layers.11.attn", 11),
    ],
)
def test_layer_index(name, index):
    assert layer_index(name) == index


@pytest.mark.parametrize("name", ["lm_head", "layers.attn", "layers.1.layers.2.a", "players.1.a"])
def test_a_name_without_one_layer_number(name):
    with pytest.raises(RunError, match="expected one layer number"):
        layer_index(name)


@given(share=st.integers(1, 8), ranks=st.integers(1, 16))
def test_ranks_divide_the_heads(share, ranks):
    heads = torch.arange(share * ranks)
    parts = [heads[rank_heads(len(heads), rank, ranks)] for rank in range(ranks)]
    assert torch.equal(torch.cat(parts), heads)
    assert {len(part) for part in parts} == {share}


@given(heads=st.integers(1, 8), copies=st.integers(1, 8))
def test_ranks_share_heads_when_there_are_more_ranks(heads, copies):
    table = torch.arange(heads)
    parts = [table[rank_heads(heads, rank, heads * copies)] for rank in range(heads * copies)]
    assert torch.equal(torch.cat(parts), table.repeat_interleave(copies))


def test_heads_that_cannot_be_split():
    with pytest.raises(RunError, match="3 KV heads cannot be split over 2 ranks"):
        rank_heads(3, 0, 2)


def test_pad_prompt():
    assert pad_prompt(3, [5, 6], 0) == [0, 0, 0, 5, 6]
    with pytest.raises(UsageError, match="0 entries, expected at least 1"):
        pad_prompt(0, [5], 0)
    with pytest.raises(UsageError, match="the question has no tokens"):
        pad_prompt(3, [], 0)


def test_params_that_are_right():
    params = {"path": "/c", "len": 3, "sha256": "0" * 64}
    assert FoldedRequest.parse(params, 4) == FoldedRequest("/c", 3, "0" * 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"len": 4}, "len 4 and a prompt of 4 tokens"),
        ({"len": 5}, "len 5 and a prompt of 4 tokens"),
        ({"len": 0}, "len 0, expected an integer >= 1"),
        ({"len": -1}, "len -1, expected"),
        ({"len": 2.0}, r"len 2\.0, expected"),
        ({"len": True}, "len True, expected"),
        ({"len": None}, "len None, expected"),
        ({"path": ""}, "path '', expected a file name"),
        ({"path": 3}, "path 3, expected a file name"),
        ({"sha256": "abc"}, "sha256 'abc', expected 64 hex digits"),
        ({"sha256": None}, "sha256 None, expected"),
        ({"length": 3}, r"\['len', 'length', 'path', 'sha256'\], expected exactly"),
    ],
)
def test_params_that_are_wrong(change, message):
    with pytest.raises(UsageError, match=message):
        FoldedRequest.parse({"path": "/c", "len": 3, "sha256": "0" * 64} | change, 4)


@pytest.mark.parametrize("params", [{}, {1: 2}, [], "path", 3])
def test_params_that_are_no_params(params):
    with pytest.raises(UsageError, match=r"kv_transfer_params: .* expected exactly"):
        FoldedRequest.parse(params, 4)


def check(params, **changes):
    expected = {"config_hash": config_hash(CONFIG), "fingerprint": None} | changes
    return FoldedRequest.parse(params, 99).check_file(**expected)


def test_files_that_are_wrong(saved, tmp_path):
    params = saved()
    assert check(params).shape == (1, 1, ENTRIES, 4)
    check(params, fingerprint="f" * 64)
    with pytest.raises(MissingCacheError):
        check(params | {"path": str(tmp_path / "absent")})
    with pytest.raises(CacheMismatchError, match="entries: 3, expected 2"):
        check(params | {"len": 2})
    with pytest.raises(CacheMismatchError, match="config hash"):
        check(params, config_hash="0" * 64)
    with pytest.raises(CacheMismatchError, match="model fingerprint"):
        check(params, fingerprint="0" * 64)
    content = (tmp_path / "context").read_bytes()
    (tmp_path / "context").write_bytes(content[:-1])
    with pytest.raises(CorruptCacheError):
        check(params)


class FakeEngine:
    """Records what is submitted; its model has ``CONFIG``."""

    def __init__(self, transfer):
        transfer = SimpleNamespace(**transfer) if transfer else None
        config = SimpleNamespace(kv_transfer_config=transfer)
        self.llm = SimpleNamespace(
            llm_engine=SimpleNamespace(vllm_config=config),
            model_config=SimpleNamespace(hf_text_config=CONFIG),
        )
        self.submitted = []

    def generate(self, prompts, sampling, kv_transfer_params):
        self.submitted.append((prompts, sampling, kv_transfer_params))
        return ["an answer"] * len(prompts)


def question(params, ids=(7, 8)):
    return ServedQuestion(params["path"], params["len"], params["sha256"], list(ids))


def test_serve_pads_and_submits_once(saved):
    engine = FakeEngine(kv_transfer_config("f" * 64))
    first, second = saved("a"), saved("b", query_source="repeat")
    answers = serve(engine, [question(first), question(second, [9])], "greedy", pad_id=1)
    assert answers == ["an answer"] * 2
    prompts = [[1, 1, 1, 7, 8], [1, 1, 1, 9]]
    assert engine.submitted == [(prompts, "greedy", [first, second])]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"path": "/absent"}, MissingCacheError),
        ({"len": 2}, CacheMismatchError),
        ({"len": 0}, UsageError),
        ({"sha256": hashlib.sha256(b"").hexdigest()}, CacheMismatchError),
        ({"sha256": "short"}, UsageError),
    ],
)
def test_serve_submits_nothing_when_one_is_bad(saved, change, error):
    engine = FakeEngine(kv_transfer_config())
    good = saved()
    with pytest.raises(error, match=r"^question 1: ") as caught:
        serve(engine, [question(good), question(good | change)], "greedy", pad_id=0)
    assert isinstance(caught.value, ReplicataError)
    assert engine.submitted == []


def test_serve_refuses_caches_of_another_model(saved):
    other_weights = FakeEngine(kv_transfer_config("0" * 64))
    with pytest.raises(CacheMismatchError, match=r"question 0: .* model fingerprint"):
        serve(other_weights, [question(saved())], "greedy", pad_id=0)
    other_shape = saved("b", config_hash="0" * 64)
    with pytest.raises(CacheMismatchError, match=r"question 0: .* config hash"):
        serve(FakeEngine(kv_transfer_config()), [question(other_shape)], "greedy", pad_id=0)


def test_serve_needs_the_connector(saved):
    for transfer in (None, {"kv_connector": "ExampleConnector"}):
        with pytest.raises(RunError, match="started without FoldedKVConnector"):
            serve(FakeEngine(transfer), [question(saved())], "greedy", pad_id=0)
    closed = FakeEngine(kv_transfer_config())
    closed.llm = None
    with pytest.raises(RunError, match="it is closed"):
        serve(closed, [question(saved())], "greedy", pad_id=0)
