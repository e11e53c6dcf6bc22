"""The trace miner: a deterministic optimiser, from detectors over traces to typed edits (spec 3.3).

It reads traces and the tool list, and nothing else: no server source, no held-out request, no
catalogue of defects.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from replicata.papers.at_at.edits import Edit
from replicata.papers.at_at.encoder import Encodes
from replicata.papers.at_at.method import MIN_EVIDENCE, example_edits, misrouting
from replicata.papers.at_at.shapes import CAPITALS, CENTS, shape_of, shape_text
from replicata.papers.at_at.tools import Tool
from replicata.papers.at_at.traces import Step, Trace

#: Share of a result's characters above which unused fields are worth cutting.
UNUSED = 0.5
#: Characters a call that cutting must save: a short result is left as it is.
SAVED = 200
ALL_ROWS = 100


@dataclass(frozen=True)
class ToolReport:
    """What the traces say about one tool.

    Attributes
    ----------
    name, calls
        The tool and how often it was called.
    errors
        Failed calls by kind; ``as_text`` counts error texts in successful results.
    misroutes
        Traces in which another tool was called first although this one was expected.
    repeats
        Calls that repeated the arguments of an earlier call of the same trace.
    """

    name: str
    calls: int
    errors: dict[str, int]
    misroutes: int
    repeats: int


def diagnose(traces: Sequence[Trace], tools: Sequence[Tool]) -> list[ToolReport]:
    """Return a report per tool, in listing order."""
    missed = misrouting(traces)
    reports = []
    for tool in tools:
        steps = [step for trace in traces for step in trace.steps if step.tool == tool.name]
        kinds = Counter(kind for kind in map(error_kind, steps) if kind)
        reports.append(
            ToolReport(
                name=tool.name,
                calls=len(steps),
                errors=dict(sorted(kinds.items())),
                misroutes=len(missed[tool.name].misses) if tool.name in missed else 0,
                repeats=sum(step.tool == tool.name for t in traces for step in _repeats(t)),
            )
        )
    return reports


def error_kind(step: Step) -> str | None:
    """Return how a step failed, or None; an error text in a successful result counts."""
    if step.is_error:
        return step.error_kind or "tool"
    return "as_text" if re.match(r"error\b", step.result_text, re.IGNORECASE) else None


def propose(
    traces: Sequence[Trace],
    tools: Sequence[Tool],
    encoder: Encodes,
    *,
    implementations: bool,
) -> list[Edit]:
    """Return the proposed edits: routing first, then arguments, then errors and results."""
    edits = example_edits(traces, tools, encoder)
    edits += shape_edits(traces, tools, implementations=implementations)
    if implementations:
        edits += error_edits(traces, tools)
        edits += trim_edits(traces, tools)
    edits += limit_edits(traces, tools, implementations=implementations)
    return edits + note_edits(traces, tools)


def shape_edits(
    traces: Sequence[Trace], tools: Sequence[Tool], *, implementations: bool
) -> list[Edit]:
    """State the shape of a parameter that agents give in another one.

    Evidence is an expected call of the same tool with another value, or a failed call that a later
    call of the same tool with another value repaired. With implementations allowed, values are also
    brought to the shape before the call, units excepted: 12 may mean euros or cents.
    """
    seen: dict[tuple[str, str], list[tuple[str, Any, Any]]] = {}
    for trace in traces:
        for tool, param, got, wanted in _corrections(trace):
            seen.setdefault((tool, param), []).append((trace.trace_id, got, wanted))
    known = {tool.name: tool for tool in tools}
    edits = []
    for (name, param), found in sorted(seen.items()):
        evidence = tuple(dict.fromkeys(trace for trace, _, _ in found))
        if len(evidence) < MIN_EVIDENCE or name not in known or param not in known[name].params:
            continue
        shape = _common_shape([(got, wanted) for _, got, wanted in found])
        if shape is None:
            continue
        edits.append(
            Edit(kind="shape", tool=name, param=param, text=shape_text(shape), evidence=evidence)
        )
        if implementations and shape != CENTS:
            edits.append(
                Edit(kind="normalise", tool=name, param=param, text=shape, evidence=evidence)
            )
    return edits


def _corrections(trace: Trace) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield tool, parameter, the value given and the value that was right."""
    expected = trace.expected_call
    if expected is not None and trace.steps and trace.steps[0].tool == expected["tool"]:
        given = trace.steps[0].args
        for param, wanted in expected.get("args", {}).items():
            if param in given and given[param] != wanted:
                yield expected["tool"], param, given[param], wanted
        return
    for before, after in zip(trace.steps, trace.steps[1:], strict=False):
        if before.tool == after.tool and before.is_error and not after.is_error:
            for param, wanted in after.args.items():
                if param in before.args and before.args[param] != wanted:
                    yield before.tool, param, before.args[param], wanted


