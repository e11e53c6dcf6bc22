"""Executing a notebook so that its output is complete, current, clean and the same each time.

papermill executes; this module refuses what papermill lets through, and cleans what it writes.
``python -m replicata.workflow.notebooks SOURCE OUTPUT -p name=JSON`` runs one by hand.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from replicata.errors import ReplicataError, RunError, UsageError
from replicata.workflow.files import atomic_write
from replicata.workflow.kernel import manager_class
from replicata.workflow.layout import repo_root
from replicata.workflow.notebook_source import checked_parameters, light_imports, read_source
from replicata.workflow.processes import terminate_as_interrupt
from replicata.workflow.sanitize import Redaction, clean_notebook

_START_SECONDS = 180  # for a kernel to answer; on a loaded machine imports take their time
_OUTPUT_SECONDS = 120  # for the outputs of a cell to arrive after it has ended
_MESSAGE_LENGTH = 300


def execute_notebook(
    source: Path,
    output: Path,
    parameters: dict[str, Any],
    *,
    cwd: Path | None = None,
    failed: Path | None = None,
    timeout: int | None = None,
    root: Path | None = None,
) -> None:
    """Execute ``source`` with ``parameters`` and write ``output``, whole and only on success.

    The kernel runs under this interpreter whatever kernel the notebook names, and dies with this
    process. Two executions of a deterministic notebook write the same bytes.

    Parameters
    ----------
    source
        A notebook without outputs. Exactly one code cell has the tag ``parameters``; it holds only
        assignments of JSON values to names.
    output
        Where the executed notebook goes.
    parameters
        Values for names that the parameters cell assigns, of the type it assigns; where that is
        None, of any type that JSON keeps.
    cwd
        Where the kernel runs; by default where this process does.
    failed
        Where a notebook that failed is kept, with its traceback; by default beside ``output``, as
        ``<stem>.failed.ipynb``. The next success removes it.
    timeout
        Seconds that one cell may take; None for no limit.
    root
        The repository, which paths in the output become relative to; by default this one.

    Raises
    ------
    UsageError
        ``source`` is no such notebook, or a parameter is unknown or has another type.
    RunError
        A cell failed or took too long, or the kernel died.
    """
    root = root or repo_root()
    shown = _shown(source, root)
    if source.resolve() == output.resolve():
        raise UsageError(f"{shown} is source and output at once, expected two files")
    notebook = read_source(source, shown)
    values = checked_parameters(parameters, notebook, shown)
    failed = failed or output.with_name(f"{output.stem}.failed.ipynb")
    redaction = Redaction.of_this_machine(root)
    numbers = {cell.id: number for number, cell in enumerate(notebook.cells, 1)}
    executed, failure = _execute(notebook, values, cwd or Path.cwd(), timeout)
    if failure is None:
        atomic_write(output, _as_json(clean_notebook(executed, redaction)))
        failed.unlink(missing_ok=True)
        return
    message = redaction.text(" ".join(failure.message.split()))
    if len(message) > _MESSAGE_LENGTH:
        message = f"{message[:_MESSAGE_LENGTH]}..."
    if executed is None:
        raise RunError(f"{shown}: {message}")
    atomic_write(failed, _as_json(clean_notebook(executed, redaction)))
    number = numbers.get(failure.cell_id)
    where = f"cell {number}" if number else "the injected parameters"
    raise RunError(f"{shown}, {where}: {message}; the traceback is in {_shown(failed, root)}")


@dataclass(frozen=True)
class _Failure:
    message: str
    cell_id: str = ""


def _execute(
    notebook: Any, values: dict[str, Any], cwd: Path, timeout: int | None
) -> tuple[Any, _Failure | None]:
    """Let papermill execute the notebook.

    Returns
    -------
    tuple
        The executed notebook, as far as it came, or None if no kernel started; and what failed.
    """
    with light_imports():
        import papermill
        from nbclient.exceptions import CellTimeoutError, DeadKernelError
    live: list[Any] = []
    exit_codes: list[int] = []
    with TemporaryDirectory(prefix="replicata-", ignore_cleanup_errors=True) as directory:
        try:
            executed = papermill.execute_notebook(
                notebook,
                None,
                values,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                request_save_on_cell_execute=False,
                start_timeout=_START_SECONDS,
                execution_timeout=timeout,
                iopub_timeout=_OUTPUT_SECONDS,
                kernel_manager_class=manager_class(Path(directory), exit_codes),
                resources={"metadata": {"path": str(cwd)}},
                record_timing=False,
                store_widget_state=False,
                # How often a stream is flushed depends on the time, and must not show.
                coalesce_streams=True,
                on_notebook_start=lambda notebook: live.append(notebook),
            )
        except papermill.PapermillExecutionError as error:
            return live[0], _Failure(f"{error.ename}: {error.evalue}", _last_started(live[0]).id)
        except CellTimeoutError:
            return _interrupted(live[0], f"the cell took longer than {timeout} seconds")
        except (DeadKernelError, RuntimeError) as error:
            if not live:
                return None, _Failure(f"the kernel did not start: {error}")
            if not isinstance(error, DeadKernelError):
                raise
            return _interrupted(live[0], _death(exit_codes))
    for cell in executed.cells:
        if cell.cell_type == "code" and cell.source.strip():
            stopped = [out for out in cell.outputs if out.output_type == "error"]
            if stopped:  # SystemExit, after which papermill leaves out the rest and is content
                return executed, _Failure(f"{stopped[0].ename}: {stopped[0].evalue}", cell.id)
            if cell.execution_count is None:
                return executed, _Failure("the cell was not executed", cell.id)
    return executed, None


def _last_started(notebook: Any) -> Any:
    started = [c for c in notebook.cells if c.metadata.get("papermill", {}).get("start_time")]
    return started[-1]


def _interrupted(notebook: Any, message: str) -> tuple[Any, _Failure]:
    """Mark the running cell as failed, which papermill does not do if the kernel is gone."""
    from nbformat.v4 import new_output

    cell = _last_started(notebook)
    cell.outputs.append(
        new_output("error", ename="Interrupted", evalue=message, traceback=[message])
    )
    return notebook, _Failure(message, cell.id)


def _death(exit_codes: Sequence[int]) -> str:
    code = exit_codes[0] if exit_codes else 0
    if code == -9:
        return "the kernel was killed (SIGKILL), probably because memory ran out"
    return f"the kernel died with exit code {code}"


def _as_json(notebook: Any) -> str:
    from nbformat.v4 import nbjson

    return nbjson.writes(notebook, allow_nan=False) + "\n"


def _shown(path: Path, root: Path) -> str:
    path, root = path.resolve(), root.resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute one notebook from the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m replicata.workflow.notebooks")
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("-p", dest="parameters", metavar="NAME=JSON", action="append", default=[])
    given = parser.parse_args(arguments)
    terminate_as_interrupt()
    try:
        execute_notebook(given.source, given.output, _from_command_line(given.parameters))
    except ReplicataError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _from_command_line(pairs: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name in values:
            raise UsageError(f"-p {pair}: expected NAME=JSON, each name once")
        try:
            values[name] = json.loads(text)
        except ValueError:
            raise UsageError(
                f"-p {pair}: {text!r} is no JSON value; text is written as '{name}=\"...\"'"
            ) from None
    return values


if __name__ == "__main__":
    sys.exit(main())
