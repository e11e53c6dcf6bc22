"""A real vLLM engine serves folded caches, checked against transformers on the same cache.

The oracle shares no code with the connector: it decodes with transformers' stock SDPA from the
*unrotated* keys at positions ``T + i``, and rotates keys for serving by the complex form of RoPE.
"""

import base64
import hashlib
import inspect
import sysconfig
from dataclasses import dataclass
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from replicata.errors import UsageError
from replicata.inference.sampling import Sampling
from replicata.inference.vllm_engine import ENVIRONMENT, VllmEngine
from replicata.models import load_model
from replicata.papers.kvfold.cache_header import CacheMismatchError, CacheRecord, config_hash
from replicata.papers.kvfold.connector import (
    ServedQuestion,
    kv_transfer_config,
    pad_prompt,
    request_params,
    serve,
)
from replicata.papers.kvfold.folded_cache import FoldedCache

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

MODEL = "smollm2-135m-instruct"
TEXTS = (
    "The town of Arden has three bridges. The oldest, built of oak by Mara Oyelaran in 1731, "
    "leads to the mill; the second carries the railway to the coast; the third is for walkers "
    "only. Every spring the river rises and the mill is closed for two weeks. ",
    "Dr. Imre Vass keeps bees on the roof of the old hospital in Port Selle. His honey is dark "
    "and is sold on Fridays beside the fish market. Last year he lost four of nine hives to "
    "frost, and he now wraps the others in straw before the first snow falls. ",
)
QUESTION = "\nIn one sentence, what does the text above say?\nIt says that"
LENGTH = 150  # T: no multiple of a block size, and more than one block of 128
KEPT = 40  # t: no multiple of 32 or 128
NEW_TOKENS = 16
SAMPLING = Sampling(max_tokens=NEW_TOKENS)


class Question(ServedQuestion):
    """A served question, with its request's params."""

    @property
    def params(self):
        return request_params(self.path, self.length, self.sha256)


@dataclass
class Answer:
    token_ids: list[int]
    logprobs: list[float]


def greedy(model, keys, values, position, question):
    """Greedy decoding from a cache whose next token sits at ``position``."""
    past = DynamicCache()
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        past.update(k[None], v[None], layer)
    answer, ids = Answer([], []), list(question)
    for _ in range(NEW_TOKENS):
        positions = torch.arange(position, position + len(ids))
        with torch.no_grad():
            out = model(torch.tensor([ids]), past_key_values=past, position_ids=positions[None])
        scores = out.logits[0, -1].double().log_softmax(-1)
        answer.token_ids.append(int(scores.argmax()))
        answer.logprobs.append(float(scores.max()))
        position, ids = position + len(ids), answer.token_ids[-1:]
    return answer


def rotate(keys, shift, theta):
    """RoPE by ``shift`` positions as a multiplication of complex numbers, in float64."""
    half = keys.shape[-1] // 2
    angle = shift * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = torch.complex(keys[..., :half].double(), keys[..., half:].double())
    turned = turned * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1).to(keys.dtype)


@dataclass
class World:
    """Both contexts prefilled, and what the oracle answers from each cache."""

    loaded: object
    contexts: list[list[int]]
    question: list[int]
    full: list[tuple]  # keys and values (L, H, T, d)
    kept: list[tuple]  # keys and values (L, H, t, d), not rotated
    oracle: list[Answer]  # from the kept entries
    served: list[Question]  # the kept entries, rotated

    def write(self, path, keys, values):
        record = CacheRecord(
            context_length=LENGTH,
            model_fingerprint=self.loaded.fingerprint,
            config_hash=config_hash(self.loaded.model.config),
            rope={"rope_type": "default"},
            tokenizer_hash="0" * 64,
            budget=keys.shape[2] / LENGTH,
            query_source="none",
            ridge=0.0,
            epsilon={},
        )
        cache = FoldedCache(keys, values, record)
        return Question(path, cache.length, cache.save(path), self.question)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    loaded = load_model(MODEL)
    assert loaded.model.config._attn_implementation == "sdpa"
    encode = loaded.tokenizer.encode
    contexts = [encode(text * 5)[:LENGTH] for text in TEXTS]
    world = World(loaded, contexts, encode(QUESTION), [], [], [], [])
    folder = tmp_path_factory.mktemp("caches")
    theta = loaded.model.config.rope_parameters["rope_theta"]
    for number, ids in enumerate(contexts):
        with torch.no_grad():
            past = loaded.model(torch.tensor([ids]), use_cache=True).past_key_values
        keys, values = (
            torch.stack([getattr(layer, name)[0] for layer in past.layers])
            for name in ("keys", "values")
        )
        # Another subset for every layer and head, as a compaction would choose.
        draw = torch.Generator().manual_seed(number)
        index = torch.rand(keys.shape[:3], generator=draw).topk(KEPT, dim=-1).indices.sort().values
        index = index[..., None].expand(-1, -1, -1, keys.shape[-1])
        k, v = keys.gather(2, index), values.gather(2, index)
        world.full.append((keys, values))
        world.kept.append((k, v))
        world.oracle.append(greedy(loaded.model, k, v, LENGTH, world.question))
        path = folder / f"{number}.safetensors"
        world.served.append(world.write(path, rotate(k, KEPT - LENGTH, theta), v))
    return world


