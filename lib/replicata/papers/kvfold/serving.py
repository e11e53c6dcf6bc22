"""The serving cells: a real vLLM loads folded caches, transformers answers from the same ones.

transformers decodes from the unrotated folded keys at positions ``T + i``; vLLM loads the rotated
keys and continues at ``t + i``. Agreement therefore also tests the rotation.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any

import pandas as pd
import torch

from replicata.errors import NotRun, ResourceError
from replicata.inference import Completion, Sampling
from replicata.inference.vllm_engine import VllmEngine
from replicata.models import LoadedModel, load_model, model_directory
from replicata.papers.kvfold import measure
from replicata.papers.kvfold.arms import ContextArms
from replicata.papers.kvfold.cache_header import CacheRecord, config_hash, rope_spec
from replicata.papers.kvfold.connector import (
    ServedQuestion,
    kv_transfer_config,
    pad_prompt,
    serve,
)
from replicata.papers.kvfold.experiment import Params
from replicata.papers.kvfold.folded_cache import FoldedCache
from replicata.papers.kvfold.measure import ArmCache
from replicata.papers.kvfold.method import FOLD_RIDGE, projection
from replicata.papers.kvfold.rope import serving_rotation
from replicata.papers.kvfold.studies import Bench, entries
from replicata.workflow.cells import Cell


def serving(params: Params, cell: Cell) -> pd.DataFrame:
    """Greedy answers from folded caches: vLLM against transformers, question by question.

    Raises
    ------
    NotRun
        If vLLM is not installed or does not start.
    """
    settings, dtype = params.serving, cell.params["dtype"]
    bench = Bench(params, cell.threads)
    loaded = bench.loaded
    if dtype != params.dtype:
        loaded = load_model(params.model, dtype=dtype, device=params.device)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="replicata-kvfold-") as folder:
        asked, answers = [], []
        for family in params.families:
            for context in bench.contexts(family, 0, min(settings.contexts, family.contexts)):
                prompts = bench.prompts(context, context.questions[: settings.questions])
                arms = bench.arms(context, prompts[0].prefix)
                cache = arms.arm("fold", entries(settings.budget, arms.prefill.length))
                path = Path(folder) / f"{len(asked)}.safetensors"
                sha256 = folded_cache(bench.loaded, arms, cache, dtype, settings.budget).save(path)
                suffixes = [p.suffix for p in prompts]
                answers += _transformers_answers(loaded, cache, suffixes, params.answer_tokens)
                length = cache.keys.shape[2]
                for number, suffix in enumerate(suffixes):
                    asked.append(
                        (context.name, number, ServedQuestion(path, length, sha256, suffix))
                    )
        sampling = Sampling(
            max_tokens=params.answer_tokens, stop_token_ids=(loaded.tokenizer.eos_token_id,)
        )
        try:
            engine = VllmEngine(
                model_directory(params.model, dtype),
                dtype,
                max_model_len=settings.max_model_len,
                kv_transfer_config=kv_transfer_config(bench.loaded.fingerprint),
            )
        except ResourceError as error:
            raise NotRun(str(error)) from error
        with engine:
            questions = [question for _, _, question in asked]
            served = serve(engine, questions, sampling, pad_id=0)
            controls = questions[: settings.control_questions]
            # The same prompts without the connector's parameters: vLLM attends to the padding.
            control = engine.generate(
                [pad_prompt(q.length, q.question_ids, 0) for q in controls], sampling
            )
            rows += _stock_rows(engine, loaded)
    for (name, number, _), own, other in zip(asked, answers, served, strict=True):
        for metric, value in agreement(*own, other):
            rows.append(_row("fold", name, metric, value, question=number))
    for (name, number, _), own, other in zip(asked, answers, control, strict=False):
        equal = float(own[0] == other.token_ids)
        rows.append(_row("connector_off", name, "equal", equal, question=number))
    return pd.DataFrame(rows).assign(dtype=dtype)


def _row(arm: str, unit: str, metric: str, value: float, **index: Any) -> dict[str, Any]:
    return {"arm": arm, "unit": unit, "metric": metric, "value": float(value), **index}


def folded_cache(
    loaded: LoadedModel, arms: ContextArms, cache: ArmCache, dtype: str, budget: float
) -> FoldedCache:
    """Turn a folded arm into the file's content: rotated by ``t - T``, then cast (spec 3.4)."""
    config = loaded.model.config
    t, length = cache.keys.shape[2], arms.prefill.length
    keys = serving_rotation(cache.keys, t - length, config).to(getattr(torch, dtype))
    epsilon = [
        float((projection(arms.heldout_queries(i), f.direction) - 1).abs().mean())
        for i, f in enumerate(arms.folded(t))
    ]
    record = CacheRecord(
        context_length=length,
        model_fingerprint=loaded.fingerprint,
        config_hash=config_hash(config),
        rope=rope_spec(config),
        tokenizer_hash=tokenizer_hash(loaded.tokenizer),
        budget=budget,
        query_source="context",
        ridge=FOLD_RIDGE,
        epsilon={"mean_abs": sum(epsilon) / len(epsilon)},
    )
    return FoldedCache(keys, cache.values.to(getattr(torch, dtype)), record)


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer's vocabulary."""
    vocabulary = json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(vocabulary.encode()).hexdigest()


