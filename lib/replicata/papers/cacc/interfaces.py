"""The fixed strict parsers: what the selector reads without any help."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol, get_args

from replicata.errors import UsageError
from replicata.papers.cacc.pool import Asked, Mode
from replicata.papers.cacc.tasks import LETTERS

Style = Literal["hash", "boxed", "letter-first"]
#: The modes that each parser can hand to a selector.
MODES: dict[Style, tuple[Mode, ...]] = {
    "hash": ("number", "letter"),
    "boxed": ("latex",),
    "letter-first": ("letter",),
}
_HASH = re.compile(r"^#### +(.+?) *$", re.MULTILINE)
_NUMBER = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?")
#: Characters of a number.
LONGEST = 400
_LETTER_FIRST = re.compile(r"\A\s*(?:\(([A-Z])\)|([A-Z])[):])")


class ModeMismatch(UsageError):
    """A selector expects a mode that its parser cannot give."""


class Reader(Protocol):
    """What parses values; see `replicata.papers.cacc.grading.Grader`."""

    def parse_keys(self, texts: Sequence[str]) -> list[str | None]:
        """Return the canonical key of each text's final value."""
        ...

    def read(self, asked: Asked, text: str) -> str | None:
        """Return the final answer in the question's mode."""
        ...


@dataclass(frozen=True)
class Interface:
    """A strict parser in front of a selector that expects one mode.

    Raises
    ------
    ModeMismatch
        At construction, if the parser cannot give the mode.
    """

    style: Style
    mode: Mode
    reader: Reader

    def __post_init__(self) -> None:
        if self.style not in MODES:
            raise ModeMismatch(
                f"interface {self.style!r}: unknown, expected one of {', '.join(get_args(Style))}"
            )
        if self.mode not in MODES[self.style]:
            raise ModeMismatch(
                f"interface {self.style}: it gives {' or '.join(MODES[self.style])}, but the "
                f"selector expects {self.mode}"
            )

    def parse(self, asked: Asked, text: str) -> str | None:
        """Return the canonical key that the selector can use, or None."""
        shown = strict(asked, text, self.style)
        if shown is None or self.mode != "latex":
            return shown
        return self.reader.parse_keys([rf"$\boxed{{{shown}}}$"])[0]


def strict(asked: Asked, text: str, style: Style) -> str | None:
    r"""Return what a strict parser reads in a text, or None.

    ``hash``: the first line ``#### X`` with X a plain number or a single letter, as GSM8K's own
    script reads it. ``boxed``: what the last ``\boxed{}`` holds. ``letter-first``: a leading
    ``B)``, ``(B)`` or ``B:``, or a line ``#### B``.
    """
    if style == "boxed":
        return _boxed(text)
    if style == "letter-first":
        match = _LETTER_FIRST.match(text)
        if match:
            return _admissible(asked, match[1] or match[2])
    match = _HASH.search(text)
    if match is None:
        return None
    if asked.mode == "letter":
        return _admissible(asked, match[1]) if len(match[1]) == 1 else None
    # Longer ones are loops of digits, and more than Python converts.
    if len(match[1]) > LONGEST or not _NUMBER.fullmatch(match[1]):
        return None
    return str(Fraction(match[1].replace(",", "")))


def _admissible(asked: Asked, letter: str) -> str | None:
    return letter if letter in LETTERS[: len(asked.options)] else None


def _boxed(text: str) -> str | None:
    """Return the content of the last box, with its braces balanced."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len(r"\boxed{")
    for end in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[begin:end].strip() or None
    return None
