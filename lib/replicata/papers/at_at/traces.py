"""Traces: what one run of the agent left, with its evaluation; one JSON line each.

The schema is ours; ``expected`` of a check is there at feedback level ``diff`` only.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replicata.errors import UsageError
from replicata.papers.at_at.tools import Tool, tools_sha256
from replicata.workflow.files import atomic_write, canonical_json

ErrorKind = Literal["tool", "bare", "protocol", "as_text", "timeout"]
Feedback = Literal["diff", "passfail"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(_Part):
    """One tool call; ``ranked`` is the agent's own ranking at that point, best first."""

    i: int
    tool: str
    args: dict[str, Any] = {}
    ranked: list[tuple[str, float]] = []
    is_error: bool = False
    error_kind: ErrorKind | None = None
    result_text: str = ""
    chars: int = 0
    ms: float = 0.0


class Check(_Part):
    """One check of the evaluation: ``{"tool", "args"}`` in ``expected`` for a check of a call."""

    name: str
    ok: bool
    expected: Any = None
    got: Any = None


class Evaluation(_Part):
    """Whether the run passed, and its checks."""

    passed: bool = Field(alias="pass")
    checks: list[Check] = []


class Final(_Part):
    """The answer, and a digest of the state the run left."""

    answer: str = ""
    state_sha256: str = ""


class Trace(_Part):
    """One run of the agent on one task."""

    trace_id: str
    server: str
    tools_sha256: str
    agent: dict[str, Any] = {}
    task_id: str
    split: str = "train"
    request: str
    steps: list[Step] = []
    final: Final = Final()
    eval: Evaluation | None = None
    cost: dict[str, int] = {}

    @property
    def passed(self) -> bool:
        """Whether the run passed."""
        return self.eval is not None and self.eval.passed

    @property
    def first_tool(self) -> str | None:
        """The tool that was called first."""
        return self.steps[0].tool if self.steps else None

    @property
    def expected_call(self) -> dict[str, Any] | None:
        """The expected call ``{"tool", "args"}``; None at feedback level ``passfail``."""
        for check in self.eval.checks if self.eval else ():
            if isinstance(check.expected, dict) and "tool" in check.expected:
                return check.expected
        return None

    def at_level(self, feedback: Feedback) -> "Trace":
        """Return the trace as it would be at a level of feedback."""
        if feedback == "diff" or self.eval is None:
            return self
        evaluation = Evaluation.model_validate({"pass": self.passed})
        return self.model_copy(update={"eval": evaluation})

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, with the schema's own names."""
        return self.model_dump(mode="json", by_alias=True)


def read_traces(path: Path) -> list[Trace]:
    """Read traces from JSON lines.

    Raises
    ------
    UsageError
        If the file is missing, a line is no trace, or a trace is there twice; the sentence names
        file, line and key.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file, expected traces as JSON lines") from None
    traces: dict[str, Trace] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            trace = Trace.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"])) or "the whole line"
            raise UsageError(f"{path.name}, line {number}: {key}: {first['msg']}") from None
        if trace.trace_id in traces:
            raise UsageError(f"{path.name}, line {number}: trace_id {trace.trace_id!r} is twice")
        traces[trace.trace_id] = trace
    return list(traces.values())


def write_traces(path: Path, traces: Iterable[Trace]) -> None:
    """Write traces as JSON lines, whole or not at all."""
    atomic_write(path, "".join(canonical_json(trace.to_json()) + "\n" for trace in traces))


def check_traces(
    traces: Sequence[Trace], tools: Sequence[Tool], *, allow_drift: bool = False
) -> None:
    """Check that traces can be learned from.

    Raises
    ------
    UsageError
        If there is none, one has no evaluation, calls a tool the server lacks, or comes from
        another tool list (unless ``allow_drift``).
    """
    if not traces:
        raise UsageError("no traces: AT-AT needs at least one, with its evaluation")
    names, listed = {tool.name for tool in tools}, tools_sha256(tools)
    for trace in traces:
        if trace.eval is None:
            raise UsageError(
                f"trace {trace.trace_id} has no evaluation; AT-AT needs pass/fail (key eval.pass)"
            )
        if trace.tools_sha256 != listed and not allow_drift:
            raise UsageError(
                f"trace {trace.trace_id} comes from another tool list "
                f"({trace.tools_sha256[:12]}…, the server lists {listed[:12]}…); give "
                "--allow-drift to use it all the same"
            )
        for step in trace.steps:
            if step.tool not in names:
                raise UsageError(
                    f"trace {trace.trace_id} calls tool {step.tool!r}, which the server lacks"
                )