def _transformers_answers(
    loaded: LoadedModel, cache: ArmCache, suffixes: list[list[int]], max_tokens: int
) -> list[tuple[list[int], torch.Tensor]]:
    dtype = loaded.model.dtype
    cast = ArmCache(cache.keys.to(dtype), cache.values.to(dtype), cache.length)
    stop = loaded.tokenizer.eos_token_id
    answers, scores = measure.greedy_answers(loaded.model, cast, suffixes, max_tokens, stop)
    return list(zip(answers, scores, strict=True))


def agreement(
    tokens: list[int], log_probs: torch.Tensor, other: Completion
) -> Iterator[tuple[str, float]]:
    """Compare one greedy answer of transformers with vLLM's.

    Parameters
    ----------
    tokens
        transformers' answer.
    log_probs
        What each of its tokens was chosen from, ``(tokens, V)``.
    other
        vLLM's answer with the log-probability of each token.

    Yields
    ------
    tuple
        ``equal``; ``common``, tokens before the first difference; ``max_logprob_difference`` over
        those; and where they differ ``gap``, by how much transformers preferred its own token to
        the one vLLM chose (nats): small at a near-tie.
    """
    common = 0
    for a, b in zip(tokens, other.token_ids, strict=False):
        if a != b:
            break
        common += 1
    equal = tokens == other.token_ids
    yield "equal", float(equal)
    yield "common", common
    chosen = [float(log_probs[i, token]) for i, token in enumerate(tokens[:common])]
    differences = [abs(a - b) for a, b in zip(chosen, other.logprobs, strict=False)]
    yield "max_logprob_difference", max(differences, default=0.0)
    if not equal and common < min(len(tokens), len(other.token_ids)):
        row = log_probs[common]
        yield "gap", float(row[tokens[common]] - row[other.token_ids[common]])


def _stock_rows(engine: VllmEngine, loaded: LoadedModel) -> Iterator[dict[str, Any]]:
    """Say what served: hooks and attention of transformers, backend and code origin of vLLM."""
    import vllm

    config = engine.llm.llm_engine.vllm_config
    layers = list(config.compilation_config.static_forward_context.values())
    home = str(Path(vllm.__file__).parent)
    foreign = sum(1 for _ in foreign_functions(layers, home))
    hooks = sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks)
        for module in loaded.model.modules()
    )
    stock = loaded.model.config._attn_implementation == "sdpa"
    backends = {layer.attn_backend.get_name() for layer in layers}
    yield _row("fold", "engine", "hooks", hooks)
    yield _row("fold", "engine", "stock_transformers", stock)
    yield _row("fold", "engine", "changed_attributes", foreign)
    yield _row("fold", "engine", "stock_vllm", backends <= {"CPU_ATTN", "FLASH_ATTN"})
    yield _row("fold", "engine", "attention_layers", len(layers))


def foreign_functions(layers: Iterable[Any], home: str) -> Iterator[str]:
    """Name the methods of attention layers and their backends whose code lies outside ``home``.

    A replaced or wrapped method carries the file of whoever wrote it. Methods inherited from torch
    are torch's own and are not looked at.
    """
    seen: set[type] = set()
    for layer in layers:
        for owner in (layer, layer.impl, layer.attn_backend):
            kind = owner if isinstance(owner, type) else type(owner)
            if not isinstance(owner, type):
                for name, value in vars(owner).items():
                    if isinstance(value, FunctionType) and not _within(value, home):
                        yield f"{kind.__name__}.{name}"
            if kind in seen:
                continue
            seen.add(kind)
            for base in kind.__mro__:
                if not base.__module__.startswith("vllm."):
                    continue
                for name, value in vars(base).items():
                    function = getattr(value, "__func__", value)
                    if isinstance(function, FunctionType) and not _within(function, home):
                        yield f"{base.__name__}.{name}"


def _within(function: FunctionType, home: str) -> bool:
    """Whether a function was defined in files below ``home`` (generated code has no file)."""
    file = function.__code__.co_filename
    return file.startswith(home) or file.startswith("<")