@pytest.fixture
def bare_engine(world, monkeypatch):
    """Start vLLM with settings that ``VllmEngine`` does not offer; one at a time in a process.

    Tests that use it come before the first that needs ``engine``.
    """
    for name, value in (ENVIRONMENT | {"VLLM_CPU_KVCACHE_SPACE": "1"}).items():
        monkeypatch.setenv(name, value)
    from vllm import LLM

    started = []

    def start(**settings):
        started.append(
            LLM(
                str(world.loaded.directory),
                dtype="float32",
                enforce_eager=True,
                gpu_memory_utilization=0.5,
                generation_config="vllm",
                kv_transfer_config=kv_transfer_config(),
                **settings,
            )
        )
        return started[0]

    yield start
    for llm in started:
        llm.llm_engine.engine_core.shutdown()


def ask_bare(llm, world, transfers, **prompt):
    """Submit one prompt per transfer, past the checks of ``serve``."""
    from vllm import SamplingParams

    params = [
        SamplingParams(
            temperature=0.0,
            max_tokens=NEW_TOKENS,
            ignore_eos=True,
            extra_args={"kv_transfer_params": transfer},
        )
        for transfer in transfers
    ]
    prompt = {"prompt_token_ids": pad_prompt(KEPT, world.question, 0)} | prompt
    return llm.generate([prompt] * len(params), params, use_tqdm=False)


def token_ids(outputs):
    return [list(output.outputs[0].token_ids) for output in outputs]


def finish_reasons(outputs):
    return [output.outputs[0].finish_reason for output in outputs]


