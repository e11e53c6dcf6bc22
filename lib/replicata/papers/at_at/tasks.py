"""S2's tasks: requests from templates, and what a sound server would do for them.

Training and held-out requests share neither templates nor entities.
"""

import random
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal

from replicata.papers.at_at.servers import (
    Database,
    Param,
    ServerSpec,
    ToolSpec,
    Variant,
    execute,
    row_id,
)
from replicata.workflow.seeds import derive_seed

Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Task:
    """A request, the call that serves it, and what must come of it.

    Attributes
    ----------
    id, request, tool, args
        The gold call has the shapes that a sound server accepts.
    values
        Texts that must be in the final answer.
    changes
        Rows that must be changed, as `Database.changes` gives them.
    """

    id: str
    request: str
    tool: str
    args: dict[str, Any]
    values: tuple[str, ...]
    changes: list[list[Any]]


def make_tasks(spec: ServerSpec, split: Split, per_tool: int, seed: int) -> list[Task]:
    """Return ``per_tool`` tasks for each tool of a server."""
    database = Database(spec, Variant())
    tasks = []
    for tool in spec.tools:
        rng = random.Random(derive_seed(seed, "tasks", spec.name, split, tool.name))
        templates = tool.train if split == "train" else tool.heldout
        for number in range(per_tool):
            while True:
                args, spoken = _arguments(tool, split, rng)
                database.reset()
                result = execute(spec, tool, Variant(), database, dict(args))
                values, changes = _values(tool, result), database.changes()
                # A column set to the value it has would be passed by an agent that does nothing.
                if values or changes:
                    break
            request = templates[number % len(templates)].format(**spoken)
            tasks.append(
                Task(
                    id=f"{spec.name}.{split}.{tool.name}.{number}",
                    request=request,
                    tool=tool.name,
                    args=args,
                    values=values,
                    changes=changes,
                )
            )
    return tasks


def _values(tool: ToolSpec, result: dict[str, Any]) -> tuple[str, ...]:
    if tool.action == "get":
        return (str(result[tool.column]),)
    return tuple(result["rows"]) if tool.action == "list" else ()


def _arguments(
    tool: ToolSpec, split: Split, rng: random.Random
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the gold arguments, and the same as a person says them."""
    args: dict[str, Any] = {}
    spoken: dict[str, str] = {}
    for param in tool.params:
        args[param.name], spoken[param.name] = _value(param, split, rng)
    return args, spoken


def _value(param: Param, split: Split, rng: random.Random) -> tuple[Any, str]:
    train = split == "train"
    half = Database.ROWS // 2
    if param.kind == "id":
        row = rng.randrange(half) + (0 if train else half)
        identity = row_id(param.prefix, row)
        return identity, identity.partition("-")[2]
    if param.kind == "date":
        start = date(2026, 3, 1) if train else date(2027, 1, 1)
        day = start + timedelta(days=rng.randrange(150))
        return day.isoformat(), f"{day.day} {day:%B} {day.year}"
    if param.kind == "amount":
        cents = rng.randrange(500, 9000, 10) + (5 if train else 0)
        return cents, f"{cents / 100:.2f}"
    choice = rng.choice(param.choices)
    return choice, choice.lower()
