"""The KV connector: vLLM loads it by name and calls it; nothing of vLLM is replaced or wrapped.

Written for the connector interface of vLLM 0.32 (``KVConnectorBase_V1``, marked experimental
there). One instance lives beside the scheduler and decides which requests get a cache; one lives in
each worker and writes it into the paged blocks before the forward pass. Loading is synchronous.

How a bad request ends, without harming the others (``kv_load_failure_policy="fail"``):

* found bad by the scheduler's instance (its params, the file's header): it is admitted as an
  asynchronous load of one token that the worker reports as failed, so nothing is computed for it;
* found bad while loading (digest, damage): its blocks are reported invalid.

Either way vLLM ends that request with the finish reason ``error`` and the sentence is logged. An
exception from a scheduler-side method would end the engine and all its requests; it is raised only
where continuing would compute the padding.

On a GPU (read in the sources of vLLM 0.32, not run here): ``FlashAttentionImpl.do_kv_cache_update``
takes the same arguments, splits the block's last dimension into keys and values and scatters with
``reshape_and_cache_flash``, which also applies the scales of an fp8 cache; the default block size
is 16; model runner V2 lists resumed requests among the new ones and reaches ``start_load_kv``
through ``v1/worker/gpu/kv_connector.py``, before the forward pass for synchronous loads. The copies
below are queued on the current stream, in front of the forward pass. Backends that split a
scheduler block into smaller kernel blocks keep the slot numbering ``block * block_size + offset``.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

from replicata.errors import ReplicataError, RunError, UsageError
from replicata.papers.kvfold.cache_header import config_hash
from replicata.papers.kvfold.connector import (
    FINGERPRINT_KEY,
    FoldedRequest,
    layer_index,
    rank_heads,
    slots_for_blocks,
)
from replicata.papers.kvfold.folded_cache import FoldedCache

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = init_logger(__name__)

KEPT_FILES = 4
"""Contexts a worker keeps in memory; the questions of one context mostly arrive together."""


@dataclass(frozen=True)
class Load:
    """A cache to be written into blocks before the next forward pass."""

    request: FoldedRequest
    block_ids: list[int]


@dataclass
class FoldedMetadata(KVConnectorMetadata):
    """What the scheduler's instance tells the workers' for one step.

    Attributes
    ----------
    loads
        Caches to write.
    refused
        Ids of requests that must end with an error.
    """

    loads: list[Load] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)


class FoldedKVConnector(KVConnectorBase_V1):
    """Serves folded caches to an unmodified vLLM (spec 3.5).

    Raises
    ------
    UsageError
        If the engine's settings could turn a failed load into wrong text, or its cache is not one
        plain attention cache per layer.
    """

    def __init__(
        self,
        vllm_config: "VllmConfig",
        role: KVConnectorRole,
        kv_cache_config: "KVCacheConfig",
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _check_engine(vllm_config, kv_cache_config)
        self._block_size: int = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._model = vllm_config.model_config
        self._config_hash = config_hash(self._model.hf_text_config)
        self._fingerprint: str | None = self._kv_transfer_config.get_from_extra_config(
            FINGERPRINT_KEY, None
        )
        self._salted = bool(vllm_config.cache_config.enable_prefix_caching)
        # Scheduler: the last decision on each request, and requests admitted since the last step.
        self._decided: dict[str, FoldedRequest | None] = {}
        self._admitted: dict[str, FoldedRequest | None] = {}
        # Workers.
        self._files: dict[FoldedRequest, FoldedCache] = {}
        self._invalid_blocks: set[int] = set()
        self._refused: set[str] = set()

    # ------------------------------------------------------------------------- scheduler side

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens the request's cache adds to those already computed.

        Called at every attempt to schedule a request that has nothing computed, also after a
        preemption; the last answer counts.

        Raises
        ------
        RunError
            If vLLM would ignore the answer and compute the padding.
        """
        if request.kv_transfer_params is None:
            return 0, False
        if request.skip_reading_prefix_cache:
            raise RunError(
                f"request {request.request_id}: it asks for prompt log-probabilities (or "
                "skip_reading_prefix_cache), for which vLLM computes the whole prompt; a folded "
                "cache has none, expected a request without"
            )
        checked = self._decided[request.request_id] = self._checked(request)
        if checked is None:
            return 1, True  # vLLM's way to end one request: a load that fails, see `refused`.
        return max(checked.length - num_computed_tokens, 0), False

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        """Remember an admitted request until :meth:`build_connector_meta`."""
        if num_external_tokens > 0:
            self._admitted[request.request_id] = self._decided[request.request_id]

    def request_finished(
        self, request: "Request", block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forget the request; its blocks are free at once."""
        self._decided.pop(request.request_id, None)
        return False, None

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        """Return the loads of this step: new requests and those resumed after a preemption.

        Raises
        ------
        RunError
            If a cache would not be loaded although vLLM counts its tokens as computed.
        """
        admitted, self._admitted = self._admitted, {}
        blocks = {new.req_id: new.block_ids for new in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        for req_id, block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if req_id in cached.resumed_req_ids and block_ids is not None:
                blocks[req_id] = block_ids
        metadata = FoldedMetadata()
        for req_id, request in admitted.items():
            if request is None:
                metadata.refused.add(req_id)
            elif req_id in blocks:
                metadata.loads.append(Load(request, list(blocks[req_id][0])))
            else:
                raise RunError(f"request {req_id}: vLLM admitted it but scheduled no load for it")
        return metadata

    def _checked(self, request: "Request") -> FoldedRequest | None:
        """Return the request's checked params, or ``None`` with a logged sentence."""
        try:
            checked = FoldedRequest.parse(request.kv_transfer_params, request.num_prompt_tokens)
            checked.check_file(config_hash=self._config_hash, fingerprint=self._fingerprint)
            if self._salted and request.cache_salt != checked.sha256:
                raise UsageError(
                    f"cache_salt {request.cache_salt!r}: with prefix caching on, requests of "
                    "different contexts would share blocks of padding, expected the cache's sha256"
                )
        except ReplicataError as error:
            logger.error("request %s: %s", request.request_id, error)
            return None
        return checked

    # ---------------------------------------------------------------------------- worker side

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        """Write this step's caches into their blocks; a cache that cannot be read is reported."""
        layers = forward_context.no_compile_layers
        if layers is not self._vllm_config.compilation_config.static_forward_context:
            # vLLM keeps one worker connector per process and would let this one serve the other.
            raise RunError("vLLM: a second engine in this process, expected the first to be closed")
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, FoldedMetadata)
        self._refused |= metadata.refused
        for load in metadata.loads:
            try:
                cache = self._file(load.request)
            except ReplicataError as error:
                logger.error("%s", error)
                used = -(-load.request.length // self._block_size)
                self._invalid_blocks.update(load.block_ids[:used])
            else:
                self._write(cache, load.block_ids, layers)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks whose load failed since the last call."""
        failed, self._invalid_blocks = self._invalid_blocks, set()
        return failed

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return the refused requests, as received and failed."""
        refused, self._refused = self._refused, set()
        return KVConnectorTransferResults(finished_recving=refused, failed_recving=set(refused))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: loading is synchronous."""

    def save_kv_layer(self, layer_name: str, *args: Any, **kwargs: Any) -> None:
        """Do nothing: this connector only loads."""

    def wait_for_save(self) -> None:
        """Do nothing: this connector only loads."""

    def _file(self, request: FoldedRequest) -> FoldedCache:
        """Return a verified cache, from memory if it was read before."""
        if request not in self._files:
            cache = FoldedCache.load(
                request.path,
                expected_sha256=request.sha256,
                expected_length=request.length,
                expected_config_hash=self._config_hash,
                expected_fingerprint=self._fingerprint,
            )
            while len(self._files) >= KEPT_FILES:
                self._files.pop(next(iter(self._files)))
            self._files[request] = cache
        return self._files[request]

    def _write(self, cache: FoldedCache, block_ids: list[int], layers: dict[str, Any]) -> None:
        """Scatter a cache into every attention layer of this worker, by the backend's own update.

        The backend knows its layout (on CPU an order of keys and values that depends on the
        instruction set) and the scales of a quantised cache.
        """
        ranks = self._vllm_config.parallel_config.tensor_parallel_size
        heads = rank_heads(cache.keys.shape[1], get_tensor_model_parallel_rank(), ranks)
        slots = torch.tensor(slots_for_blocks(block_ids, self._block_size, cache.length))
        for name, layer in layers.items():
            if getattr(layer, "kv_cache", None) is None:
                continue
            index, device = layer_index(name), layer.kv_cache.device
            # The model's dtype, as for keys and values the model computes: cast last.
            keys, values = (
                tensor[index, heads].transpose(0, 1).to(device, self._model.dtype).contiguous()
                for tensor in (cache.keys, cache.values)
            )
            layer.impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, slots.to(device))


def _check_engine(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
    """Refuse engine settings under which a folded cache is not served faithfully."""
    policy = vllm_config.kv_transfer_config.kv_load_failure_policy
    if policy != "fail":
        raise UsageError(
            f"kv_load_failure_policy {policy!r}: it would compute the padding of a request whose "
            "cache failed to load and answer from it, expected 'fail'"
        )
    groups = kv_cache_config.kv_cache_groups
    spec = groups[0].kv_cache_spec
    if (
        len(groups) != 1
        or not isinstance(spec, FullAttentionSpec)
        or isinstance(spec, MLAAttentionSpec)
        or spec.sliding_window is not None
        or spec.attention_chunk_size is not None
    ):
        raise UsageError(
            f"model {vllm_config.model_config.model}: {len(groups)} KV cache groups, the first "
            f"{type(spec).__name__}; folded caches need full attention with one key and one value "
            "per head in every layer"
        )
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size != 1:
        raise UsageError("context parallelism: it spreads positions over ranks, expected 1 rank")
    if vllm_config.speculative_config is not None:
        raise UsageError("speculative decoding: the draft model has a cache of its own")
