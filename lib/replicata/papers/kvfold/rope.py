"""Rotating a folded cache to where the engine will look for it (spec 3.4).

The folded cache has ``t`` entries and stands for ``T`` positions. An engine takes the position of
the next token from the number of cached entries, so that its query sits at ``t + i`` instead of
``T + i``. Rotary embeddings are relative, hence it is enough to rotate the keys once:

    k_serve = R(t - T) K̃,    so    (R(t + i) q)·k_serve = (R(T + i) q)·K̃                      (6)

exact wherever the rotation is by a fixed frequency per pair of dimensions: plain, linear, Llama 3
and YaRN scaling. Where the frequencies depend on the length (dynamic NTK, LongRoPE) there is no
such rotation, and the model is refused. Fold first, rotate after; cast to half precision last.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from replicata.errors import UsageError
from replicata.papers.kvfold.attention import working_dtype

FIXED_FREQUENCIES = ("default", "linear", "llama3", "yarn")

HALF_SPLIT_MODELS = ("llama", "mistral", "phi", "qwen2", "qwen3", "stablelm")
"""Models whose rotary pairs are dimensions (i, i + r/2) of the first r; others pair neighbours, and
a configuration doesn't say which."""


def check_supported(config: Any) -> None:
    """Refuse a model whose cache can't be rotated by equation (6).

    Parameters
    ----------
    config
        A transformers configuration.

    Raises
    ------
    UsageError
        Naming the field of the configuration that is in the way.
    """

    def refuse(field: str, value: object, expected: str) -> None:
        raise UsageError(
            f"{field} of the model {config.model_type!r} is {value!r}, expected {expected}"
        )

    if getattr(config, "kv_lora_rank", None):
        refuse("kv_lora_rank", config.kv_lora_rank, "none: a latent cache has no keys to fold")
    if getattr(config, "alibi", False):
        refuse("alibi", True, "rotary positions")
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layers != {"full_attention"}:
        other = sorted(layers - {"full_attention"})
        refuse("layer_types", other, "full attention in all layers: others drop or merge tokens")
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        refuse("sliding_window", window, "none: a window counts tokens that were compacted away")
    if 0 in (getattr(config, "no_rope_layers", None) or []):
        refuse("no_rope_layers", config.no_rope_layers, "rotary positions in all layers")
    if config.model_type not in HALF_SPLIT_MODELS:
        refuse("model_type", config.model_type, f"one of {', '.join(HALF_SPLIT_MODELS)}")
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type")
    if kind not in FIXED_FREQUENCIES:
        refuse("rope_parameters.rope_type", kind, f"one of {', '.join(FIXED_FREQUENCIES)}")


def inverse_frequencies(config: Any) -> Tensor:
    """Return the rotary frequencies, radians per position, ``(r / 2,)`` float64.

    They are read from the model's own rotary module, built from its configuration: transformers
    keeps the plain frequencies there, and the scaled ones in a table that this module looks up.
    YaRN also scales cached keys by a constant; these keys carry it already.
    """
    module = type(config).__module__.replace(".configuration_", ".modeling_")
    members = vars(import_module(module))
    (rotary,) = [members[name] for name in members if name.endswith("RotaryEmbedding")]
    return rotary(config).inv_freq.double()


def serving_rotation(keys: Tensor, offset: int, config: Any) -> Tensor:
    """Move keys by ``offset`` positions: ``R(offset) k``, equation (6) with ``offset = t - T``.

    Parameters
    ----------
    keys
        After RoPE, ``(..., t, d)``.
    offset
        Positions, negative to move back.
    config
        The model's transformers configuration.

    Returns
    -------
    Tensor
        Same shape, rotated in float64, in the dtype of the keys but at least float32. Dimensions
        that the model does not rotate (partial rotary) are unchanged.

    Raises
    ------
    UsageError
        If the model is not supported, see ``check_supported``.
    """
    check_supported(config)
    angle = offset * inverse_frequencies(config).to(keys.device)
    cos, sin = angle.cos(), angle.sin()
    half = angle.shape[0]
    first, second, rest = keys.double().split([half, half, keys.shape[-1] - 2 * half], dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
    return turned.to(working_dtype(keys))
