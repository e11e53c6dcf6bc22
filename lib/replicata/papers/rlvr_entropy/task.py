"""The task: two digits in; filler, a marker and the larger digit out; a verifier reads the end.

The filler stands for reasoning: its length is geometric, its words follow Zipf's law, and in the
demonstrations the chance of a right answer depends on its length, so that length and reward
correlate the way a variant wants it. A response is over-long if it has no end token within the
limit; the verifier counts it as wrong.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

PAD, END, MARK, ASK = 0, 1, 2, 3
DIGIT = 4
FILLER = 14
#: A prompt is ASK and two digits.
PROMPT_LENGTH = 3
#: Marker, answer and end token.
TAIL = 3


@dataclass(frozen=True)
class Task:
    """A variant of the task.

    Attributes
    ----------
    fillers
        Number of filler words; the vocabulary has 14 more tokens.
    max_length
        Response tokens, at most.
    mean_filler
        Mean of the geometric filler length in demonstrations.
    right_short, right_long
        Chance of a right answer in a demonstration without filler, and at the longest that fits;
        linear between.
    held_out
        Prompts of the 100 that are never trained on.
    """

    fillers: int
    max_length: int
    mean_filler: float
    right_short: float
    right_long: float
    held_out: int = 20

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return FILLER + self.fillers

    @cached_property
    def _prompts(self) -> tuple[Tensor, Tensor]:
        """All prompts (100, 3), training prompts first; the split is the same for all tasks."""
        digits = np.arange(10) + DIGIT
        pairs = np.stack(np.meshgrid(digits, digits, indexing="ij"), -1).reshape(-1, 2)
        pairs = np.random.default_rng(0).permutation(pairs)
        prompts = torch.tensor(np.concatenate([np.full((100, 1), ASK), pairs], 1))
        return prompts[self.held_out :], prompts[: self.held_out]

    @property
    def train_prompts(self) -> Tensor:
        """Prompts for demonstrations and training, shape (100 - held_out, 3)."""
        return self._prompts[0]

    @property
    def test_prompts(self) -> Tensor:
        """Prompts for held-out accuracy, shape (held_out, 3)."""
        return self._prompts[1]

    def demonstrations(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return sequences (count, 3 + max_length) and the weight mask of their response tokens.

        The weights are 0 at the prompt and at padding, 1 elsewhere, and 2 at the answer: a mark
        for the trainer, which weighs it as it likes. Demonstrations longer than the limit are cut,
        so that the model learns to be over-long at the rate of the geometric distribution.
        """
        limit = self.max_length
        prompts = self.train_prompts[rng.integers(len(self.train_prompts), size=count)]
        length = rng.geometric(1 / (1 + self.mean_filler), size=count) - 1
        zipf = 1 / np.arange(1, self.fillers + 1)
        words = FILLER + rng.choice(self.fillers, size=(count, limit), p=zipf / zipf.sum())
        right = prompts[:, 1:].amax(-1).numpy()
        wrong = DIGIT + (right - DIGIT + rng.integers(1, 10, size=count)) % 10
        position = np.minimum(length / max(limit - TAIL, 1), 1.0)
        chance = self.right_short + (self.right_long - self.right_short) * position
        answer = np.where(rng.random(count) < chance, right, wrong)
        response = np.concatenate([words, np.full((count, TAIL), PAD)], 1)
        weights = np.ones_like(response)
        rows, ends = np.arange(count), np.minimum(length, limit)
        for offset, token in enumerate((np.full(count, MARK), answer, np.full(count, END))):
            response[rows, ends + offset] = token
        after = np.arange(limit + TAIL) >= (ends + TAIL)[:, None]
        response[after], weights[after] = PAD, 0
        weights[rows, ends + 1] = 2
        sequences = torch.cat([prompts, torch.tensor(response[:, :limit])], 1)
        head = torch.zeros(count, PROMPT_LENGTH)
        return sequences, torch.cat([head, torch.tensor(weights[:, :limit]).float()], 1)


def response_mask(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mask (..., L) of tokens up to the first END, and over-long flags (...)."""
    ended = (tokens == END).cumsum(-1)
    mask = (ended == 0) | ((ended == 1) & (tokens == END))
    return mask, ended[..., -1] == 0


def verify(prompts: Tensor, tokens: Tensor) -> Tensor:
    """Return 1.0 where a response ends in marker, larger digit, END; shape (...).

    Parameters
    ----------
    prompts
        (..., 3).
    tokens
        (..., L), responses, padded.
    """
    mask, overlong = response_mask(tokens)
    length = mask.sum(-1, keepdim=True)
    marker, answer = (
        tokens.gather(-1, (length - back).clamp(min=0))[..., 0] for back in (TAIL, TAIL - 1)
    )
    right = prompts[..., 1:].amax(-1)
    ok = (marker == MARK) & (answer == right) & ~overlong & (length[..., 0] >= TAIL)
    return ok.float()
