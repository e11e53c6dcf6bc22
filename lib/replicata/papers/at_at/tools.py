"""Tools as an agent sees them, and what a provider may change about them."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from replicata.workflow.files import digest


@dataclass(frozen=True)
class Wrapper:
    """One change of an implementation: a kind of wrapper, the parameter it concerns, its value."""

    kind: str
    param: str | None
    value: str


@dataclass(frozen=True)
class Tool:
    """A tool t = (name, description, schema, implementation).

    Attributes
    ----------
    name, description
        As the server lists them.
    schema
        JSON schema of the arguments.
    wrappers
        What was put around the implementation, in order.
    """

    name: str
    description: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = ()

    @property
    def params(self) -> dict[str, dict[str, Any]]:
        """The parameters' schemas by name."""
        return dict(self.schema.get("properties", {}))

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the required parameters."""
        return tuple(self.schema.get("required", ()))

    @property
    def routing_text(self) -> str:
        """What the agent embeds: the words of the name, then the description."""
        return f"{name_words(self.name)}: {self.description}"

    def with_description(self, description: str) -> "Tool":
        """Return the tool with another description."""
        return replace(self, description=description)

    def with_param_text(self, param: str, text: str) -> "Tool":
        """Return the tool with another description of one parameter."""
        changed = json.loads(json.dumps(dict(self.schema)))
        changed["properties"][param]["description"] = text
        return replace(self, schema=changed)

    def with_wrapper(self, wrapper: Wrapper) -> "Tool":
        """Return the tool with one more wrapper around its implementation."""
        return replace(self, wrappers=(*self.wrappers, wrapper))

    def listing(self) -> dict[str, Any]:
        """Return name, description and schema as MCP's ``tools/list`` gives them."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": json.loads(json.dumps(dict(self.schema))),
        }

    def characters(self) -> int:
        """Return what an agent pays to read about the tool: description and parameter texts."""
        texts = (str(p.get("description", "")) for p in self.params.values())
        return len(self.description) + sum(map(len, texts))


def name_words(name: str) -> str:
    """Split a tool's name into words.

    >>> name_words("Weather_1_GetWeather")
    'Weather 1 Get Weather'
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", re.sub(r"[._\-]+", " ", name))
    return " ".join(spaced.split())


def tools_sha256(tools: Iterable[Tool]) -> str:
    """Return the digest of a tool list: of what is listed, not of the implementation."""
    return digest([tool.listing() for tool in tools])
