"""What a folded cache's file says about itself, and whether that is what was asked for.

Only the header is read here, so a scheduler can check a request without touching the tensors.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

from replicata.errors import ResourceError, VerificationError
from replicata.workflow.files import digest

if TYPE_CHECKING:
    from transformers import PretrainedConfig

RECORD_KEY = "folded_cache"


class MissingCacheError(ResourceError):
    """There is no readable file at the path."""


class CorruptCacheError(VerificationError):
    """The file is partial, damaged, or no folded cache."""


class CacheMismatchError(VerificationError):
    """The file is sound, but not the one that was asked for or not made for this model."""


class CacheRecord(BaseModel):
    """What is known about a folded cache beside its tensors.

    Attributes
    ----------
    context_length
        ``T``: how many positions the ``t`` entries stand for.
    model_fingerprint
        SHA-256 over config and weights of the model that computed it.
    config_hash
        :func:`config_hash` of that model; the part an engine can check by itself.
    rope
        :func:`rope_spec` of that model.
    tokenizer_hash
        SHA-256 of the tokenizer that made the context's ids.
    budget
        Share of the context's entries that were kept, in (0, 1].
    query_source
        Which queries the fold was fitted on.
    ridge
        λ relative to tr(M)/d, spec eq. (2).
    epsilon
        Summary of the projection error ``q·u − 1`` on held-out queries.
    format
        Version of the layout.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    context_length: int = Field(ge=1)
    model_fingerprint: str
    config_hash: str
    rope: dict[str, Any]
    tokenizer_hash: str
    budget: float = Field(gt=0.0, le=1.0)
    query_source: str
    ridge: float = Field(ge=0.0)
    epsilon: dict[str, float]
    format: Literal[1] = 1


@dataclass(frozen=True)
class CacheHeader:
    """What a folded cache's file says about itself, read without its tensors.

    Attributes
    ----------
    path
        Where it was read.
    shape
        ``(L, H, t, d)``.
    record
        Its metadata.
    """

    path: str
    shape: tuple[int, int, int, int]
    record: CacheRecord

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a file's header; a file shorter or longer than its header says is an error.

        Raises
        ------
        MissingCacheError
            If there is no readable file.
        CorruptCacheError
            If it is partial, damaged, or no folded cache.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except OSError as error:
            raise missing(path, error) from error
        except SafetensorError as error:
            raise corrupt(path, error) from error
        return cls.check(path, shapes, metadata)

    @classmethod
    def check(
        cls, path: Path | str, shapes: dict[str, tuple[int, ...]], metadata: dict[str, str]
    ) -> Self:
        """Make sense of a file's tensor shapes and metadata.

        Raises
        ------
        CorruptCacheError
            If they are not those of a folded cache.
        """
        layers = len(shapes) // 2
        names = {f"{name}.{layer}" for name in "kv" for layer in range(layers)}
        if RECORD_KEY not in metadata or not names or set(shapes) != names:
            raise CorruptCacheError(
                f"folded cache {path}: expected the metadata {RECORD_KEY!r} and tensors k.0, v.0, "
                f"k.1, ..., found {', '.join(sorted(shapes)[:4]) or 'none'}"
            )
        if len(set(shapes.values())) != 1 or len(shapes["k.0"]) != 3:
            raise CorruptCacheError(
                f"folded cache {path}: tensors of shapes {sorted(set(shapes.values()))}, expected "
                "one shape (KV heads, entries, head dimension)"
            )
        try:
            record = CacheRecord.model_validate_json(metadata[RECORD_KEY])
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise CorruptCacheError(
                f"folded cache {path}: metadata {where or RECORD_KEY}: {first['msg']}, "
                f"got {first['input']!r}"
            ) from error
        return cls(str(path), (layers, *shapes["k.0"]), record)

    def expect(
        self,
        *,
        length: int | None = None,
        config_hash: str | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """Compare with what is needed; ``None`` leaves a check out.

        Raises
        ------
        CacheMismatchError
            Naming the first difference.
        """
        for what, actual, expected in (
            ("entries", self.shape[2], length),
            ("config hash", self.record.config_hash, config_hash),
            ("model fingerprint", self.record.model_fingerprint, fingerprint),
        ):
            if expected is not None and actual != expected:
                raise CacheMismatchError(
                    f"folded cache {self.path}: its {what}: {actual}, expected {expected}"
                )


def rope_spec(config: "PretrainedConfig") -> dict[str, Any]:
    """Return a model's rotary parameters: ``rope_type``, ``rope_theta``, what the type needs."""
    return dict(config.get_text_config(decoder=True).rope_parameters or {})


def config_hash(config: "PretrainedConfig") -> str:
    """Return a SHA-256 over what makes a KV cache fit a model: architecture, sizes and rotation.

    Every engine that opens the model's directory computes the same value. Two models of one
    architecture share it; the model's fingerprint tells those apart.
    """
    text = config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    return digest(
        {
            "model_type": text.model_type,
            "vocab_size": text.vocab_size,
            "hidden_size": text.hidden_size,
            "layers": text.num_hidden_layers,
            "heads": heads,
            "kv_heads": getattr(text, "num_key_value_heads", None) or heads,
            "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
            "rope": rope_spec(config),
        }
    )


def missing(path: Path | str, error: OSError) -> MissingCacheError:
    """Return the error for a file that cannot be opened."""
    return MissingCacheError(
        f"folded cache {path}: cannot be read: {error.strerror or 'no such file'}"
    )


def corrupt(path: Path | str, error: Exception) -> CorruptCacheError:
    """Return the error for a file that safetensors rejects."""
    reason = " ".join(str(error).split())
    return CorruptCacheError(f"folded cache {path}: not a whole folded cache: {reason}")
