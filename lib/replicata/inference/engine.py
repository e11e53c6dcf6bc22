"""The one interface of all inference engines."""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from replicata.errors import UsageError
from replicata.inference.sampling import Completion, Sampling


class Engine(Protocol):
    """Something that continues prompts given as token ids.

    Engines are context managers; leaving the context closes them. For equal weights and dtype, and
    for prompts given as ids, greedy decoding agrees between engines up to near-ties in floating
    point. Random samples are reproducible within an engine, not across engines.
    """

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Continue each prompt.

        Parameters
        ----------
        prompts
            Token ids, one non-empty sequence per prompt; no padding.
        sampling
            Decoding settings, used for all prompts.

        Returns
        -------
        list of Completion
            In the order of ``prompts``.

        Raises
        ------
        UsageError
            For an empty prompt, an id outside the vocabulary, or a prompt that leaves no room for
            ``sampling.max_tokens``.
        RunError
            If the engine fails while generating, or has been closed.
        """
        ...

    def close(self) -> None:
        """Free what the engine holds. Closing twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class ClosesOnExit:
    """Mix-in: entering a context gives the engine itself, leaving it closes the engine."""

    def close(self) -> None:
        """Free what the engine holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return the engine."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the engine, whatever happened inside the context."""
        self.close()


def check_prompts(
    prompts: Sequence[Sequence[int]], sampling: Sampling, *, vocab_size: int, max_length: int
) -> None:
    """Refuse prompts that an engine would truncate, misread or crash on.

    Parameters
    ----------
    prompts
        Token ids.
    sampling
        For ``max_tokens`` and ``stop_token_ids``.
    vocab_size
        Number of rows of the model's embedding.
    max_length
        Most positions the engine holds per sequence, prompt and completion together.

    Raises
    ------
    UsageError
        Naming the prompt's index and what is wrong with it.
    """
    for index, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise UsageError(f"prompt {index}: it is empty, expected at least one token id")
        smallest, largest = min(prompt), max(prompt)
        if smallest < 0 or largest >= vocab_size:
            wrong = smallest if smallest < 0 else largest
            raise UsageError(
                f"prompt {index}: token id {wrong} is outside the vocabulary of {vocab_size}"
            )
        if len(prompt) + sampling.max_tokens > max_length:
            raise UsageError(
                f"prompt {index}: {len(prompt)} tokens and max_tokens {sampling.max_tokens} "
                f"exceed the engine's {max_length} positions"
            )
