"""The fixed agent: a router on a sentence encoder that fills slots and calls tools over MCP.

Its weights and its rules never change. What it does depends on descriptions, schemas, results and
errors alone (spec 3.4).
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from replicata.papers.at_at.encoder import Encodes
from replicata.papers.at_at.shapes import read_shape
from replicata.papers.at_at.slots import best_match, bind
from replicata.papers.at_at.tools import Tool
from replicata.papers.at_at.traces import ErrorKind, Step

#: Calls per request at most.
MAX_CALLS = 3
CALL_TIMEOUT_S = 10.0


class Calls(Protocol):
    """What the agent needs of an MCP client."""

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool; raise ``MCPError`` for a protocol error."""
        ...


@dataclass(frozen=True)
class Run:
    """What the agent did with one request: its steps and its answer (empty if all calls failed)."""

    steps: tuple[Step, ...]
    answer: str


class Router:
    """The agent. ``prefix`` is the agent-side instruction, which only the prompt baseline sets."""

    def __init__(
        self, encoder: Encodes, prefix: str = "", call_timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self.encoder, self.prefix, self.timeout = encoder, prefix, call_timeout_s

    def rank(self, request: str, tools: Sequence[Tool]) -> list[tuple[Tool, float]]:
        """Return the tools by cosine with the request, best first; ties in listing order."""
        query = self.encoder.encode([self.prefix + request])[0]
        vectors = self.encoder.encode([tool.routing_text for tool in tools])
        scores = vectors @ query
        return [(tools[i], float(scores[i])) for i in best_match(query, vectors)]

    async def run(self, client: Calls, tools: Sequence[Tool], request: str) -> Run:
        """Serve one request.

        After a readable error the call is repeated in the shape it states; an error that names
        another tool leads there; after any other error the next tool of the ranking is tried.
        """
        ranked = self.rank(request, tools)
        shown = [(tool.name, round(score, 6)) for tool, score in ranked[:5]]
        known = {tool.name: tool for tool in tools}
        waiting = [tool for tool, _ in ranked]
        tool, hints = waiting.pop(0), {}
        steps: list[Step] = []
        while len(steps) < MAX_CALLS:
            args = bind(request, tool, self.encoder, hints)
            step = await self._call(client, tool, args, shown if not steps else [], len(steps))
            steps.append(step)
            if not step.is_error:
                return Run(tuple(steps), step.result_text)
            learned = _stated_shape(step.result_text, tool)
            if learned and bind(request, tool, self.encoder, {**hints, **learned}) != args:
                hints = {**hints, **learned}
                continue
            named = _named_tool(step.result_text, tool, known)
            hints = {}
            if named is None and not waiting:
                break
            tool = named or waiting.pop(0)
        return Run(tuple(steps), "")

    async def _call(
        self,
        client: Calls,
        tool: Tool,
        args: dict[str, Any],
        ranked: list[tuple[str, float]],
        number: int,
    ) -> Step:
        from mcp.shared.exceptions import MCPError

        started = time.perf_counter()
        kind: ErrorKind | None = None
        try:
            with anyio.fail_after(self.timeout):
                result = await client.call_tool(tool.name, args)
            text = "".join(getattr(block, "text", "") for block in result.content)
            failed = bool(result.is_error)
            if failed:
                kind = "bare" if _is_bare(text, tool.name) else "tool"
        except MCPError:
            text, failed, kind = "", True, "protocol"
        except TimeoutError:
            text, failed, kind = "", True, "timeout"
        return Step(
            i=number,
            tool=tool.name,
            args=args,
            ranked=ranked,
            is_error=failed,
            error_kind=kind,
            result_text=text,
            chars=len(text),
            ms=round(1000 * (time.perf_counter() - started), 3),
        )


def _is_bare(text: str, name: str) -> bool:
    """Say whether an error names no cause: nothing is left without its fixed words."""
    return not re.sub(rf"error|executing|tool|{re.escape(name)}|\W", "", text, flags=re.IGNORECASE)


def _stated_shape(text: str, tool: Tool) -> dict[str, str]:
    """Return the parameter that an error names and the shape it states, or nothing."""
    shape = read_shape(text)
    named = [name for name in tool.params if re.search(rf"\b{re.escape(name)}\b", text)]
    return {named[0]: shape} if shape and named else {}


def _named_tool(text: str, tool: Tool, known: dict[str, Tool]) -> Tool | None:
    others = (name for name in known if name != tool.name)
    return next(
        (known[name] for name in others if re.search(rf"\b{re.escape(name)}\b", text)), None
    )
