"""Inference by transformers' own ``generate``: the reference engine, and the one for custom models.

Sampling draws by the Gumbel-max trick: for logits z and temperature T, the argmax of z/T + g with
independent standard Gumbel noise g is distributed as softmax(z/T). The noise of each prompt comes
from a generator of its own, so a sample depends on neither the batch nor the global random state,
and ``generate`` itself always takes the argmax.
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from replicata.errors import RunError
from replicata.inference.engine import ClosesOnExit, check_prompts
from replicata.inference.sampling import Completion, Sampling, decode
from replicata.models import LoadedModel


class TransformersEngine(ClosesOnExit):
    """``transformers`` behind the :class:`~replicata.inference.engine.Engine` interface.

    Parameters
    ----------
    loaded
        Model and tokenizer. The model stays the caller's: closing the engine only lets go of it.
    batch_size
        Most prompts computed at once. Shorter prompts of a batch are padded on the left.
    """

    def __init__(self, loaded: LoadedModel, *, batch_size: int = 16) -> None:
        self._loaded: LoadedModel | None = loaded
        self._batch_size = batch_size

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Continue each prompt; see :meth:`Engine.generate`."""
        if self._loaded is None:
            raise RunError("transformers engine: it is closed, so it cannot generate")
        model = self._loaded.model
        check_prompts(
            prompts,
            sampling,
            vocab_size=model.get_input_embeddings().num_embeddings,
            max_length=model.config.get_text_config().max_position_embeddings,
        )
        completions: list[Completion] = []
        with _blank_generation_config(model):
            for start in range(0, len(prompts), self._batch_size):
                batch = prompts[start : start + self._batch_size]
                completions += _generate_batch(self._loaded, batch, sampling, start)
        return completions

    def close(self) -> None:
        """Let go of the model."""
        self._loaded = None


def _generate_batch(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], sampling: Sampling, first: int
) -> list[Completion]:
    """Continue one batch; ``first`` is the index of its first prompt in the whole call."""
    model = loaded.model
    longest = max(len(prompt) for prompt in prompts)
    # The padding id is arbitrary: it is masked in the prompt, and cut off after the completion.
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.as_tensor(prompt)
        mask[row, longest - len(prompt) :] = 1

    recorder = _LogprobRecorder(sampling.logprobs)
    processors: list[LogitsProcessor] = [recorder]
    if sampling.temperature > 0.0:
        processors.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_p < 1.0:
            processors.append(TopPLogitsWarper(sampling.top_p))
        seeds = [sampling.prompt_seed(first + row) for row in range(len(prompts))]
        processors.append(_GumbelNoise(seeds, model.device))
    config = GenerationConfig(
        max_new_tokens=sampling.max_tokens,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        pad_token_id=0,
        eos_token_id=list(sampling.stop_token_ids) or None,
    )
    try:
        sequences = model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=config,
            logits_processor=LogitsProcessorList(processors),
        )
    except RuntimeError as error:
        raise RunError(
            f"transformers engine: generation failed: {' '.join(str(error).split())}"
        ) from error
    recorder.finish(sequences)

    completions = []
    for row in range(len(prompts)):
        tokens = _cut(sequences[row, longest:].tolist(), sampling.stop_token_ids)
        completions.append(
            Completion(
                token_ids=tokens,
                text=decode(loaded.tokenizer, tokens, sampling.stop_token_ids),
                logprobs=recorder.chosen(row, len(tokens)),
                top_logprobs=recorder.top(row, len(tokens)),
                finish_reason="stop" if tokens[-1] in sampling.stop_token_ids else "length",
            )
        )
    return completions


def _cut(tokens: list[int], stop_token_ids: Sequence[int]) -> list[int]:
    """Return the tokens up to and including the first stop token; what follows is padding."""
    for position, token in enumerate(tokens):
        if token in stop_token_ids:
            return tokens[: position + 1]
    return tokens


class _LogprobRecorder(LogitsProcessor):
    """Notes log-probabilities as ``generate`` passes by, and changes nothing.

    It must come first, to see the model's own logits. ``generate`` could return the logits of all
    steps, but at a real vocabulary that is gigabytes; this keeps one step's, and per step the
    chosen token's value and the ``top`` largest.
    """

    def __init__(self, top: int) -> None:
        self._top = top
        self._last: torch.Tensor | None = None  # (batch, vocabulary), of the latest step
        self._chosen: list[torch.Tensor] = []  # per step (batch, 1)
        self._top_values: list[torch.Tensor] = []  # per step (batch, top)
        self._top_ids: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Record one step. Shapes: ids (batch, length), scores (batch, vocabulary)."""
        self._note_choice(input_ids)
        self._last = torch.log_softmax(scores.float(), dim=-1)
        if self._top:
            values, ids = self._last.topk(self._top, dim=-1)
            self._top_values.append(values)
            self._top_ids.append(ids)
        return scores

    def _note_choice(self, input_ids: torch.Tensor) -> None:
        """Note the token chosen in the latest step: the last one now. Shape: (batch, length)."""
        if self._last is not None:
            self._chosen.append(self._last.gather(1, input_ids[:, -1:]))

    def finish(self, sequences: torch.Tensor) -> None:
        """Note the choice of the last step and collect. Shape: (batch, full length)."""
        self._note_choice(sequences)
        self._chosen_table = torch.cat(self._chosen, dim=1).tolist()
        if self._top:
            self._value_table = torch.stack(self._top_values, dim=1).tolist()
            self._id_table = torch.stack(self._top_ids, dim=1).tolist()

    def chosen(self, row: int, length: int) -> list[float]:
        """Return the chosen tokens' log-probabilities of one prompt."""
        return self._chosen_table[row][:length]

    def top(self, row: int, length: int) -> list[dict[int, float]]:
        """Return the most likely ids of one prompt, per position."""
        if not self._top:
            return [{} for _ in range(length)]
        return [
            dict(zip(self._id_table[row][step], self._value_table[row][step], strict=True))
            for step in range(length)
        ]


class _GumbelNoise(LogitsProcessor):
    """Adds standard Gumbel noise to the scores, each row from its own generator."""

    def __init__(self, seeds: Sequence[int | None], device: torch.device) -> None:
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return noisy scores (batch, vocabulary), float64 so that no noise is infinite."""
        noise = torch.empty(scores.shape, dtype=torch.float64, device=scores.device)
        for row, generator in enumerate(self._generators):
            noise[row].exponential_(generator=generator)
        return scores.double() - noise.log_()


@contextlib.contextmanager
def _blank_generation_config(model: PreTrainedModel) -> Iterator[None]:
    """Hide the model's ``generation_config``, from which transformers fills what is left unset."""
    shipped = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = shipped
