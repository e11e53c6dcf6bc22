"""Study S2's servers: ten tools each on SQLite in memory, served over MCP.

A server is data (`ServerSpec`); its tools are one of four actions on one table. A `Variant` says
how this copy of a server deviates from the sound one: the planted defects live there, and the
optimiser sees neither.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from replicata.papers.at_at.tools import Tool

Kind = Literal["id", "date", "choice", "amount", "text"]
DATE_SHAPE = "dddd-dd-dd"
#: Rows a list tool gives where the caller names no limit; a defect lowers it.
DEFAULT_LIMIT = 50


class Rejected(Exception):
    """An argument that a tool does not accept; the text says which shape it expects."""


@dataclass(frozen=True)
class Param:
    """A parameter: its kind decides what is accepted and what its description says about it."""

    name: str
    kind: Kind
    text: str
    prefix: str = ""
    choices: tuple[str, ...] = ()

    @property
    def hint(self) -> str:
        """What a sound description says about the accepted values."""
        return {
            "id": f"Shape: {self.prefix}-dddd.",
            "date": f"Shape: {DATE_SHAPE}.",
            "choice": f"One of: {', '.join(self.choices)}.",
            "amount": "In cents.",
            "text": "",
        }[self.kind]

    def check(self, value: Any) -> Any:
        """Return the value as it is stored.

        Raises
        ------
        Rejected
            If the value is not of the expected shape.
        """
        text = str(value)
        if self.kind == "id" and not re.fullmatch(rf"{self.prefix}-\d{{4}}", text):
            raise Rejected(_not_accepted(self.name, text, f"the shape {self.prefix}-dddd"))
        if self.kind == "date" and not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            raise Rejected(_not_accepted(self.name, text, f"the shape {DATE_SHAPE}"))
        if self.kind == "choice" and text not in self.choices:
            raise Rejected(_not_accepted(self.name, text, f"one of {', '.join(self.choices)}"))
        return round(float(value)) if self.kind == "amount" else text


def _not_accepted(name: str, value: str, expected: str) -> str:
    return f"parameter {name}: {value!r} is not accepted, expected {expected}"


@dataclass(frozen=True)
class ToolSpec:
    """A tool of a server.

    Attributes
    ----------
    name, description
        As listed.
    action
        ``get`` a row, ``list`` rows by the value of a column, ``set`` a column of a row, ``add`` a
        row.
    table, column
        What it works on; for ``get`` the column its requests ask for.
    params
        In order; the first of ``get`` and ``set`` is the row's id.
    train, heldout
        Request templates for the two splits, with a field per parameter name.
    """

    name: str
    description: str
    action: Literal["get", "list", "set", "add"]
    table: str
    column: str
    params: tuple[Param, ...]
    train: tuple[str, ...]
    heldout: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """A table's column and the values it is filled from; a prefix makes it a reference."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class ServerSpec:
    """A server: its tables (id prefix and columns by name) and its tools."""

    name: str
    tables: Mapping[str, tuple[str, tuple[Column, ...]]]
    tools: tuple[ToolSpec, ...]

    def tool(self, name: str) -> ToolSpec:
        """Return a tool by its name."""
        return next(tool for tool in self.tools if tool.name == name)


@dataclass(frozen=True)
class Variant:
    """How a copy of a server deviates from the sound one; empty: not at all.

    Attributes
    ----------
    descriptions
        Tool to its description.
    unhinted
        Tool and parameter whose description does not say what is accepted.
    errors
        Tool to how it fails: ``crash`` (text stays inside), ``as_text`` (a successful result),
        ``protocol`` (no result); by default a readable tool error.
    limits
        Tool to its default limit.
    bloated
        Tools that return a long field nobody asks for.
    lacking
        Tools without their last parameter: they cannot do what is asked.
    wrong
        Tools whose table holds other values in the asked column.
    """

    descriptions: Mapping[str, str] = field(default_factory=dict)
    unhinted: frozenset[tuple[str, str]] = frozenset()
    errors: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    bloated: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()


class Database:
    """A server's tables in memory; `reset` brings the first state back."""

    #: Rows per table.
    ROWS = 24

    def __init__(self, spec: ServerSpec, variant: Variant) -> None:
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)
        wrong = {(t.table, t.column) for t in spec.tools if t.name in variant.wrong}
        for table, (prefix, columns) in spec.tables.items():
            names = ", ".join(column.name for column in columns)
            self.connection.execute(f"CREATE TABLE {table} (id TEXT PRIMARY KEY, {names})")
            for row in range(self.ROWS):
                values = [
                    c.values[(row * step + ((table, c.name) in wrong)) % len(c.values)]
                    for step, c in enumerate(columns, 1)
                ]
                marks = ", ".join("?" * (len(values) + 1))
                self.connection.execute(
                    f"INSERT INTO {table} VALUES ({marks})", [row_id(prefix, row), *values]
                )
        self.connection.commit()
        self._spec = spec
        self._first = self.connection.serialize()
        self._before = self._values()

    def reset(self) -> None:
        """Return to the first state."""
        self.connection.deserialize(self._first)

    def changes(self) -> list[list[Any]]:
        """Return what differs from the first state: table, id, column and new value, sorted."""
        after = self._values()
        return [[*key, after[key]] for key in sorted(after) if after[key] != self._before.get(key)]

    def _values(self) -> dict[tuple[str, str, str], Any]:
        """Return every value by table, id and column."""
        found = {}
        for table, (_, columns) in self._spec.tables.items():
            for identity, *values in self.connection.execute(f"SELECT * FROM {table}"):
                for column, value in zip(columns, values, strict=True):
                    found[table, identity, column.name] = value
        return found


