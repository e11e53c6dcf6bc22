"""A context and the questions asked about it."""

from dataclasses import dataclass

#: Options of a multiple-choice question that we make ourselves.
OPTIONS = 4
#: Opens the assistant's answer where the data set gives no sentence of its own; a bare option
#: straight after the assistant header scores at chance on small models.
PLAIN_STEM = "According to the text, the answer is"


@dataclass(frozen=True)
class Question:
    """A question about a context.

    Attributes
    ----------
    text
        The question as the user asks it.
    answer
        The reference answer.
    stem
        How the assistant's reply begins when options are scored.
    options
        Answer options, or empty when the question is not multiple choice.
    correct
        Index of the right option, ``-1`` without options.
    """

    text: str
    answer: str
    stem: str = PLAIN_STEM
    options: tuple[str, ...] = ()
    correct: int = -1


@dataclass(frozen=True)
class Context:
    """A text and the questions asked about it; ``name`` is the unit of generalisation."""

    name: str
    text: str
    questions: tuple[Question, ...]
