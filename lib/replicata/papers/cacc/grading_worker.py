"""The process in which math-verify runs: one JSON request a line in, one answer a line out.

It is killed where it takes too long, since no timeout inside Python stops sympy for certain.
"""

import json
import logging
import re
import resource
import sys
from typing import Any

import sympy
from math_verify import parse, verify

#: Two plain numbers with an operator between them: a computation not carried out is no answer.
_OPEN = re.compile(r"[\d.)}]\s*(?:[*/+\u00d7\u00f7-]|\\cdot|\\times|\\div|\\\*)\s*[\d({\\]")
#: A fraction of two whole numbers is a value, as its LaTeX form is.
_FRACTION = re.compile(r"-?\d+\s*/\s*\d+")
#: Bytes: a tower of powers ends in a MemoryError, not on the machine's last page.
_MEMORY = 4 * 2**30
_PARSED: dict[str, Any] = {}


def key_of(text: str) -> str | None:
    """Return the canonical key of the final value in a text, or None.

    math-verify finds and parses the value. Of an equation the right side counts, and a product or
    sum of plain numbers that was not computed counts as no value: graded by value alone, a text
    that only repeats the question would be right. What cannot be computed further, such as
    ``1 + sqrt(2)``, is a value.
    """
    found = parse(text, parsing_timeout=None)
    if not found or isinstance(found[0], str):
        return None
    value, extracted = found[0], str(found[-1])
    if isinstance(value, sympy.Equality):
        value, extracted = value.rhs, extracted.rsplit("=", 1)[-1]
    if isinstance(value, sympy.MatrixBase):
        value = sympy.ImmutableMatrix(value)
    if not isinstance(value, sympy.Basic):
        return None
    final = value
    if isinstance(value, sympy.Expr) and value.is_number:
        # Before the check below: a decimal point at a sentence's end makes a float.
        final = sympy.nsimplify(value, rational=True)
        if final.is_finite is False or final.is_real is False:
            return None
    plain = not value.free_symbols and not _FRACTION.fullmatch(extracted.strip(" ."))
    irrational = isinstance(final, sympy.Expr) and final.is_rational is False
    if plain and not irrational and _OPEN.search(extracted):
        return None
    # math-verify leaves 10**(-3) and (1 + sqrt(5))/2 as written: equal answers, one key.
    if isinstance(final, sympy.Expr) and not final.is_Rational:
        final = sympy.expand(sympy.simplify(final))
    key = str(final)
    _PARSED[key] = final
    return key


def is_equal(gold: str, key: str, text: str) -> bool:
    """Return whether a key is the gold answer: gold first, as math-verify wants it.

    A worker that was started again has to read ``text``, where the key came from, once more.
    """
    target = key_of(gold) or gold
    if target == key:
        return True
    if key not in _PARSED:
        key_of(text)
    value = _PARSED.get(key)
    return value is not None and bool(
        verify(_PARSED.get(target, gold), value, timeout_seconds=None)
    )


def main() -> None:
    """Say that the imports are done, then answer requests until the input ends."""
    logging.disable(logging.WARNING)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "key":
                answer = key_of(request["text"])
            else:
                answer = is_equal(request["gold"], request["key"], request["text"])
        # Whatever a model wrote may break a parser: it is unreadable then, and the worker lives.
        except Exception:
            answer = None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
