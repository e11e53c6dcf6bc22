"""The agent's slots: candidate spans of a request, bound to a tool's parameters."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from replicata.papers.at_at.encoder import Encodes
from replicata.papers.at_at.shapes import CENTS, DATE, read_shape, to_shape
from replicata.papers.at_at.tools import Tool, name_words

_MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
_SPAN = re.compile(
    r"'(?P<quoted>[^']+)'"
    rf"|(?P<date>\d{{4}}-\d\d-\d\d|\d{{1,2}} (?:{_MONTH}) \d{{4}})"
    r"|(?P<decimal>\d+\.\d+)"
    r"|(?P<code>(?:[A-Z]{2,5}-)?\d+)"
)
#: Kinds of spans that a parameter of a JSON type can take.
_TAKES = {
    "string": ("quoted", "date", "code"),
    "number": ("decimal", "code"),
    "integer": ("code",),
}


@dataclass(frozen=True)
class Span:
    """A piece of a request: its text, its kind, and the words around it with its kind inside."""

    text: str
    kind: str
    window: str


def spans(request: str) -> list[Span]:
    """Return quoted texts, dates, numbers and codes, in order.

    >>> [(s.text, s.kind) for s in spans("Move order 1042 to 3 May 2026, 'express'")]
    [('1042', 'code'), ('3 May 2026', 'date'), ('express', 'quoted')]
    """
    found = []
    for match in _SPAN.finditer(request):
        kind = match.lastgroup or "code"
        before = request[: match.start()].split()[-2:]
        word = "number" if kind in ("decimal", "code") else kind
        found.append(Span(match[kind], kind, " ".join([*before, word])))
    return found


def bind(
    request: str, tool: Tool, encoder: Encodes, hints: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return arguments for a tool from a request.

    Spans are assigned to required parameters by the largest total cosine between the span's window
    and the parameter's name and description, among spans of a kind that its type and the shape
    stated in its description can take. A stated shape also formats the value.

    Parameters
    ----------
    hints
        Shapes learned from an error, by parameter; they go before those of descriptions.
    """
    required = [name for name in tool.params if name in tool.required]
    texts = {name: str(tool.params[name].get("description", "")) for name in tool.params}
    shapes = {name: (hints or {}).get(name) or read_shape(texts[name]) for name in tool.params}
    args: dict[str, Any] = _all_rows(tool, texts)
    candidates = spans(request)
    if not required or not candidates:
        return args
    labels = [f"{name_words(name)}: {texts[name]}" for name in required]
    affinity = encoder.encode(labels) @ encoder.encode([span.window for span in candidates]).T
    allowed = np.array(
        [[_takes(tool.params[n], shapes[n], span) for span in candidates] for n in required]
    )
    # A forbidden pair costs more than all allowed ones together.
    rows, columns = linear_sum_assignment(np.where(allowed, -affinity, 10.0))
    for row, column in zip(rows, columns, strict=True):
        if allowed[row, column]:
            name = required[row]
            args[name] = _value(tool.params[name], shapes[name], candidates[column].text)
    return args


def _all_rows(tool: Tool, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return optional parameters whose description says how to get everything."""
    stated = {name: re.search(r"\bUse (\d+) for all\b", text) for name, text in texts.items()}
    return {name: int(match[1]) for name, match in stated.items() if match}


def _takes(schema: Mapping[str, Any], shape: str | None, span: Span) -> bool:
    if span.kind not in _TAKES.get(str(schema.get("type")), ()):
        return False
    if "enum" in schema:
        return span.text.casefold() in {str(item).casefold() for item in schema["enum"]}
    if shape == DATE:
        return span.kind == "date"
    if shape is not None and "-d" in shape:
        return span.kind == "code"
    return True


def _value(schema: Mapping[str, Any], shape: str | None, text: str) -> Any:
    if schema.get("type") in ("number", "integer"):
        if shape == CENTS:
            return to_shape(text, CENTS)
        digits = re.sub(r"[^\d.]", "", text)
        return float(digits) if schema["type"] == "number" else int(float(digits))
    if "enum" in schema:
        return to_shape(text, ", ".join(map(str, schema["enum"])))
    return to_shape(text, shape) if shape is not None else text


def best_match(vector: np.ndarray, vectors: np.ndarray) -> Sequence[int]:
    """Return indices of ``vectors`` by falling cosine with ``vector``; ties in their order."""
    return np.argsort(-(vectors @ vector), kind="stable").tolist()
