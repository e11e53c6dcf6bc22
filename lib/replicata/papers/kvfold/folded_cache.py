"""The folded cache as a file: what one context becomes, and all a serving engine needs of it.

A :class:`FoldedCache` is an ordinary KV cache of ``t`` entries per layer and KV head. Its keys are
the *serving* keys: already rotated by ``t - T`` (spec 3.4, eq. 6), so an engine that knows nothing
of folding continues at position ``t``, as it would after any prompt of ``t`` tokens.

One safetensors file per context: tensors ``k.{layer}`` and ``v.{layer}`` of shape ``(H, t, d)``,
and one metadata entry holding a :class:`CacheRecord`. Files are written whole or not at all, and
none is believed without a check: layout, length, model, and on request its SHA-256.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import DynamicCache

from replicata.errors import RunError
from replicata.papers.kvfold.cache_header import (
    RECORD_KEY,
    CacheHeader,
    CacheMismatchError,
    CacheRecord,
    corrupt,
    missing,
)
from replicata.workflow.files import atomic_write, canonical_json, sha256_bytes


@dataclass(frozen=True)
class FoldedCache:
    """Keys and values of a compacted context, ready to serve.

    Attributes
    ----------
    keys, values
        ``(L, H, t, d)``; the keys rotated by ``t - T`` after folding.
    record
        Where they come from.

    Raises
    ------
    RunError
        If the shapes do not fit, ``t`` exceeds the context's length, or an entry is not finite.
    """

    keys: Tensor
    values: Tensor
    record: CacheRecord

    def __post_init__(self) -> None:
        shape = tuple(self.keys.shape)
        if self.keys.dim() != 4 or shape != tuple(self.values.shape) or 0 in shape:
            raise RunError(
                f"folded cache: keys {shape} and values {tuple(self.values.shape)}, expected two "
                "equal non-empty shapes (layers, KV heads, entries, head dimension)"
            )
        if self.length > self.record.context_length:
            raise RunError(
                f"folded cache: {self.length} entries for a context of "
                f"{self.record.context_length} tokens, expected at most as many"
            )
        for name, tensor in (("keys", self.keys), ("values", self.values)):
            if not tensor.isfinite().all():
                layer = int((~tensor.isfinite()).flatten(1).any(1).nonzero()[0])
                raise RunError(f"folded cache: {name} of layer {layer} are not all finite")

    @property
    def length(self) -> int:
        """Number of entries ``t`` per layer and head."""
        return self.keys.shape[2]

    def save(self, path: Path | str) -> str:
        """Write the cache, whole or not at all, and return the SHA-256 of the file in hex.

        Raises
        ------
        ResourceError
            If the disk is full.
        """
        tensors = {
            f"{name}.{layer}": rows.clone(memory_format=torch.contiguous_format)
            for name, tensor in (("k", self.keys), ("v", self.values))
            for layer, rows in enumerate(tensor.detach().cpu())
        }
        record = canonical_json(self.record.model_dump())
        content = safetensors.torch.save(tensors, metadata={RECORD_KEY: record})
        atomic_write(Path(path), content)
        return sha256_bytes(content)

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        expected_sha256: str | None = None,
        expected_length: int | None = None,
        expected_config_hash: str | None = None,
        expected_fingerprint: str | None = None,
    ) -> Self:
        """Read a cache and check it; ``None`` leaves a check out.

        Raises
        ------
        MissingCacheError
            If there is no readable file.
        CorruptCacheError
            If it is partial, damaged, or no folded cache.
        CacheMismatchError
            If its digest, length, or model differs from what was expected.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise missing(path, error) from error
        if expected_sha256 is not None and (actual := sha256_bytes(content)) != expected_sha256:
            raise CacheMismatchError(
                f"folded cache {path}: its SHA-256 is {actual}, expected {expected_sha256}"
            )
        try:
            tensors = safetensors.torch.load(content)
        except SafetensorError as error:
            raise corrupt(path, error) from error
        # safetensors.torch.load gives no metadata; the header is JSON after its 8-byte length.
        end = 8 + int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8:end]).get("__metadata__", {})
        header = CacheHeader.check(path, {n: tuple(x.shape) for n, x in tensors.items()}, metadata)
        header.expect(
            length=expected_length,
            config_hash=expected_config_hash,
            fingerprint=expected_fingerprint,
        )
        keys, values = (
            torch.stack([tensors[f"{name}.{layer}"] for layer in range(header.shape[0])])
            for name in "kv"
        )
        return cls(keys, values, header.record)

    def to_dynamic_cache(self, batch_size: int = 1) -> DynamicCache:
        """Return the cache for transformers; the next token's position is :attr:`length`.

        Parameters
        ----------
        batch_size
            Rows that continue the same context.
        """
        past = DynamicCache()
        for layer, (k, v) in enumerate(zip(self.keys, self.values, strict=True)):
            past.update(k.expand(batch_size, -1, -1, -1), v.expand(batch_size, -1, -1, -1), layer)
        return past
