"""Serving tools over MCP: S2's servers in-process or by stdio, and listing any server's tools.

``python -m replicata.papers.at_at.serving orders`` serves one of the three by stdio.
"""

import inspect
import logging
import math
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.server.mcpserver import MCPServer
from pydantic import Field

from replicata.errors import ResourceError
from replicata.papers.at_at import fleet, ledger, orders
from replicata.papers.at_at.servers import (
    Database,
    Handler,
    ServerSpec,
    Variant,
    handler,
    listed_tools,
)
from replicata.papers.at_at.tools import Tool
from replicata.papers.at_at.wrappers import wrap

SERVERS: dict[str, ServerSpec] = {
    spec.name: spec for spec in (orders.SPEC, fleet.SPEC, ledger.SPEC)
}
START_TIMEOUT_S = 10.0
_TYPES = {"string": str, "number": float, "integer": int}


def build_server(
    spec: ServerSpec, variant: Variant, database: Database, tools: Sequence[Tool] | None = None
) -> MCPServer:
    """Return an MCP server of a variant, with edited tools where they are given."""
    # The SDK logs every failing call; failing calls are what is studied here.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    server = MCPServer(spec.name)
    for tool in tools or listed_tools(spec, variant):
        run = wrap(handler(spec, spec.tool(tool.name), variant, database), tool.wrappers)
        server.add_tool(
            _function(tool, run),
            name=tool.name,
            description=tool.description,
            structured_output=False,
        )
    return server


def _function(tool: Tool, run: Handler) -> Any:
    """Return a function with the tool's parameters as its signature, as the SDK reads it."""

    def call(**args: Any) -> str:
        return run(args)

    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[
                    _TYPES[schema["type"]], Field(description=schema.get("description", ""))
                ],
                default=inspect.Parameter.empty if name in tool.required else 0,
            )
            for name, schema in tool.params.items()
        ],
        return_annotation=str,
    )
    return call


async def list_tools(client: Client) -> tuple[Tool, ...]:
    """Return the tools that a server lists, all pages."""
    found, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += [Tool(t.name, t.description or "", t.input_schema) for t in page.tools]
        cursor = page.next_cursor
        if not cursor:
            return tuple(found)


@asynccontextmanager
async def connect(command: Sequence[str], timeout_s: float = START_TIMEOUT_S) -> AsyncIterator:
    """Start a server by its command and connect to it by stdio.

    Raises
    ------
    ResourceError
        If it does not start, or does not answer in time.
    """
    shown = " ".join(command)
    parameters = StdioServerParameters(command=command[0], args=list(command[1:]))
    started = False
    # One scope around everything, properly nested: its deadline is lifted once the server answers.
    with anyio.CancelScope(deadline=anyio.current_time() + timeout_s) as scope:
        try:
            async with Client(parameters) as client:
                started, scope.deadline = True, math.inf
                yield client
        except Exception as error:
            if started:
                raise
            reason = " ".join(_cause(error).split())
            raise ResourceError(f"MCP server {shown!r} did not start: {reason[:200]}") from error
    if not started:
        raise ResourceError(f"MCP server {shown!r} did not answer within {timeout_s:g} s")


def _cause(error: BaseException) -> str:
    """Return the text of the first error inside groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def main(arguments: Sequence[str]) -> None:
    """Serve one of the three servers by stdio, in its sound variant."""
    spec = SERVERS[arguments[0]]
    build_server(spec, Variant(), Database(spec, Variant())).run("stdio")


if __name__ == "__main__":
    main(sys.argv[1:])