def _common_shape(pairs: Sequence[tuple[Any, Any]]) -> str | None:
    """Return the one shape that all right values have and no given value had, or None."""
    if all(_is_number(got) and _is_number(wanted) for got, wanted in pairs):
        hundredfold = all(abs(100 * got - wanted) < 1e-6 for got, wanted in pairs)
        return CENTS if hundredfold else None
    shapes = {shape_of(wanted) for _, wanted in pairs}
    if len(shapes) == 1 and None not in shapes:
        (shape,) = shapes
        return shape if all(shape_of(got) != shape for got, _ in pairs) else None
    texts = all(isinstance(got, str) and isinstance(wanted, str) for got, wanted in pairs)
    if texts and all(got.upper() == wanted for got, wanted in pairs):
        return CAPITALS
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: How a tool fails, and the wrapper that makes the failure readable.
_ERROR_EDITS = (
    ("bare", "surface_error", "raise a ToolError with the cause"),
    ("as_text", "mark_error", "report the error text as an error"),
    ("protocol", "to_result_error", "return an error result instead of a protocol error"),
)


def error_edits(traces: Sequence[Trace], tools: Sequence[Tool]) -> list[Edit]:
    """Make failures readable where an agent could not read them."""
    edits = []
    for tool in tools:
        for kind, edit, text in _ERROR_EDITS:
            evidence = tuple(
                trace.trace_id
                for trace in traces
                if not trace.passed
                and any(s.tool == tool.name and error_kind(s) == kind for s in trace.steps)
            )
            if len(evidence) >= MIN_EVIDENCE:
                edits.append(Edit(kind=edit, tool=tool.name, text=text, evidence=evidence))
    return edits


def limit_edits(
    traces: Sequence[Trace], tools: Sequence[Tool], *, implementations: bool
) -> list[Edit]:
    """Raise a default limit that cut results short, or say how to get all rows."""
    edits = []
    for tool in tools:
        if "limit" not in tool.params:
            continue
        evidence = tuple(
            trace.trace_id
            for trace in traces
            if not trace.passed and any(s.tool == tool.name and _is_cut(s) for s in trace.steps)
        )
        if len(evidence) < MIN_EVIDENCE:
            continue
        kind, text = (
            ("raise_limit", str(ALL_ROWS))
            if implementations
            else ("shape", f"Use {ALL_ROWS} for all rows.")
        )
        edits.append(Edit(kind=kind, tool=tool.name, param="limit", text=text, evidence=evidence))
    return edits


def _is_cut(step: Step) -> bool:
    result = _json_object(step.result_text)
    return bool(result.get("more")) and not step.args.get("limit")


def trim_edits(traces: Sequence[Trace], tools: Sequence[Tool]) -> list[Edit]:
    """Leave out result fields that no check and no later call ever used, if they are most of it.

    Needs the values that the evaluation expected, hence feedback level ``diff``.
    """
    edits = []
    for tool in tools:
        sizes: Counter[str] = Counter()
        used: set[str] = set()
        evidence = []
        for trace in traces:
            expected = _expected_values(trace)
            for step in trace.steps:
                result = _json_object(step.result_text)
                if step.tool != tool.name or step.is_error or not trace.passed or not expected:
                    continue
                evidence.append(trace.trace_id)
                for key, value in result.items():
                    text = json.dumps(value)
                    sizes[key] += len(text)
                    if any(item in text for item in expected):
                        used.add(key)
        # Flags are kept: they are short, and they may say that a result was cut.
        unused = [k for k in sizes if k not in used and k not in ("id", "more", "done")]
        saved = sum(sizes[key] for key in unused)
        enough = len(evidence) >= MIN_EVIDENCE
        if enough and saved > max(UNUSED * sizes.total(), SAVED * len(evidence)):
            edits.append(
                Edit(
                    kind="trim_output",
                    tool=tool.name,
                    text=",".join(unused),
                    evidence=tuple(dict.fromkeys(evidence)),
                )
            )
    return edits


def _expected_values(trace: Trace) -> list[str]:
    checks = trace.eval.checks if trace.eval else []
    return [str(v) for c in checks if c.name == "values" for v in (c.expected or [])]


def note_edits(traces: Sequence[Trace], tools: Sequence[Tool]) -> list[Edit]:
    """Say that a result is stable where agents ask for it again."""
    edits = []
    for tool in tools:
        evidence = tuple(
            t.trace_id for t in traces if any(s.tool == tool.name for s in _repeats(t))
        )
        if len(evidence) >= MIN_EVIDENCE:
            text = "The result does not change between calls: one call is enough."
            edits.append(Edit(kind="note", tool=tool.name, text=text, evidence=evidence))
    return edits


def _repeats(trace: Trace) -> list[Step]:
    """Return successful calls that repeat the arguments of an earlier successful call."""
    seen: list[tuple[str, dict[str, Any]]] = []
    again = []
    for step in trace.steps:
        if not step.is_error:
            if (step.tool, step.args) in seen:
                again.append(step)
            seen.append((step.tool, step.args))
    return again


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
