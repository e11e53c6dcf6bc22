"""What the proposer is asked: the selector's format, plainly or by an example (spec 3.3, PE)."""

from typing import Literal

from replicata.papers.cacc.pool import Asked
from replicata.papers.cacc.tasks import LETTERS

PromptStyle = Literal["plain", "enhanced"]

_FORMAT = {
    "number": "End with a line of the form: #### <answer>",
    "latex": r"Put the final answer in \boxed{}.",
    "letter": "End with a line of the form: #### <letter>",
}
#: One worked example in the selector's format; no family contains its question.
_EXAMPLE = {
    "number": ("What is 140 + 25 - 3?", "140 + 25 = 165\n165 - 3 = 162\n#### 162"),
    "latex": (r"Compute $20 \cdot 15$.", r"$20 \cdot 15 = 300$, so the answer is \boxed{300}."),
    "letter": ("What is 120 + 30?\nA) 155\nB) 150\nC) 145\nD) 130", "#### B"),
}
_ENHANCED = {
    "number": "Answer as in the example, and end with a line of the form: #### <answer>",
    "latex": r"Answer as in the example, with the final answer in \boxed{}.",
    "letter": "Answer with the letter only, as in the example.",
}
#: What the forced continuation begins with: the selector's expected prefix.
FORCED = {
    "number": "\n#### ",
    "latex": "\n\\boxed{",
    "letter": "\nThe correct option is (",
}


def posed(asked: Asked) -> str:
    """Return the question with its options, one a line."""
    lines = [f"{LETTERS[i]}) {option}" for i, option in enumerate(asked.options)]
    return "\n".join([asked.text, *lines])


def messages(asked: Asked, style: PromptStyle) -> list[dict[str, str]]:
    """Return the chat that the proposer continues.

    Parameters
    ----------
    asked
        The question; its mode decides the format asked for.
    style
        ``plain``: the instruction alone. ``enhanced``: the mode's own instruction after a worked
        example in the selector's format; for letters the answer alone is asked for.
    """
    if style == "plain":
        return [{"role": "user", "content": f"{posed(asked)}\n{_FORMAT[asked.mode]}"}]
    question, answer = _EXAMPLE[asked.mode]
    instruction = _ENHANCED[asked.mode]
    return [
        {"role": "user", "content": f"{question}\n{instruction}"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": f"{posed(asked)}\n{instruction}"},
    ]


def verdict_messages(asked: Asked, answer: str) -> list[dict[str, str]]:
    """Return the verifier's chat: is this answer correct? (P(True), Kadavath et al. 2022)."""
    return [
        {"role": "user", "content": f"{posed(asked)}\nIs the answer {answer} correct? Yes or No?"}
    ]
