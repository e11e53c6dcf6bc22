"""The language-model optimiser: a coding agent that reads traces and proposes edits (spec 3.3a).

A minimal loop over any OpenAI-compatible chat endpoint with four tools: list traces, read a trace,
read a tool, propose an edit as a unified diff of one tool. What it proposes is validated against
the edit grammar; nothing else is reachable for it: no file, no network, no held-out data.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError

from replicata.errors import ResourceError, RunError
from replicata.papers.at_at.edits import Edit, Policy, apply_edit, listing_text, static_gate
from replicata.papers.at_at.tools import Tool
from replicata.papers.at_at.traces import Trace

#: Invalid proposals in a row after which the optimiser stops.
PATIENCE = 3
INSTRUCTIONS = """You maintain tools that agents share. Agents cannot be changed; tool descriptions
can. Read the traces of failed runs, find why agents call the wrong tool or give wrong arguments,
and propose few, small edits. Each proposal is a unified diff of one tool's JSON as read_tool shows
it, which changes description texts only, with the ids of the traces that show the need.
Answer with "done" when nothing else is worth an edit."""
_STRING = {"type": "string"}
TOOLS = [
    ("list_traces", "List trace ids with request, outcome and the tools called.", {}),
    ("read_trace", "Read one trace with its evaluation.", {"trace_id": _STRING}),
    ("read_tool", "Read one tool as JSON.", {"name": _STRING}),
    (
        "propose_edit",
        "Propose an edit of one tool.",
        {"name": _STRING, "diff": _STRING, "evidence": {"type": "array", "items": _STRING}},
    ),
]


class Chat(Protocol):
    """An endpoint: messages and tools in, one assistant message out."""

    def __call__(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], seed: int
    ) -> dict[str, Any]:
        """Return ``{"content", "tool_calls": [{"id", "name", "arguments"}]}``."""
        ...


class Endpoint:
    """A chat-completions endpoint by the ``openai`` client."""

    def __init__(self, client: Any, model: str, temperature: float) -> None:
        self.client, self.model, self.temperature = client, model, temperature

    @classmethod
    def open(
        cls, base_url: str, model: str, api_key_env: str | None, temperature: float
    ) -> "Endpoint":
        """Return an endpoint.

        Raises
        ------
        ResourceError
            If the client is not installed, or the variable of the key is not set.
        """
        try:
            import openai
        except ImportError as error:
            raise ResourceError("coder: the package openai is not installed") from error
        # Servers without keys ignore it, but the client insists on one.
        key = "none" if api_key_env is None else os.environ.get(api_key_env)
        if not key:
            raise ResourceError(f"coder: the environment variable {api_key_env} must hold a key")
        return cls(openai.OpenAI(base_url=base_url, api_key=key), model, temperature)

    def __call__(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], seed: int
    ) -> dict[str, Any]:
        """Ask once.

        Raises
        ------
        RunError
            If the endpoint does not answer.
        """
        import openai

        try:
            answer = self.client.chat.completions.create(
                model=self.model,
                messages=messages,
                tools=tools,
                temperature=self.temperature,
                seed=seed,
            )
        except openai.APIError as error:
            reason = " ".join(str(error).split())
            raise RunError(f"coder: the endpoint does not answer: {reason[:200]}") from error
        message = answer.choices[0].message
        calls = [
            {"id": c.id, "name": c.function.name, "arguments": c.function.arguments}
            for c in message.tool_calls or []
        ]
        return {"content": message.content or "", "tool_calls": calls}


@dataclass(frozen=True)
class Coded:
    """The proposed edits, what was invalid and why, the turns used, and how it ended."""

    edits: list[Edit]
    invalid: list[str]
    turns: int
    ended: str


def code(
    chat: Chat,
    traces: Sequence[Trace],
    tools: Sequence[Tool],
    policy: Policy,
    seed: int,
    *,
    turns: int = 40,
) -> Coded:
    """Let a language model propose edits.

    Invalid proposals are logged and skipped; after three in a row the loop stops.
    """
    desk = _Desk(traces, tools, policy)
    specs = [_spec(*tool) for tool in TOOLS]
    messages: list[dict[str, Any]] = [{"role": "system", "content": INSTRUCTIONS}]
    messages.append({"role": "user", "content": "The tools: " + ", ".join(desk.tools)})
    for turn in range(1, turns + 1):
        answer = chat(messages, specs, seed)
        if not answer["tool_calls"]:
            return Coded(desk.edits, desk.invalid, turn, "done")
        messages.append(_assistant(answer))
        for call in answer["tool_calls"]:
            result = desk.call(call["name"], call["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if desk.in_a_row >= PATIENCE:
            return Coded(desk.edits, desk.invalid, turn, f"{PATIENCE} invalid edits in a row")
    return Coded(desk.edits, desk.invalid, turns, "all turns used")


def _spec(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _assistant(answer: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": c["id"],
            "type": "function",
            "function": {"name": c["name"], "arguments": c["arguments"]},
        }
        for c in answer["tool_calls"]
    ]
    return {"role": "assistant", "content": answer["content"], "tool_calls": calls}


class _Desk:
    """The four tools of the coding agent, and what it has proposed so far."""

    def __init__(self, traces: Sequence[Trace], tools: Sequence[Tool], policy: Policy) -> None:
        self.traces = {trace.trace_id: trace for trace in traces}
        self.tools = {tool.name: tool for tool in tools}
        self.policy = policy
        self.edits: list[Edit] = []
        self.invalid: list[str] = []
        self.in_a_row = 0

    def call(self, name: str, arguments: str) -> str:
        known: dict[str, Callable[..., str]] = {
            "list_traces": self._list,
            "read_trace": self._trace,
            "read_tool": self._tool,
            "propose_edit": self._propose,
        }
        try:
            given = json.loads(arguments or "{}")
            return known[name](**given)
        except KeyError as error:
            return f"error: there is no {error}"
        except (TypeError, ValueError) as error:
            return f"error: the arguments of {name} do not fit: {error}"

    def _list(self) -> str:
        return "\n".join(
            f"{key}: {'pass' if t.passed else 'FAIL'} {[s.tool for s in t.steps]} {t.request}"
            for key, t in self.traces.items()
        )

    def _trace(self, trace_id: str) -> str:
        return json.dumps(self.traces[trace_id].to_json(), ensure_ascii=False)

    def _tool(self, name: str) -> str:
        return listing_text([self.tools[name]])

    def _propose(self, name: str, diff: str, evidence: list[str]) -> str:
        problem = self._problem(name, diff, evidence)
        if problem is None:
            self.in_a_row = 0
            return "accepted"
        self.in_a_row += 1
        self.invalid.append(problem)
        return f"error: {problem}"

    def _problem(self, name: str, diff: str, evidence: list[str]) -> str | None:
        if name not in self.tools:
            return f"there is no tool {name!r}"
        unknown = [item for item in evidence if item not in self.traces]
        if unknown or not evidence:
            return f"evidence {unknown or '[]'} names no trace"
        before = self.tools[name]
        try:
            (changed,) = json.loads(apply_diff(listing_text([before]), diff))
            edits = _as_edits(before, changed, tuple(evidence))
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            return f"no valid diff of {name}: {' '.join(str(error).split())[:200]}"
        current = tuple(self.tools.values())
        for edit in edits:
            after = apply_edit(edit, current)
            reason = static_gate(edit, current, after, self.policy)
            if reason:
                return reason
            current = after
        self.tools = {tool.name: tool for tool in current}
        self.edits += edits
        return None


def _as_edits(before: Tool, changed: dict[str, Any], evidence: tuple[str, ...]) -> list[Edit]:
    """Return the edits that a changed tool stands for; anything but texts is refused."""
    edits = []
    new = Tool(changed["name"], changed["description"], changed["inputSchema"], before.wrappers)
    if new.description != before.description:
        edits.append(
            Edit(kind="rewrite", tool=before.name, text=new.description, evidence=evidence)
        )
    for name, schema in before.params.items():
        old, text = schema.get("description", ""), new.params[name].get("description", "")
        if text != old:
            if not text.startswith(old):
                raise ValueError(f"the text of parameter {name} may only be added to")
            added = text[len(old) :].strip()
            edits.append(
                Edit(kind="shape", tool=before.name, param=name, text=added, evidence=evidence)
            )
    (made,) = _applied(edits, before)
    if not edits or made.listing() != new.listing():
        raise ValueError("it changes nothing, or more than description texts")
    return edits


def _applied(edits: Sequence[Edit], tool: Tool) -> tuple[Tool, ...]:
    tools: tuple[Tool, ...] = (tool,)
    for edit in edits:
        tools = apply_edit(edit, tools)
    return tools


_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


def apply_diff(text: str, diff: str) -> str:
    """Apply a unified diff of one file.

    Context and removed lines must be in the text in their order; line numbers in hunk headers are
    not trusted, since language models miscount.

    Raises
    ------
    ValueError
        If there is no hunk, or a line of it is not in the text.
    """
    lines, position, out, hunks = text.splitlines(), 0, [], 0
    for line in diff.splitlines():
        if _HUNK.match(line):
            hunks += 1
        elif hunks and line[:1] in (" ", "-"):
            try:
                found = lines.index(line[1:], position)
            except ValueError:
                raise ValueError(f"the line {line[1:].strip()!r} is not there") from None
            out += lines[position:found] + ([line[1:]] if line[0] == " " else [])
            position = found + 1
        elif hunks and line.startswith("+"):
            out.append(line[1:])
    if not hunks:
        raise ValueError("it has no hunk (a line that starts with @@)")
    return "\n".join([*out, *lines[position:]]) + "\n"
