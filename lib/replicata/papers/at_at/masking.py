"""Masking the entities of example requests: a shared description must not carry a user's data."""

import re

_QUOTED = re.compile(r"\"[^\"]{1,200}\"|“[^”]{1,200}”|`[^`]{1,200}`|(?<!\w)'[^']{1,200}'(?!\w)")
_ADDRESS = re.compile(r"\b(?:https?://|www\.)\S+|\b[\w.+-]+@[\w-]+\.[\w.]+")
_NUMBER = re.compile(r"[#$€£]?\b[A-Za-z-]*\d[\w.,:/%-]*")
# Capitalised words inside a sentence; "I" and its contractions are no names.
_NAME = re.compile(r"(?<=[\w,;)\]’'] )(?!I\b|I')[A-Z][\w’'.-]*(?:,? [A-Z][\w’'.-]*)*")
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_DATE_WORD = re.compile(rf"\b(?:{_MONTHS})\b")

_ARTICLES = re.compile(r"\b(?:an?|the) (an? (?:value|address|date|number|name)\b)", re.IGNORECASE)


def mask_entities(text: str) -> str:
    """Replace quoted text, addresses, numbers, dates and names by type words.

    >>> mask_entities("Find a dentist near Palo Alto for 3 people on March 4th, 'urgent'")
    'Find a dentist near a name for a number people on a date a number, a value'
    """
    masked = _QUOTED.sub("a value", text)
    masked = _ADDRESS.sub("an address", masked)
    masked = _DATE_WORD.sub("a date", masked)
    masked = _NUMBER.sub(_number, masked)
    masked = " ".join(_NAME.sub("a name", masked).split())
    return _ARTICLES.sub(r"\1", masked)


def _number(match: re.Match[str]) -> str:
    """Keep the punctuation that ends a sentence outside the mask."""
    word = match.group()
    return "a number" + word[len(word.rstrip(".,:")) :]
