"""How to sample, and what comes back: the two value types every engine shares.

Nothing here has a model-dependent default. Models ship a ``generation_config.json`` with a
temperature, a top-k or a repetition penalty of their own, and most libraries apply it silently; an
experiment that compares engines or models must not depend on it, so engines read ``Sampling`` and
nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from replicata.errors import UsageError

MIN_TEMPERATURE = 0.01
"""Smallest temperature above 0; below it vLLM silently samples at this value instead."""


class Sampling(BaseModel):
    """Decoding settings of one call to :meth:`Engine.generate`.

    Attributes
    ----------
    max_tokens
        Most tokens to generate per prompt; a stop token counts as one.
    temperature
        0 is greedy decoding; otherwise in [0.01, 2].
    top_p
        Nucleus: the smallest set of tokens whose probability reaches it. 1 keeps all.
    seed
        Required when ``temperature > 0``. Prompt ``i`` of a call draws from its own stream, see
        :meth:`prompt_seed`.
    stop_token_ids
        Generation ends after any of these, and *only* these: no end-of-sequence token is added
        behind the caller's back. Pass :attr:`LoadedModel.stop_token_ids` for the model's own.
    logprobs
        How many of the most likely tokens to report per position, beside the chosen one.

    Raises
    ------
    UsageError
        For an unknown key, a wrong type, a value out of range, or sampling without a seed.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    max_tokens: int = Field(ge=1)
    temperature: float = Field(default=0.0, ge=0.0, le=2.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=0)
    # Lists (YAML, JSON) are accepted for tuples; the element type stays strict.
    stop_token_ids: tuple[int, ...] = Field(default=(), strict=False)
    logprobs: int = Field(default=0, ge=0)

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"]) or "settings"
            given = f", got {first['input']!r}" if first["loc"] else ""
            message = first["msg"].removeprefix("Value error, ")
            raise UsageError(f"sampling: {key}: {message}{given}") from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE}, "
                f"got {self.temperature}"
            )
        if self.temperature > 0.0 and self.seed is None:
            raise ValueError(
                f"temperature {self.temperature} samples at random, so a seed is required"
            )
        return self

    def prompt_seed(self, index: int) -> int | None:
        """Return the 63-bit seed of the ``index``-th prompt's own random stream.

        Each prompt has its own stream, so that the same prompt given n times yields n independent
        samples, and a prompt's sample does not depend on what else is in the batch.

        Parameters
        ----------
        index
            Position of the prompt in the call, from 0.

        Returns
        -------
        int or None
            ``None`` when decoding greedily.
        """
        if self.temperature == 0.0:
            return None
        assert self.seed is not None  # guaranteed by the validator
        state = np.random.SeedSequence([self.seed, index]).generate_state(1, np.uint64)
        return int(state[0] >> np.uint64(1))


@dataclass(frozen=True)
class Completion:
    """What one prompt was answered with.

    Attributes
    ----------
    token_ids
        Generated ids, including the stop token if one ended the generation.
    text
        The ids decoded, without the stop token and without special tokens.
    logprobs
        Natural-log probability of each generated token under the model's own distribution, that is
        before temperature and top-p. As long as ``token_ids``.
    top_logprobs
        Per position, the ``Sampling.logprobs`` most likely ids with their log-probability, most
        likely first. Empty dicts when ``Sampling.logprobs`` is 0.
    finish_reason
        ``"stop"`` if a stop token ended it, else ``"length"``.
    """

    token_ids: list[int]
    text: str
    logprobs: list[float]
    top_logprobs: list[dict[int, float]]
    finish_reason: Literal["stop", "length"]


def decode(tokenizer: Any, token_ids: Sequence[int], stop_token_ids: Sequence[int]) -> str:
    """Turn generated ids into text, the same way for every engine.

    Parameters
    ----------
    tokenizer
        A transformers tokenizer.
    token_ids
        Generated ids.
    stop_token_ids
        A trailing one of these is left out.
    """
    ids = list(token_ids)
    if ids and ids[-1] in stop_token_ids:
        ids.pop()
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