def test_preempted_requests_load_again(world, bare_engine):
    """Five blocks of 32: both requests fit when they start, one must make room and resume."""
    llm = bare_engine(
        enable_prefix_caching=False,
        max_model_len=96,
        block_size=32,
        num_gpu_blocks_override=6,  # one of them is vLLM's null block
        disable_log_stats=False,
    )
    outputs = ask_bare(llm, world, [question.params for question in world.served])
    preemptions = [m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions"]
    assert preemptions[0] > 0
    assert token_ids(outputs) == [oracle.token_ids for oracle in world.oracle]


def test_prefix_caching_with_a_salt_per_context(world, bare_engine):
    llm = bare_engine(enable_prefix_caching=True, max_model_len=96, block_size=32)
    for repeat in range(2):
        for question, oracle in zip(world.served, world.oracle, strict=True):
            outputs = ask_bare(llm, world, [question.params], cache_salt=question.sha256)
            assert token_ids(outputs) == [oracle.token_ids]
            # The second time a block of 32 is there already, and 8 entries are loaded.
            assert outputs[0].num_cached_tokens == KEPT, repeat
    # Without its salt, or with another context's, a request would find foreign blocks.
    first, second = world.served
    assert finish_reasons(ask_bare(llm, world, [first.params])) == ["error"]
    salted = ask_bare(llm, world, [first.params], cache_salt=second.sha256)
    assert finish_reasons(salted) == ["error"]


@pytest.fixture(scope="module")
def engine(world):
    with VllmEngine(
        world.loaded.directory,
        "float32",
        max_model_len=512,
        kv_transfer_config=kv_transfer_config(world.loaded.fingerprint),
    ) as engine:
        yield engine


def largest_gap(answer, oracle):
    return max(abs(a - b) for a, b in zip(answer.logprobs, oracle.logprobs, strict=True))


def test_a_whole_cache_gives_what_vllm_computes_itself(world, engine, tmp_path):
    own = engine.generate([ids + world.question for ids in world.contexts], SAMPLING)
    loads = [world.write(tmp_path / f"{i}", *kv) for i, kv in enumerate(world.full)]
    served = serve(engine, loads, SAMPLING, pad_id=0)
    for number in range(2):
        assert served[number].token_ids == own[number].token_ids
        assert largest_gap(served[number], own[number]) < 1e-3


def test_kept_and_rotated_entries_match_transformers(world, engine):
    answers = serve(engine, world.served, SAMPLING, pad_id=0)
    for answer, oracle in zip(answers, world.oracle, strict=True):
        assert answer.token_ids == oracle.token_ids
        assert largest_gap(answer, oracle) < 1e-3
    # One pad prompt, two contexts, one batch: nothing leaks from one to the other.
    assert answers[0].token_ids != answers[1].token_ids


def test_without_rotation_or_without_loading_the_answer_differs(world, engine, tmp_path):
    unrotated = serve(engine, [world.write(tmp_path / "c", *world.kept[0])], SAMPLING, pad_id=0)[0]
    padding = engine.generate([pad_prompt(KEPT, world.question, 0)], SAMPLING)[0]
    for answer in (unrotated, padding):
        assert abs(answer.logprobs[0] - world.oracle[0].logprobs[0]) > 1e-2
        assert answer.token_ids != world.oracle[0].token_ids


def test_a_bad_request_ends_alone(world, engine, tmp_path):
    good = world.served[0].params
    other = tmp_path / "other.safetensors"
    world.write(other, *world.kept[1])
    transfers = [
        good,
        good | {"path": str(tmp_path / "absent")},
        good | {"path": str(other)},  # the digest is found wrong by the worker
        good | {"len": KEPT - 1},
        good | {"len": 500},
        {"path": good["path"]},
        good,
    ]
    outputs = ask_bare(engine.llm, world, transfers)
    assert finish_reasons(outputs) == ["length", *["error"] * 5, "length"]
    expected = world.oracle[0].token_ids
    assert token_ids(outputs) == [expected, *[[]] * 5, expected]
    # Padding without a question: there is no token left to compute.
    alone = ask_bare(engine.llm, world, [good], prompt_token_ids=[0])
    assert finish_reasons(alone) == ["error"]
    # The blocks of the failed requests are free again.
    manager = engine.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    assert manager.usage == 0


def test_serve_names_the_question_and_the_file(world, engine, tmp_path):
    good = world.served[0]
    broken = ServedQuestion(good.path, KEPT, "0" * 64, world.question)
    with pytest.raises(CacheMismatchError, match=r"question 1: .*0\.safetensors: its SHA-256"):
        serve(engine, [good, broken], SAMPLING, pad_id=0)
    with pytest.raises(UsageError, match=r"question 0: .*the question has no tokens"):
        serve(engine, [ServedQuestion(good.path, KEPT, good.sha256, [])], SAMPLING, pad_id=0)


def test_the_engine_is_stock(world, engine):
    from vllm.platforms import current_platform

    serve(engine, world.served, SAMPLING, pad_id=0)
    layers = engine.llm.llm_engine.vllm_config.compilation_config.static_forward_context
    assert len(layers) == world.loaded.model.config.num_hidden_layers
    backend = "CPU_ATTN" if current_platform.is_cpu() else "FLASH_ATTN"
    assert {layer.attn_backend.get_name() for layer in layers.values()} == {backend}
    layer = next(iter(layers.values()))
    core = engine.llm.llm_engine.engine_core.engine_core
    wheel = distribution(packages_distributions()["vllm"][0])
    recorded = {Path(wheel.locate_file(f)).resolve(): f.hash.value for f in wheel.files if f.hash}
    parts = [layer, layer.impl, core, core.scheduler, core.scheduler.kv_cache_manager]
    parts.append(core.model_executor.driver_worker.worker.model_runner)
    parts.append(core.model_executor.driver_worker.worker.model_runner.model)
    standard_library = Path(sysconfig.get_path("stdlib")).resolve()
    for part in parts:
        classes = [kind for kind in type(part).__mro__ if kind.__module__.startswith("vllm.")]
        methods = [
            (name, inspect.unwrap(method))
            for kind in classes
            for name, method in vars(kind).items()
            if inspect.isfunction(method)
        ]
        assert methods
        # Nothing on the instance hides a method of its class ...
        assert not {name for name, _ in methods} & set(vars(part)), type(part)
        for name, method in methods:
            # ... and every method comes from a file that is as the wheel delivered it.
            source = Path(method.__code__.co_filename).resolve()
            if source.parent == standard_library:
                continue  # typing adds methods to a Protocol
            assert source in recorded, (type(part), name)
            content = hashlib.sha256(source.read_bytes()).digest()
            found = base64.urlsafe_b64encode(content).decode().rstrip("=")
            assert found == recorded[source], source
