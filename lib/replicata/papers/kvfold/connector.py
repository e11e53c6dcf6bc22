"""Serving folded caches from an unmodified vLLM: what a request says, and what is checked of it.

A request's prompt is ``t`` padding tokens and the question; the connector
(:mod:`replicata.papers.kvfold.vllm_connector`) fills the paged blocks of the padding with the
folded cache, and vLLM computes the rest as after any cached prefix. The padding is never computed:
where a cache cannot be loaded the request ends in an error, since text that continues a prompt of
padding would look like an answer.

This module does not import vLLM. Typical use::

    sha256 = cache.save(path)
    engine = VllmEngine(directory, dtype, max_model_len=n, kv_transfer_config=kv_transfer_config())
    answers = serve(engine, [ServedQuestion(path, cache.length, sha256, ids)], sampling, pad_id=0)
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicata.errors import ReplicataError, RunError, UsageError
from replicata.papers.kvfold.cache_header import CacheHeader, CacheMismatchError, config_hash
from replicata.workflow.files import sha256_file

if TYPE_CHECKING:
    from replicata.inference.sampling import Completion, Sampling
    from replicata.inference.vllm_engine import VllmEngine

CLASS = "FoldedKVConnector"
MODULE = "replicata.papers.kvfold.vllm_connector"
FINGERPRINT_KEY = "model_fingerprint"

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?=\.)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def kv_transfer_config(model_fingerprint: str | None = None) -> dict[str, Any]:
    """Return vLLM's ``kv_transfer_config`` for serving folded caches.

    Parameters
    ----------
    model_fingerprint
        Of the model the engine opens. With it, caches of another model of the same architecture
        (a base model and its instruction-tuned sibling, say) are refused too.
    """
    return {
        "kv_connector": CLASS,
        "kv_connector_module_path": MODULE,
        "kv_role": "kv_consumer",
        # Not "recompute": that would compute the padding and answer from it.
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": (
            {} if model_fingerprint is None else {FINGERPRINT_KEY: model_fingerprint}
        ),
    }


def request_params(path: Path | str, length: int, sha256: str) -> dict[str, Any]:
    """Return one request's ``kv_transfer_params``.

    Parameters
    ----------
    path
        A file written by ``FoldedCache.save``.
    length
        Its number of entries ``t``.
    sha256
        What ``save`` returned.
    """
    return {"path": str(Path(path).resolve()), "len": length, "sha256": sha256}


def pad_prompt(length: int, question_ids: Sequence[int], pad_id: int) -> list[int]:
    """Return the prompt of a request: ``length`` times ``pad_id``, then the question.

    Raises
    ------
    UsageError
        If there is no entry to load or no question token to compute.
    """
    if length < 1:
        raise UsageError(f"folded cache: {length} entries, expected at least 1")
    if not question_ids:
        raise UsageError("folded cache: the question has no tokens, expected at least 1 to compute")
    return [pad_id] * length + list(question_ids)


@dataclass(frozen=True)
class FoldedRequest:
    """A request's checked ``kv_transfer_params``.

    Attributes
    ----------
    path
        The folded cache's file.
    length
        Number of entries ``t``; the prompt begins with as many padding tokens.
    sha256
        Of the file, hex.
    """

    path: str
    length: int
    sha256: str

    @classmethod
    def parse(cls, params: Any, prompt_length: int) -> "FoldedRequest":
        """Check what a request says against its prompt.

        Raises
        ------
        UsageError
            For a missing, unknown or mistyped key, ``len`` below 1, or a prompt that leaves no
            token to compute.
        """
        keys = {"path", "len", "sha256"}
        if not isinstance(params, Mapping) or set(params) != keys:
            found = sorted(map(str, params)) if isinstance(params, Mapping) else repr(params)
            raise UsageError(f"kv_transfer_params: {found}, expected exactly {sorted(keys)}")
        path, length, sha256 = params["path"], params["len"], params["sha256"]
        if not isinstance(path, str) or not path:
            raise UsageError(f"kv_transfer_params: path {path!r}, expected a file name")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise UsageError(f"kv_transfer_params: sha256 {sha256!r}, expected 64 hex digits")
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise UsageError(f"kv_transfer_params: len {length!r}, expected an integer >= 1")
        if length >= prompt_length:
            raise UsageError(
                f"kv_transfer_params: len {length} and a prompt of {prompt_length} tokens, "
                "expected at least one token more than the cache has entries"
            )
        return cls(path, length, sha256)

    def check_file(self, *, config_hash: str, fingerprint: str | None) -> CacheHeader:
        """Check the file's header; the digest is checked by whoever reads the tensors.

        Parameters
        ----------
        config_hash
            Of the engine's model.
        fingerprint
            Of the engine's model, if it is known.

        Raises
        ------
        MissingCacheError, CorruptCacheError, CacheMismatchError
            As for ``FoldedCache.load``.
        """
        header = CacheHeader.read(self.path)
        header.expect(length=self.length, config_hash=config_hash, fingerprint=fingerprint)
        return header


@dataclass(frozen=True)
class ServedQuestion:
    """A question to a folded context.

    Attributes
    ----------
    path, length, sha256
        As for :func:`request_params`.
    question_ids
        Token ids of what follows the context.
    """

    path: Path | str
    length: int
    sha256: str
    question_ids: Sequence[int]


def serve(
    engine: "VllmEngine", questions: Sequence[ServedQuestion], sampling: "Sampling", *, pad_id: int
) -> list["Completion"]:
    """Answer questions from folded caches, in one batch.

    Every file is checked before anything is submitted, so that a bad one ends in a sentence about
    that question. The connector checks again: a file may change in between.

    Parameters
    ----------
    engine
        Started with :func:`kv_transfer_config`.
    questions
        Of any number of contexts.
    sampling
        Decoding settings.
    pad_id
        Any id of the vocabulary.

    Raises
    ------
    UsageError, MissingCacheError, CorruptCacheError, CacheMismatchError
        Naming the question's index, the file, and what is wrong.
    RunError
        If the engine fails, or runs without the connector.
    """
    if engine.llm is None:
        raise RunError("vLLM engine: it is closed, so it cannot generate")
    transfer = engine.llm.llm_engine.vllm_config.kv_transfer_config
    if transfer is None or transfer.kv_connector != CLASS:
        raise RunError(f"vLLM engine: started without {CLASS}, expected kv_transfer_config()")
    model = config_hash(engine.llm.model_config.hf_text_config)
    fingerprint = transfer.kv_connector_extra_config.get(FINGERPRINT_KEY)
    prompts, transfers = [], []
    digests: dict[str, str] = {}
    for index, question in enumerate(questions):
        params = request_params(question.path, question.length, question.sha256)
        try:
            prompt = pad_prompt(question.length, question.question_ids, pad_id)
            request = FoldedRequest.parse(params, len(prompt))
            request.check_file(config_hash=model, fingerprint=fingerprint)
            if request.path not in digests:
                digests[request.path] = sha256_file(Path(request.path))
            if digests[request.path] != request.sha256:
                raise CacheMismatchError(
                    f"folded cache {request.path}: its SHA-256 is {digests[request.path]}, "
                    f"expected {request.sha256}"
                )
        except ReplicataError as error:
            raise type(error)(f"question {index}: {error}") from error
        prompts.append(prompt)
        transfers.append(params)
    return engine.generate(prompts, sampling, kv_transfer_params=transfers)


def slots_for_blocks(block_ids: Sequence[int], block_size: int, length: int) -> list[int]:
    """Return the cache slots of the first ``length`` positions of a request.

    A request's position ``p`` lies in its block number ``p // block_size``; blocks need not be
    consecutive, and the last may be filled in part.

    Examples
    --------
    >>> slots_for_blocks([7, 3], block_size=4, length=6)
    [28, 29, 30, 31, 12, 13]

    Raises
    ------
    RunError
        If the blocks are too few.
    """
    if length > len(block_ids) * block_size:
        raise RunError(
            f"folded cache: {length} entries do not fit the request's {len(block_ids)} blocks of "
            f"{block_size}"
        )
    return [block_ids[p // block_size] * block_size + p % block_size for p in range(length)]


def layer_index(name: str) -> int:
    """Return the layer number in a name such as ``"model.layers.12.self_attn.attn"``.

    Raises
    ------
    RunError
        If there is none, or more than one.
    """
    numbers = _LAYER.findall(name)
    if len(numbers) != 1:
        raise RunError(f"attention layer {name!r}: expected one layer number, as in 'layers.12.'")
    return int(numbers[0])


def rank_heads(heads: int, rank: int, ranks: int) -> slice:
    """Return the KV heads of one tensor-parallel rank.

    With fewer heads than ranks vLLM gives each head to several ranks.

    Examples
    --------
    >>> rank_heads(8, 1, 2), rank_heads(2, 3, 4)
    (slice(4, 8, None), slice(1, 2, None))

    Raises
    ------
    RunError
        If neither number divides the other.
    """
    if heads % ranks == 0:
        share = heads // ranks
        return slice(rank * share, (rank + 1) * share)
    if ranks % heads == 0:
        head = rank // (ranks // heads)
        return slice(head, head + 1)
    raise RunError(f"folded cache: {heads} KV heads cannot be split over {ranks} ranks")
