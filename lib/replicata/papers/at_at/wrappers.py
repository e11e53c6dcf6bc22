"""Wrappers around a tool's implementation: what an implementation edit makes of it.

They work on any callable from arguments to result text. All of them widen: what was accepted
before is accepted and answered as before, fields left out on purpose excepted.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from replicata.papers.at_at.servers import Handler
from replicata.papers.at_at.shapes import to_shape
from replicata.papers.at_at.tools import Wrapper


def wrap(run: Handler, wrappers: Sequence[Wrapper]) -> Handler:
    """Return an implementation with wrappers around it, the first innermost."""
    for wrapper in wrappers:
        run = _wrapped(run, wrapper)
    return run


def _wrapped(run: Handler, wrapper: Wrapper) -> Handler:
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.shared.exceptions import MCPError

    def normalise(args: dict[str, Any]) -> str:
        if wrapper.param in args:
            args = {**args, wrapper.param: to_shape(args[wrapper.param], wrapper.value)}
        return run(args)

    def surface_error(args: dict[str, Any]) -> str:
        try:
            return run(args)
        except (ToolError, MCPError):
            raise
        except Exception as error:
            raise ToolError(str(error)) from error

    def mark_error(args: dict[str, Any]) -> str:
        text = run(args)
        if re.match(r"error\b", text, re.IGNORECASE):
            raise ToolError(text)
        return text

    def to_result_error(args: dict[str, Any]) -> str:
        try:
            return run(args)
        except MCPError as error:
            raise ToolError(error.message) from error

    def raise_limit(args: dict[str, Any]) -> str:
        return run({**args, wrapper.param: args.get(wrapper.param) or int(wrapper.value)})

    def trim_output(args: dict[str, Any]) -> str:
        return trimmed(run(args), wrapper.value.split(","))

    kinds = (normalise, surface_error, mark_error, to_result_error, raise_limit, trim_output)
    return {kind.__name__: kind for kind in kinds}[wrapper.kind]


def trimmed(text: str, fields: Sequence[str]) -> str:
    """Return a JSON object's text without some fields; other text as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if not isinstance(value, dict):
        return text
    return json.dumps({key: item for key, item in value.items() if key not in fields})
