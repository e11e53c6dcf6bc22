"""``replicata cacc``: where the right answers of a candidate pool get lost."""

from pathlib import Path
from typing import Annotated

import typer

from replicata.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="CACC: candidates that a fixed selector can use.")

STYLES = ("hash", "boxed", "letter-first")


@app.callback()
def _group() -> None:
    """Keep `report` a command of its own, although it is the only one."""


@app.command()
def report(
    pool: Annotated[Path, typer.Argument(help="Questions with candidates, JSON lines.")],
    interface: Annotated[
        str | None,
        typer.Option(help=f"Strict parser: {', '.join(STYLES)}; default: that of the mode."),
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="Texts shown of each kind.")] = 5,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds per text for math-verify.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Print the coverage-conversion decomposition of a pool, and where candidates get lost.

    Example: `replicata cacc report docs/examples/cacc/pool.jsonl`
    """
    if interface is not None and interface not in STYLES:
        raise UsageError(f"--interface {interface}: unknown, expected one of {', '.join(STYLES)}")
    from replicata.papers.cacc.grading import Grader
    from replicata.papers.cacc.pool_file import read_pool
    from replicata.papers.cacc.report import make_report
    from replicata.papers.cacc.report_text import as_json as json_of
    from replicata.papers.cacc.report_text import as_text

    questions = read_pool(pool)
    with Grader(timeout) as grader:
        found = make_report(questions, grader, interface)
    typer.echo(json_of(found) if as_json else as_text(found, examples))
