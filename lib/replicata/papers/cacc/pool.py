"""What passes between proposer, interface, selector and grader: questions, candidates, consumables.

Only the grader sees ``Question.gold``: an interface and a selector get the question through
`Asked`, which has no such attribute.
"""

from dataclasses import dataclass
from typing import Literal

#: Modes in which a fixed selector expects an answer.
Mode = Literal["number", "latex", "letter"]


@dataclass(frozen=True)
class Asked:
    """What an interface and a selector may see of a question.

    Attributes
    ----------
    id
        Unique within a pool.
    text
        The question as posed, without format instructions.
    mode
        The mode that the fixed selector expects.
    options
        Texts of the options in order (A, B, ...), empty unless ``mode`` is ``letter``.
    """

    id: str
    text: str
    mode: Mode
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """A question with its gold answer: number, LaTeX or letter; None if unknown."""

    asked: Asked
    gold: str | None


@dataclass(frozen=True)
class Candidate:
    """One sampled text.

    Attributes
    ----------
    text
        What the proposer wrote.
    finished
        Whether it stopped by itself, before the budget of new tokens was used up.
    n_tokens
        Generated tokens.
    sum_logprob
        Sum of the generated tokens' log-probabilities in nats; None if the proposer gave none.
    source
        Which proposer and prompt wrote it, such as ``plain`` or ``enhanced``.
    """

    text: str
    finished: bool
    n_tokens: int
    sum_logprob: float | None
    source: str


@dataclass(frozen=True)
class Consumable:
    """What the fixed selector can use of one candidate.

    Attributes
    ----------
    key
        Canonical answer: equal keys are equal answers.
    parent
        Index of the candidate in its pool.
    ops
        Operators that made it, in order: empty if the strict parser read it, else of ``align``,
        ``repair``, ``placebo``.
    probability
        Of the forced continuation, where ``repair`` made it; None otherwise.
    """

    key: str
    parent: int
    ops: tuple[str, ...] = ()
    probability: float | None = None