def row_id(prefix: str, row: int) -> str:
    """Return the id of a row."""
    return f"{prefix}-{1001 + 37 * row}"


def execute(
    spec: ServerSpec, tool: ToolSpec, variant: Variant, database: Database, args: dict[str, Any]
) -> dict[str, Any]:
    """Do what a tool does, as its provider wrote it.

    Raises
    ------
    Rejected
        If an argument is not accepted, or a row does not exist.
    """
    limit = args.pop("limit", 0)
    values = {p.name: p.check(args[p.name]) for p in accepted_params(tool, variant)}
    if tool.name in variant.lacking:
        raise Rejected(f"{tool.name} cannot do that here")
    run = {"get": _get, "list": _list, "set": _set, "add": _add}[tool.action]
    result = run(spec, tool, database.connection, list(values.values()))
    if tool.action == "list":
        shown = int(limit) or variant.limits.get(tool.name, DEFAULT_LIMIT)
        rows = result["rows"]
        result = {"rows": rows[:shown], "more": len(rows) > shown}
    if tool.name in variant.bloated:
        result["audit_log"] = "; ".join(f"revision {i} by system, no change" for i in range(40))
    return result


def _get(
    spec: ServerSpec, tool: ToolSpec, connection: sqlite3.Connection, values: list
) -> dict[str, Any]:
    names = ["id", *(column.name for column in spec.tables[tool.table][1])]
    row = connection.execute(f"SELECT * FROM {tool.table} WHERE id = ?", values).fetchone()
    if row is None:
        raise Rejected(f"there is no {values[0]}")
    return dict(zip(names, row, strict=True))


def _list(
    spec: ServerSpec, tool: ToolSpec, connection: sqlite3.Connection, values: list
) -> dict[str, Any]:
    query = f"SELECT id FROM {tool.table} WHERE {tool.column} = ? ORDER BY id"
    return {"rows": [row[0] for row in connection.execute(query, values)]}


def _set(
    spec: ServerSpec, tool: ToolSpec, connection: sqlite3.Connection, values: list
) -> dict[str, Any]:
    identity, value = values
    query = f"UPDATE {tool.table} SET {tool.column} = ? WHERE id = ?"
    if connection.execute(query, [value, identity]).rowcount == 0:
        raise Rejected(f"there is no {identity}")
    return {"done": True, "id": identity}


def _add(
    spec: ServerSpec, tool: ToolSpec, connection: sqlite3.Connection, values: list
) -> dict[str, Any]:
    prefix, columns = spec.tables[tool.table]
    given = dict(zip((p.name for p in tool.params), values, strict=True))
    identity = f"{prefix}-{9001}"
    row = [identity, *(given.get(column.name) for column in columns)]
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {tool.table} VALUES ({marks})", row)
    return {"done": True, "id": identity}


def accepted_params(tool: ToolSpec, variant: Variant) -> tuple[Param, ...]:
    """Return the parameters a tool has in a variant, the limit of list tools left out."""
    return tool.params[:-1] if tool.name in variant.lacking else tool.params


def listed_tools(spec: ServerSpec, variant: Variant) -> tuple[Tool, ...]:
    """Return the tools as this variant lists them before any edit."""
    return tuple(
        Tool(
            tool.name,
            variant.descriptions.get(tool.name, tool.description),
            _schema(tool, variant),
        )
        for tool in spec.tools
    )


def _schema(tool: ToolSpec, variant: Variant) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for param in accepted_params(tool, variant):
        hint = "" if (tool.name, param.name) in variant.unhinted else param.hint
        properties[param.name] = {
            "type": "number" if param.kind == "amount" else "string",
            "description": f"{param.text} {hint}".strip(),
        }
    required = list(properties)
    if tool.action == "list":
        properties["limit"] = {"type": "integer", "description": "Rows to return."}
    return {"type": "object", "properties": properties, "required": required}


Handler = Callable[[dict[str, Any]], str]
"""From arguments to the text of a result; raises what the implementation raises."""


def handler(spec: ServerSpec, tool: ToolSpec, variant: Variant, database: Database) -> Handler:
    """Return a tool's implementation, with the way this variant fails."""
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.shared.exceptions import MCPError
    from mcp_types import INVALID_PARAMS

    style = variant.errors.get(tool.name, "tool")

    def run(args: dict[str, Any]) -> str:
        try:
            return json.dumps(execute(spec, tool, variant, database, dict(args)))
        except Rejected as error:
            if style == "crash":
                raise ValueError(str(error)) from None
            if style == "as_text":
                return f"Error: {error}"
            if style == "protocol":
                raise MCPError(code=INVALID_PARAMS, message=str(error)) from None
            raise ToolError(str(error)) from None

    return run
