"""``replicata at-at``: diagnose traces of your own MCP server, and propose edits of its tools."""

import difflib
import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from replicata.errors import UsageError
from replicata.workflow.files import atomic_write

app = typer.Typer(no_args_is_help=True, help="AT-AT: better tools for an agent that stays.")


@app.callback()
def _group() -> None:
    """Keep `diagnose` a command of its own, although it is the only one."""


@app.command()
def diagnose(
    traces: Annotated[Path, typer.Argument(help="Traces with evaluations, JSON lines.")],
    server: Annotated[str, typer.Option(help="Command that starts your MCP server (stdio).")],
    source: Annotated[
        Path | None, typer.Option(help="Python source of the server, to edit its docstrings.")
    ] = None,
    protect: Annotated[
        list[str] | None, typer.Option(help="Tool that stays as it is; may repeat.")
    ] = None,
    max_description: Annotated[int, typer.Option(min=1, help="Longest description.")] = 1200,
    allow_drift: Annotated[
        bool, typer.Option("--allow-drift", help="Use traces of another tool list, too.")
    ] = False,
    start_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds the server may take to start.")
    ] = 10.0,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the edits; without it nothing is written.")
    ] = False,
) -> None:
    """Print what the traces say about each tool, and edits of descriptions as a unified diff.

    The server is started to list its tools; none of them is called. With --source and --apply the
    descriptions are replaced in the source; with --apply alone the edited list goes to tools.json.

    Example: `replicata at-at diagnose traces.jsonl --server "python server.py"`
    """
    import anyio

    from replicata.papers.at_at.edits import Policy, listing_text, unified_diff
    from replicata.papers.at_at.encoder import Encoder
    from replicata.papers.at_at.method import atat
    from replicata.papers.at_at.miner import diagnose as reports_of
    from replicata.papers.at_at.miner import propose
    from replicata.papers.at_at.serving import connect, list_tools
    from replicata.papers.at_at.traces import check_traces, read_traces

    async def listed() -> tuple:
        async with connect(shlex.split(server), start_timeout) as client:
            return await list_tools(client)

    found = read_traces(traces)
    tools = anyio.run(listed)
    check_traces(found, tools, allow_drift=allow_drift)
    for report in reports_of(found, tools):
        errors = ", ".join(f"{count} {kind}" for kind, count in report.errors.items()) or "none"
        typer.echo(
            f"{report.name}: {report.calls} calls, errors: {errors}, "
            f"{report.misroutes} misroutes, {report.repeats} repeats"
        )
    if all(trace.passed for trace in found):
        typer.echo("all traces pass: no edit")
        return
    policy = Policy(protected=tuple(protect or ()), max_description=max_description)
    edits = propose(found, tools, Encoder(), implementations=False)
    result = atat(tools, edits, policy)
    for entry in result.log:
        state = "edit" if entry.accepted else f"refused ({entry.reason})"
        where = entry.edit.tool + (f".{entry.edit.param}" if entry.edit.param else "")
        evidence = ", ".join(entry.edit.evidence)
        typer.echo(f"{state}: {entry.edit.kind} on {where}, traces {evidence}")
    before = listing_text(tools) if source is None else source.read_text(encoding="utf-8")
    after = listing_text(result.tools)
    if source is not None:
        after = edited_source(before, tools, result.tools, source.name)
        lines = difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"a/{source.name}",
            f"b/{source.name}",
        )
        typer.echo("".join(lines))
    else:
        typer.echo(unified_diff(tools, result.tools))
    if apply and before != after:
        target = source or Path("tools.json")
        atomic_write(target, after)
        typer.echo(f"wrote {target.name}")


def edited_source(text: str, before: tuple, after: tuple, name: str) -> str:
    """Return a server's source with edited texts in the place of those that are there.

    Raises
    ------
    UsageError
        If a text is not in the source exactly once.
    """
    for old, new in zip(before, after, strict=True):
        pairs = [(old.description, new.description)]
        pairs += [
            (str(old.params[key].get("description", "")), str(new.params[key]["description"]))
            for key in old.params
            if "description" in new.params[key]
        ]
        for was, becomes in pairs:
            if was == becomes:
                continue
            if not was or text.count(was) != 1:
                raise UsageError(
                    f"{name}: the text {was!r} of tool {old.name} is there {text.count(was)} "
                    "times, expected once; leave --source out and edit by the printed list"
                )
            # Inside a string of the source: quotes and backslashes must not end it.
            added = json.dumps(becomes[len(was) :], ensure_ascii=False)[1:-1]
            text = text.replace(was, was + added)
    return text
