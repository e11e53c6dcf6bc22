"""The process in which math-verify runs: one JSON request a line in, one answer a line out.

It is killed where it takes too long, since no timeout inside Python stops sympy for certain.
"""

import json
import logging
import re
import sys
from typing import Any

import sympy
from math_verify import parse, verify

#: Two plain numbers with an operator between them: a computation not carried out is no answer.
_OPEN = re.compile(r"[\d.)}]\s*(?:[*/+\u00d7\u00f7-]|\\cdot|\\times|\\div|\\\*)\s*[\d({\\]")
#: A fraction of two whole numbers is a value, as its LaTeX form is.
_FRACTION = re.compile(r"-?\d+\s*/\s*\d+")
_PARSED: dict[str, Any] = {}


def key_of(text: str) -> str | None:
    """Return the canonical key of the final value in a text, or None.

    math-verify finds and parses the value. Of an equation the right side counts, and a product or
    sum of plain numbers that was not computed counts as no value: graded by value alone, a text
    that only repeats the question would be right.
    """
    found = parse(text, parsing_timeout=None)
    if not found or isinstance(found[0], str):
        return None
    value, extracted = found[0], str(found[-1])
    if isinstance(value, sympy.Equality):
        value, extracted = value.rhs, extracted.rsplit("=", 1)[-1]
    if not isinstance(value, sympy.Basic):
        return None
    plain = not value.free_symbols and not _FRACTION.fullmatch(extracted.strip(" ."))
    if plain and _OPEN.search(extracted):
        return None
    if isinstance(value, sympy.Expr) and value.is_number:
        value = sympy.nsimplify(value, rational=True)
        if value.is_finite is False or value.is_real is False:
            return None
    key = str(value)
    _PARSED[key] = value
    return key


def is_equal(gold: str, key: str) -> bool:
    """Return whether a key is the gold answer: gold first, as math-verify wants it."""
    target = key_of(gold) or gold
    if target == key:
        return True
    value = _PARSED.get(key)
    return value is not None and bool(
        verify(_PARSED.get(target, gold), value, timeout_seconds=None)
    )


def main() -> None:
    """Answer requests until the input ends."""
    logging.disable(logging.WARNING)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "key":
                answer = key_of(request["text"])
            else:
                answer = is_equal(request["gold"], request["key"])
        # Whatever a model wrote may break a parser: it is unreadable then, and the worker lives.
        except Exception:
            answer = None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
