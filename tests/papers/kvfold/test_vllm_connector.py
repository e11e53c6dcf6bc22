"""The engine side without an engine: vLLM's own data types, fake layers."""

import copy
import importlib.util
import pickle
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig

pytest.importorskip("vllm", reason="these are methods that vLLM calls")

from vllm.config.kv_transfer import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from replicata.errors import RunError, UsageError
from replicata.papers.kvfold import vllm_connector
from replicata.papers.kvfold.cache_header import CacheRecord, config_hash
from replicata.papers.kvfold.connector import kv_transfer_config, request_params
from replicata.papers.kvfold.folded_cache import FoldedCache
from replicata.papers.kvfold.vllm_connector import FoldedKVConnector, Load

LAYERS, HEADS, ENTRIES, DIM, BLOCK = 12, 2, 40, 32, 32
CONFIG = LlamaConfig(
    num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=HEADS, head_dim=DIM
)
SHAPE = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": DIM, "dtype": torch.float32}


def vllm_config(*, transfer=None, layers=None, **changes):
    fields = {
        "kv_transfer_config": KVTransferConfig(**kv_transfer_config() | (transfer or {})),
        "model_config": SimpleNamespace(model="tiny", dtype=torch.float32, hf_text_config=CONFIG),
        "cache_config": SimpleNamespace(enable_prefix_caching=False),
        "parallel_config": SimpleNamespace(
            tensor_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        "speculative_config": None,
        "compilation_config": SimpleNamespace(
            static_forward_context={} if layers is None else layers
        ),
    }
    for path, value in changes.items():
        *outer, last = path.split("__")
        target = fields if not outer else vars(fields[outer[0]])
        target[last] = value
    return SimpleNamespace(**fields)


def cache_config(*specs):
    groups = [KVCacheGroupSpec([f"layers.{i}.attn"], spec) for i, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks=16, kv_cache_tensors=[], kv_cache_groups=groups)


def connector(role=KVConnectorRole.SCHEDULER, **changes):
    plain = cache_config(FullAttentionSpec(**SHAPE))
    return FoldedKVConnector(vllm_config(**changes), role, plain)


@pytest.fixture
def saved(tmp_path):
    def write(name="context", seed=0):
        draw = torch.Generator().manual_seed(seed)
        keys, values = torch.randn(2, LAYERS, HEADS, ENTRIES, DIM, generator=draw)
        record = CacheRecord(
            context_length=400,
            model_fingerprint="f" * 64,
            config_hash=config_hash(CONFIG),
            rope={},
            tokenizer_hash="a" * 64,
            budget=0.1,
            query_source="context",
            ridge=1e-3,
            epsilon={},
        )
        cache = FoldedCache(keys, values, record)
        return cache, request_params(tmp_path / name, ENTRIES, cache.save(tmp_path / name))

    return write


def request(params, req_id="r", prompt=50, **changes):
    fields = {
        "request_id": req_id,
        "kv_transfer_params": params,
        "num_prompt_tokens": prompt,
        "skip_reading_prefix_cache": False,
        "cache_salt": None,
    }
    return SimpleNamespace(**fields | changes)


def admit(side, req, computed=0):
    """Do what the scheduler does for a waiting request."""
    found, later = side.get_num_new_matched_tokens(req, computed)
    side.update_state_after_alloc(req, None, found)
    return found, later


def scheduled(new=None, resumed=None, running=None):
    """Return vLLM's scheduler output for requests given as ``{id: block ids}``."""
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = [
        NewRequestData(i, [0] * 50, [], None, None, (list(b),), ENTRIES, None)
        for i, b in (new or {}).items()
    ]
    cached = (running or {}) | (resumed or {})
    output.scheduled_cached_reqs = CachedRequestData(
        req_ids=list(cached),
        resumed_req_ids=set(resumed or {}),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[None if b is None else (list(b),) for b in cached.values()],
        num_computed_tokens=[ENTRIES] * len(cached),
        num_output_tokens=[0] * len(cached),
    )
    return output


def test_vllm_finds_it_by_the_transfer_config():
    config = KVTransferConfig(**kv_transfer_config())
    assert KVConnectorFactory.get_connector_class(config) is FoldedKVConnector


# ------------------------------------------------------------------------------ scheduler side


def test_a_request_without_params_is_none_of_ours():
    assert admit(connector(), request(None)) == (0, False)


def test_a_new_request_is_loaded_into_its_blocks(saved):
    _, params = saved()
    side = connector()
    assert admit(side, request(params)) == (ENTRIES, False)
    admit(side, request(None, "other"))
    output = scheduled(new={"r": [7, 3], "other": [5]}, running={"old": [9], "idle": None})
    before = copy.deepcopy(output)
    metadata = side.build_connector_meta(output)
    assert [(load.request.path, load.block_ids) for load in metadata.loads] == [
        (params["path"], [7, 3])
    ]
    assert metadata.refused == set()
    assert repr(output) == repr(before)  # vLLM forbids changing it
    assert side.build_connector_meta(scheduled(running={"r": [4]})).loads == []


@pytest.mark.parametrize("kind", ["resumed", "new"])  # model runner V1, V2
def test_a_preempted_request_is_loaded_again(saved, kind):
    _, params = saved()
    side, req = connector(), request(params)
    admit(side, req)
    side.build_connector_meta(scheduled(new={"r": [7, 3]}))
    assert admit(side, req) == (ENTRIES, False)
    metadata = side.build_connector_meta(scheduled(**{kind: {"r": [2, 11]}}))
    assert [load.block_ids for load in metadata.loads] == [[2, 11]]


def test_an_admitted_request_must_be_loaded(saved):
    _, params = saved()
    side = connector()
    admit(side, request(params))
    with pytest.raises(RunError, match="request r: vLLM admitted it but scheduled no load"):
        side.build_connector_meta(scheduled(running={"r": [7, 3]}))


def test_metadata_travels_between_processes(saved):
    _, params = saved()
    side = connector()
    admit(side, request(params))
    admit(side, request({}, "bad"))
    metadata = side.build_connector_meta(scheduled(new={"r": [7, 3]}))
    assert pickle.loads(pickle.dumps(metadata)) == metadata


@pytest.mark.parametrize("length", [0, 39, 41, 50, "40"])
def test_a_wrong_length_is_refused(saved, length):
    _, params = saved()
    assert_refused(connector(), request(params | {"len": length}))


def test_other_bad_requests_are_refused(saved, tmp_path):
    _, params = saved()
    assert_refused(connector(), request({}))
    assert_refused(connector(), request(params | {"path": str(tmp_path / "absent")}))
    assert_refused(connector(), request(params, prompt=1))
    other = {"kv_connector_extra_config": {"model_fingerprint": "0" * 64}}
    assert_refused(connector(transfer=other), request(params))
    config = LlamaConfig(num_hidden_layers=2)
    assert_refused(connector(model_config__hf_text_config=config), request(params))
    (tmp_path / "context").write_bytes(b"")
    assert_refused(connector(), request(params))


def assert_refused(side, req):
    """The worker is told to fail it, and does so once; no block is computed or loaded."""
    assert admit(side, req) == (1, True)
    metadata = side.build_connector_meta(scheduled())
    assert metadata.loads == []
    assert metadata.refused == {"r"}
    layers = fake_layers()
    worker = worker_side(layers)
    run(worker, metadata, layers)
    results = worker.get_transfer_results(set())
    assert results.failed_recving == results.finished_recving == {"r"}
    assert not results.finished_sending
    assert not worker.get_transfer_results(set()).failed_recving
    assert worker.get_block_ids_with_load_errors() == set()
    side.request_finished(req, [])


def test_a_request_that_vllm_would_compute_itself_stops_the_engine(saved):
    _, params = saved()
    with pytest.raises(RunError, match="asks for prompt log-probabilities"):
        connector().get_num_new_matched_tokens(request(params, skip_reading_prefix_cache=True), 0)


def test_prefix_caching_needs_the_context_as_salt(saved):
    _, params = saved()
    on = {"cache_config__enable_prefix_caching": True}
    for salt in (None, "another"):
        assert_refused(connector(**on), request(params, cache_salt=salt))
    salted = request(params, cache_salt=params["sha256"])
    assert admit(connector(**on), salted) == (ENTRIES, False)
    # Blocks that are there already, loaded for an earlier question of the same context.
    assert admit(connector(**on), salted, computed=32) == (8, False)
    side = connector(**on)
    assert admit(side, salted, computed=64) == (0, False)
    assert side.build_connector_meta(scheduled(new={"r": [7, 3]})).loads == []


# --------------------------------------------------------------------------------- worker side


class FakeBackend:
    """Stores rows by slot, as ``do_kv_cache_update`` of a real backend must."""

    def __init__(self):
        self.rows = {}

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        assert kv_cache is layer.kv_cache
        for slot, k, v in zip(slot_mapping.tolist(), key, value, strict=True):
            self.rows[slot] = (k, v)


def fake_layers(indices=range(LAYERS)):
    layers = {
        f"model.layers.{i}.self_attn.attn": SimpleNamespace(
            impl=FakeBackend(), kv_cache=torch.zeros(16, HEADS, BLOCK, 2 * DIM)
        )
        for i in indices
    }
    return layers | {"model.layers.0.mlp.experts": SimpleNamespace()}


def worker_side(layers, **changes):
    return connector(KVConnectorRole.WORKER, layers=layers, **changes)


def run(worker, metadata, layers):
    worker.bind_connector_metadata(metadata)
    worker.start_load_kv(SimpleNamespace(no_compile_layers=layers))
    worker.clear_connector_metadata()


def metadata_for(params, block_ids):
    side = connector()
    admit(side, request(params))
    return side.build_connector_meta(scheduled(new={"r": block_ids}))


def at_rank(monkeypatch, rank):
    monkeypatch.setattr(vllm_connector, "get_tensor_model_parallel_rank", lambda: rank)


def test_every_layer_gets_its_rows_in_its_slots(saved, monkeypatch):
    at_rank(monkeypatch, 0)
    cache, params = saved()
    layers = fake_layers(sorted(range(LAYERS), key=str))  # 0, 1, 10, 11, 2: no numeric order
    run(worker_side(layers), metadata_for(params, [7, 3]), layers)
    slots = [*range(224, 256), *range(96, 104)]
    for index in range(LAYERS):
        rows = layers[f"model.layers.{index}.self_attn.attn"].impl.rows
        assert sorted(rows) == sorted(slots)
        for entry, slot in enumerate(slots):
            assert torch.equal(rows[slot][0], cache.keys[index, :, entry])
            assert torch.equal(rows[slot][1], cache.values[index, :, entry])


def test_each_rank_writes_its_heads_in_the_model_dtype(saved, monkeypatch):
    cache, params = saved()
    for rank in range(2):
        at_rank(monkeypatch, rank)
        layers = fake_layers()
        worker = worker_side(
            layers, parallel_config__tensor_parallel_size=2, model_config__dtype=torch.bfloat16
        )
        run(worker, metadata_for(params, [7, 3]), layers)
        key, value = layers["model.layers.5.self_attn.attn"].impl.rows[96]
        assert torch.equal(key, cache.keys[5, rank : rank + 1, 32].bfloat16())
        assert torch.equal(value, cache.values[5, rank : rank + 1, 32].bfloat16())


def test_a_file_that_goes_bad_after_admission_fails_its_own_blocks(saved, monkeypatch, tmp_path):
    at_rank(monkeypatch, 0)
    cache, good = saved("good")
    _, bad = saved("bad", seed=1)
    metadata = metadata_for(good, [7, 3])
    # Three blocks are allocated: two hold loaded entries, the third only the question.
    metadata.loads.append(Load(metadata_for(bad, [4, 5]).loads[0].request, [4, 5, 6]))
    FoldedCache(cache.keys, cache.values, cache.record).save(tmp_path / "bad")
    layers = fake_layers()
    worker = worker_side(layers)
    run(worker, metadata, layers)
    assert worker.get_block_ids_with_load_errors() == {4, 5}
    assert worker.get_block_ids_with_load_errors() == set()
    rows = layers["model.layers.0.self_attn.attn"].impl.rows
    assert sorted({slot // BLOCK for slot in rows}) == [3, 7]


def test_a_file_is_read_once(saved, monkeypatch, tmp_path):
    at_rank(monkeypatch, 0)
    _, params = saved()
    metadata = metadata_for(params, [7, 3])
    layers = fake_layers()
    worker = worker_side(layers)
    run(worker, metadata, layers)
    (tmp_path / "context").unlink()
    run(worker, metadata, layers)
    assert worker.get_block_ids_with_load_errors() == set()
    for number in range(vllm_connector.KEPT_FILES):  # others push it out
        _, other = saved(f"other{number}", seed=number + 1)
        run(worker, metadata_for(other, [7, 3]), layers)
    run(worker, metadata, layers)
    assert worker.get_block_ids_with_load_errors() == {7, 3}


def test_it_serves_no_engine_but_its_own(saved):
    """VLLM keeps one worker connector per process, also when a second engine is started."""
    _, params = saved()
    worker = worker_side(fake_layers())
    with pytest.raises(RunError, match="a second engine in this process"):
        run(worker, metadata_for(params, [7, 3]), fake_layers())


# -------------------------------------------------------------------------------------- engine


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transfer": {"kv_load_failure_policy": "recompute"}}, "policy 'recompute': .* 'fail'"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "context parallelism"),
        ({"speculative_config": object()}, "speculative decoding"),
    ],
)
def test_engine_settings_that_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        connector(**changes)


@pytest.mark.parametrize(
    "specs",
    [
        [FullAttentionSpec(**SHAPE, sliding_window=64)],
        [FullAttentionSpec(**SHAPE, attention_chunk_size=64)],
        [SlidingWindowSpec(**SHAPE, sliding_window=64)],
        [MLAAttentionSpec(**SHAPE | {"num_kv_heads": 1})],
        [FullAttentionSpec(**SHAPE), SlidingWindowSpec(**SHAPE, sliding_window=64)],
    ],
)
def test_models_that_are_refused(specs):
    with pytest.raises(UsageError, match="folded caches need full attention"):
        FoldedKVConnector(vllm_config(), KVConnectorRole.WORKER, cache_config(*specs))


def vllm_attributes():
    """Identities of everything in vLLM's loaded modules and classes."""
    modules = {n: m for n, m in sys.modules.items() if n == "vllm" or n.startswith("vllm.")}
    found = {f"{n}.{k}": id(v) for n, m in modules.items() for k, v in vars(m).items()}
    classes = {v for m in modules.values() for v in vars(m).values() if isinstance(v, type)}
    for kind in classes:
        if kind.__module__.startswith("vllm."):
            for k, v in vars(kind).items():
                if not k.startswith("_abc_"):  # an ABC keeps count of its subclasses there
                    found[f"{kind.__module__}.{kind.__qualname__}.{k}"] = id(v)
    return found


def test_importing_it_changes_nothing_in_vllm():
    for name in ("attention.backends.cpu_attn", "core.sched.scheduler", "worker.gpu_model_runner"):
        importlib.import_module(f"vllm.v1.{name}")
    source = importlib.util.spec_from_file_location("fresh_copy", vllm_connector.__file__)
    fresh = importlib.util.module_from_spec(source)
    before = vllm_attributes()
    source.loader.exec_module(fresh)
    after = vllm_attributes()
    assert fresh.FoldedKVConnector is not FoldedKVConnector
    assert len(before) > 10_000
    assert [name for name in before if before[name] != after[name]] == []
