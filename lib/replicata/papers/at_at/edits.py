"""The edit grammar: what AT-AT may change about a tool, and the gate each edit passes.

An edit names one tool, carries its evidence, and is one of these kinds:

=================== ====== ====================================================================
kind                level  what it does
=================== ====== ====================================================================
``examples``        desc   appends example requests to the description
``keywords``        desc   appends words to the description
``note``            desc   appends a sentence to the description
``rewrite``         desc   replaces the description (language-model optimiser)
``shape``           desc   appends the accepted shape or unit to a parameter's description
``normalise``       impl   brings a parameter's value to a shape before the call
``surface_error``   impl   lets the cause of a failure reach the agent
``mark_error``      impl   turns an error text in a successful result into an error
``to_result_error`` impl   turns a protocol error into an error result
``raise_limit``     impl   passes a larger limit where the caller gave none
``trim_output``     impl   leaves fields out of the result
=================== ====== ====================================================================

Names and required parameters cannot be changed by any of them: other agents share the tool.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from replicata.papers.at_at.tools import Tool, Wrapper

DescriptionKind = Literal["examples", "keywords", "note", "rewrite", "shape"]
ImplementationKind = Literal[
    "normalise", "surface_error", "mark_error", "to_result_error", "raise_limit", "trim_output"
]
DESCRIPTION_KINDS: tuple[str, ...] = get_args(DescriptionKind)
IMPLEMENTATION_KINDS: tuple[str, ...] = get_args(ImplementationKind)
#: Longest description in characters: every agent reads it on every request (spec 3.2).
L_MAX = 1200


class Edit(BaseModel):
    """One edit with its evidence; without evidence there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: DescriptionKind | ImplementationKind
    tool: str
    param: str | None = None
    text: str
    evidence: tuple[str, ...] = Field(min_length=1)


class Policy(BaseModel):
    """What an optimisation may do.

    Attributes
    ----------
    implementations
        Whether implementations may be edited beside descriptions.
    protected
        Tools that stay as they are.
    max_edits
        Most edits that are accepted.
    max_description
        Longest description, characters.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    implementations: bool = False
    protected: tuple[str, ...] = ()
    max_edits: int = Field(default=1000, ge=0)
    max_description: int = Field(default=L_MAX, ge=1)


def apply_edit(edit: Edit, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Return the tools with one edit applied.

    Raises
    ------
    ValueError
        If the tool or the parameter does not exist.
    """
    if edit.tool not in {tool.name for tool in tools}:
        raise ValueError(f"there is no tool {edit.tool!r}")
    return tuple(_edited(edit, tool) if tool.name == edit.tool else tool for tool in tools)


def _edited(edit: Edit, tool: Tool) -> Tool:
    if edit.param is not None and edit.param not in tool.params:
        raise ValueError(f"tool {tool.name!r} has no parameter {edit.param!r}")
    if edit.kind in IMPLEMENTATION_KINDS:
        return tool.with_wrapper(Wrapper(edit.kind, edit.param, edit.text))
    if edit.kind == "rewrite":
        return tool.with_description(edit.text)
    if edit.kind == "shape":
        if edit.param is None:
            raise ValueError(f"a shape for tool {tool.name!r} needs a parameter")
        before = str(tool.params[edit.param].get("description", ""))
        return tool.with_param_text(edit.param, f"{before} {edit.text}".strip())
    return tool.with_description(f"{tool.description} {edit.text}".strip())


def static_gate(
    edit: Edit, before: Sequence[Tool], after: Sequence[Tool], policy: Policy
) -> str | None:
    """Return why an edit may not be made, or None; no call of the agent is needed."""
    if edit.tool in policy.protected:
        return f"tool {edit.tool} is protected"
    if edit.kind in IMPLEMENTATION_KINDS and not policy.implementations:
        return "the policy allows descriptions only"
    new = next(tool for tool in after if tool.name == edit.tool)
    if len(new.description) > policy.max_description:
        return (
            f"the description would have {len(new.description)} characters, expected at most "
            f"{policy.max_description}"
        )
    return incompatible(before, after)


def incompatible(before: Sequence[Tool], after: Sequence[Tool]) -> str | None:
    """Return how a tool list breaks callers of another one, or None: schemas may only widen."""
    new = {tool.name: tool for tool in after}
    for old in before:
        if old.name not in new:
            return f"tool {old.name} is gone or renamed"
        tool = new[old.name]
        if set(tool.required) - set(old.required):
            names = ", ".join(sorted(set(tool.required) - set(old.required)))
            return f"tool {old.name}: {names} became required"
        for name, schema in old.params.items():
            if name not in tool.params:
                return f"tool {old.name}: parameter {name} is gone"
            reason = _narrowed(schema, tool.params[name])
            if reason:
                return f"tool {old.name}: parameter {name}: {reason}"
    return None


def _narrowed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    if "enum" in new and ("enum" not in old or set(old["enum"]) - set(new["enum"])):
        return "its enum is narrower"
    if old.get("type") != new.get("type"):
        return f"its type changed from {old.get('type')} to {new.get('type')}"
    if new.get("pattern") not in (None, old.get("pattern")):
        return "its pattern is narrower"
    return None


def listing_text(tools: Sequence[Tool]) -> str:
    """Return a tool list as text, for people and for diffs; wrappers are part of it."""
    listed = []
    for tool in tools:
        entry = tool.listing()
        if tool.wrappers:
            entry["wrappers"] = [[w.kind, w.param, w.value] for w in tool.wrappers]
        listed.append(entry)
    return json.dumps(listed, indent=2, ensure_ascii=False) + "\n"


def unified_diff(before: Sequence[Tool], after: Sequence[Tool]) -> str:
    """Return the change of a tool list as a unified diff; empty if there is none."""
    lines = difflib.unified_diff(
        listing_text(before).splitlines(keepends=True),
        listing_text(after).splitlines(keepends=True),
        "a/tools.json",
        "b/tools.json",
    )
    return "".join(lines)
