"""Shapes of values: the common language of descriptions, errors, the agent and the miner.

A shape is ``dddd-dd-dd`` (a digit per d), ``ORD-dddd`` (a prefix and digits), ``cents``,
``capitals``, or a list of accepted words ``A, B, C``.
"""

import re
from datetime import datetime
from typing import Any

DATE = "dddd-dd-dd"
CENTS = "cents"
CAPITALS = "capitals"
_SENTENCES = {CENTS: "In cents.", CAPITALS: "In capitals."}
_DATE_FORMS = ("%Y-%m-%d", "%d %B %Y", "%B %d, %Y", "%B %d %Y", "%d/%m/%Y", "%d.%m.%Y")


def shape_of(value: Any) -> str | None:
    """Return the shape of a value with digits, or None.

    >>> shape_of("ORD-1042"), shape_of("2026-05-03"), shape_of("EXPRESS")
    ('ORD-dddd', 'dddd-dd-dd', None)
    """
    text = str(value)
    if not re.fullmatch(r"(?:[A-Za-z]+-)?[\d-]*\d", text):
        return None
    return re.sub(r"\d", "d", text)


def to_shape(value: Any, shape: str) -> Any:
    """Return a value brought to a shape where that is possible, and as it is otherwise.

    >>> to_shape("3 May 2026", "dddd-dd-dd"), to_shape("1042", "ORD-dddd")
    ('2026-05-03', 'ORD-1042')
    >>> to_shape("express", "EXPRESS, STANDARD"), to_shape("12.50", "cents")
    ('EXPRESS', 1250)
    """
    text = str(value).strip()
    if shape == CENTS:
        return round(float(text) * 100)
    if shape == CAPITALS:
        return text.upper()
    if shape == DATE:
        return iso_date(text) or value
    prefixed = re.fullmatch(r"([A-Za-z]+-)(d+)", shape)
    if prefixed:
        digits = re.search(rf"(?<!\d)\d{{{len(prefixed[2])}}}(?!\d)", text)
        return prefixed[1] + digits.group() if digits else value
    words = {word.casefold(): word for word in shape.split(", ")}
    return words.get(text.casefold(), value)


def iso_date(text: str) -> str | None:
    """Return a date written in a usual form as ``YYYY-MM-DD``, or None."""
    for form in _DATE_FORMS:
        try:
            return datetime.strptime(text, form).date().isoformat()
        except ValueError:
            continue
    return None


def shape_text(shape: str) -> str:
    """Return what a parameter's description says about a shape.

    >>> shape_text("ORD-dddd"), shape_text("A, B"), shape_text("cents")
    ('Shape: ORD-dddd.', 'One of: A, B.', 'In cents.')
    """
    if shape in _SENTENCES:
        return _SENTENCES[shape]
    return f"Shape: {shape}." if "d" in shape and "-d" in shape else f"One of: {shape}."


def read_shape(text: str) -> str | None:
    """Return the shape that a description or an error text states, or None.

    >>> read_shape("The order. Shape: ORD-dddd."), read_shape("expected one of A, B")
    ('ORD-dddd', 'A, B')
    """
    for shape in _SENTENCES:
        if re.search(rf"\bin {shape}\b", text, re.IGNORECASE):
            return shape
    stated = re.search(r"\bshape:? ((?:[A-Za-z]+-)?[d-]*d)\b", text, re.IGNORECASE)
    if stated:
        return stated[1]
    listed = re.search(r"\bone of:? ([\w-]+(?:, [\w-]+)*)", text, re.IGNORECASE)
    return listed[1] if listed else None
