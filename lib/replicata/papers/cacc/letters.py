"""The small letter reader: which option a text names as its answer.

math-verify's own letter extraction misses common forms ("The answer is (B)", "Answer: E) 12"), so
letters are read here, and nothing else is.
"""

import re

from replicata.papers.cacc.tasks import LETTERS

_DRESS = r"[\s(\[*_`\"']*"
#: A letter that is no word: "A positive number" and "I think" name no option.
_BARE = r"([A-Z])(?![A-Za-z'])(?!\s+[a-z])"
#: From the most to the least explicit; the first that occurs decides.
_CLAIMS = (
    re.compile(rf"####{_DRESS}(?:option\s+)?{_BARE}", re.IGNORECASE),
    re.compile(
        rf"(?i:answer|option|choice)(?i:\s+is|\s*:)+{_DRESS}(?i:option\s+)?{_BARE}"
        rf"|(?i:option|choice)\s+{_DRESS}{_BARE}"
    ),
    # At the start of a line or in brackets: "(A) or (B)" is no answer.
    re.compile(rf"^{_DRESS}([A-Z])[)\]*_.:]|[(\[*]+([A-Z])[)\]*]+", re.MULTILINE),
    re.compile(rf"\A{_DRESS}([A-Z])[\s.)\]*_`\"']*\Z"),
)


def claimed_letters(text: str) -> list[str]:
    """Return the letters that the most explicit claims of a text name, in order, with repeats."""
    for claims in _CLAIMS:
        found = [next(filter(None, match.groups())) for match in claims.finditer(text)]
        if found:
            return [letter.upper() for letter in found]
    return []


def read_letter(text: str, m: int) -> str | None:
    """Return the one letter that a text claims as final, or None.

    Parameters
    ----------
    text
        What the proposer wrote.
    m
        Number of options; a letter beyond them is no answer.
    """
    letters = set(claimed_letters(text))
    if len(letters) != 1:
        return None
    (letter,) = letters
    return letter if letter in LETTERS[:m] else None
