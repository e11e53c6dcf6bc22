"""The defects that are planted in S2's servers, and their repair by hand.

The optimiser never imports this module (a test follows its imports). The defects mirror reported
ones: MCP's Python SDK keeps the text of unexpected exceptions off the wire (python-sdk 3314),
servers return errors as plain text with ``isError`` unset (winremote-mcp 82, kimai_mcp 18), and a
protocol error leaves a model nothing to read.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from replicata.papers.at_at.servers import ServerSpec, ToolSpec, Variant
from replicata.workflow.seeds import derive_seed

Defect = Literal[
    "vague",
    "copied",
    "twins",
    "cents",
    "date",
    "prefix",
    "case",
    "crash",
    "as_text",
    "protocol",
    "limit",
    "bloat",
    "lacking",
    "wrong",
]
REPAIRABLE: tuple[Defect, ...] = (
    "vague",
    "copied",
    "twins",
    "cents",
    "date",
    "prefix",
    "case",
    "crash",
    "as_text",
    "protocol",
    "limit",
    "bloat",
)
#: No edit of a description or wrapper can give a tool a missing ability, or right data.
DECOYS: tuple[Defect, ...] = ("lacking", "wrong")
_ROUTING = frozenset({"examples", "keywords"})
_SHAPE = frozenset({"shape", "normalise"})
#: Kinds of edits that repair a defect.
REPAIRS: dict[Defect, frozenset[str]] = {
    "vague": _ROUTING,
    "copied": _ROUTING,
    "twins": _ROUTING,
    "cents": frozenset({"shape"}),
    "date": _SHAPE,
    "prefix": _SHAPE,
    "case": _SHAPE,
    "crash": _SHAPE | {"surface_error"},
    "as_text": _SHAPE | {"mark_error"},
    "protocol": _SHAPE | {"to_result_error"},
    "limit": frozenset({"shape", "raise_limit"}),
    "bloat": frozenset({"trim_output"}),
    "lacking": frozenset(),
    "wrong": frozenset(),
}
#: Repairable defects a seed plants in one server, beside the two decoys.
PLANTED = 4


@dataclass(frozen=True)
class Plant:
    """A defect in a tool."""

    tool: str
    defect: Defect


def draw(spec: ServerSpec, defect_seed: int, seed: int) -> tuple[Plant, ...]:
    """Return the defects of one copy of a server: four repairable ones and two decoys.

    Three consecutive defect seeds plant each of the twelve types once per server; which tool gets
    it is drawn among those it can be planted in, one defect a tool.
    """
    block, place = divmod(defect_seed, len(REPAIRABLE) // PLANTED)
    order = list(REPAIRABLE)
    random.Random(derive_seed(seed, "types", spec.name, block)).shuffle(order)
    types = [*order[place * PLANTED : (place + 1) * PLANTED], *DECOYS]
    rng = random.Random(derive_seed(seed, "places", spec.name, defect_seed))
    while True:
        plants: list[Plant] = []
        for defect in types:
            taken = {plant.tool for plant in plants}
            able = [t.name for t in spec.tools if t.name not in taken and _fits(defect, t)]
            if able:
                plants.append(Plant(rng.choice(able), defect))
        # A type may find all its tools taken; then the draw is repeated.
        if len(plants) == len(types):
            return tuple(plants)


def _fits(defect: Defect, tool: ToolSpec) -> bool:
    kinds = {param.kind for param in tool.params}
    return {
        "cents": "amount" in kinds,
        "date": "date" in kinds,
        "prefix": "id" in kinds,
        "case": "choice" in kinds,
        "limit": tool.action == "list",
        "bloat": tool.action in ("get", "list"),
        "lacking": tool.action == "set",
        "wrong": tool.action == "get",
    }.get(defect, True)


def plant(spec: ServerSpec, plants: tuple[Plant, ...]) -> Variant:
    """Return the variant of a server with these defects."""
    variant = Variant()
    for item in plants:
        variant = _PLANTERS[item.defect](spec, spec.tool(item.tool), variant)
    return variant


def repaired(spec: ServerSpec, plants: tuple[Plant, ...]) -> Variant:
    """Return the variant repaired by hand: only the decoys are left."""
    return plant(spec, tuple(item for item in plants if item.defect in DECOYS))


def _sibling(spec: ServerSpec, tool: ToolSpec) -> ToolSpec:
    """Return the next tool of the server: the one whose text is copied."""
    names = [item.name for item in spec.tools]
    return spec.tools[(names.index(tool.name) + 1) % len(names)]


def _described(variant: Variant, tool: str, text: str) -> Variant:
    return replace(variant, descriptions={**variant.descriptions, tool: text})


def _vague(spec: ServerSpec, tool: ToolSpec, variant: Variant) -> Variant:
    return _described(variant, tool.name, "Handles the request.")


def _copied(spec: ServerSpec, tool: ToolSpec, variant: Variant) -> Variant:
    return _described(variant, tool.name, _sibling(spec, tool).description)


def _twins(spec: ServerSpec, tool: ToolSpec, variant: Variant) -> Variant:
    twin = _sibling(spec, tool)
    text = f"{tool.description} {twin.description}"
    return _described(_described(variant, twin.name, text), tool.name, text)


def _unhinted(*kinds: str) -> Callable[[ServerSpec, ToolSpec, Variant], Variant]:
    def change(spec: ServerSpec, tool: ToolSpec, variant: Variant) -> Variant:
        params = [param for param in tool.params if param.kind in kinds]
        return replace(variant, unhinted=variant.unhinted | {(tool.name, params[0].name)})

    return change


def _failing(style: str) -> Callable[[ServerSpec, ToolSpec, Variant], Variant]:
    hide = _unhinted("id", "date", "choice")

    def change(spec: ServerSpec, tool: ToolSpec, variant: Variant) -> Variant:
        hidden = hide(spec, tool, variant)
        return replace(hidden, errors={**hidden.errors, tool.name: style})

    return change


def _limit(spec: ServerSpec, tool: ToolSpec, variant: Variant) -> Variant:
    return replace(variant, limits={**variant.limits, tool.name: 3})


def _bloat(spec: ServerSpec, tool: ToolSpec, variant: Variant) -> Variant:
    return replace(variant, bloated=variant.bloated | {tool.name})


def _lacking(spec: ServerSpec, tool: ToolSpec, variant: Variant) -> Variant:
    return replace(variant, lacking=variant.lacking | {tool.name})


def _wrong(spec: ServerSpec, tool: ToolSpec, variant: Variant) -> Variant:
    return replace(variant, wrong=variant.wrong | {tool.name})


_PLANTERS: dict[Defect, Callable[[ServerSpec, ToolSpec, Variant], Variant]] = {
    "vague": _vague,
    "copied": _copied,
    "twins": _twins,
    "cents": _unhinted("amount"),
    "date": _unhinted("date"),
    "prefix": _unhinted("id"),
    "case": _unhinted("choice"),
    "crash": _failing("crash"),
    "as_text": _failing("as_text"),
    "protocol": _failing("protocol"),
    "limit": _limit,
    "bloat": _bloat,
    "lacking": _lacking,
    "wrong": _wrong,
}
