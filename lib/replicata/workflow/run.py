"""Running the stages of a paper: a cell to its table, the tables to verdicts and figures.

Each stage writes its outputs whole and its receipt last; a stage without a receipt never counts.
"""

import inspect
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from replicata.errors import (
    NotRun,
    ReplicataError,
    ResourceError,
    RunError,
    UsageError,
    VerificationError,
    nearest,
)
from replicata.workflow import receipts
from replicata.workflow.cells import Cell, StrictParams
from replicata.workflow.files import (
    atomic_write,
    digest,
    pretty_json,
    raise_if_disk_full,
    sha256_file,
    whole_or_not_at_all,
)
from replicata.workflow.layout import Room, repo_root
from replicata.workflow.params import load_params
from replicata.workflow.plan import cell_key, claims_key, planned_cells, table_digests

if TYPE_CHECKING:
    import pandas as pd

TIDY = ("arm", "unit", "metric", "value")
"""Columns that every cell's table has; a paper adds its own."""

_RESERVED = ("group", "cell")  # load_cells adds them


def run_cell(room: Room, cell_id: str) -> receipts.Receipt:
    """Compute one cell and write its table and receipt.

    Parameters
    ----------
    room
        The paper, profile and root.
    cell_id
        One of the experiment's cells.

    Returns
    -------
    Receipt
        Of this cell; with ``not_run`` where the experiment says that it cannot run here.

    Raises
    ------
    UsageError
        Unknown cell.
    ResourceError
        Something is missing on this machine, such as memory or disk.
    RunError
        The experiment failed, or gave no tidy table.
    """
    params = load_params(room.paper, room.profile)
    known = {cell.id: cell for cell in planned_cells(room, params)}
    if cell_id not in known:
        raise UsageError(
            f"{room.paper} has no cell {cell_id!r} at profile {room.profile}"
            f"{nearest(cell_id, known)}"
        )
    cell = known[cell_id]
    key = cell_key(room, params, cell)
    stage = f"cells/{cell_id}"
    with _lock(room, stage):
        if receipts.is_current(room, stage, key):
            # Another process made it while this one waited; Snakemake removes what it reruns.
            kept = receipts.read(room.receipt_path(stage))
            assert kept is not None
            return kept
        preflight(room, params)
        started = time.perf_counter()
        reason, table = None, None
        try:
            table = _checked(room, cell, _compute(room, params, cell))
        except NotRun as not_run:
            reason = str(not_run) or "no reason given"
        path = room.cell_path(cell_id)
        write_table(path, table)
        receipt = receipts.Receipt(
            stage=stage,
            key=key,
            outputs={f"cells/{path.name}": sha256_file(path)},
            not_run=reason,
            seconds=round(time.perf_counter() - started, 3),
            peak_memory_mb=receipts.peak_memory_mb(),
            command=job_command(room, "cell", cell_id),
            cell=cell.model_dump(mode="json"),
            environment=receipts.environment(),
        )
        receipts.write(room.receipt_path(stage), receipt)
    return receipt


def preflight(room: Room, params: StrictParams) -> None:
    """Check, at profile ``paper``, that what the experiment needs is on this machine.

    The checks are in a module of their own, ``preflight.py``, since they change no result: the
    digest of the experiment's code must not depend on them.

    Raises
    ------
    ResourceError
        If something is missing; the sentence names all of it.
    """
    if room.profile != "paper" or not room.has_module("preflight"):
        return
    found = room.module("preflight").preflight(params)
    missing = [str(sentence).rstrip(".") for sentence in found]
    if missing:
        raise ResourceError(f"{room.paper} at profile paper cannot start: {'; '.join(missing)}")


def job_command(room: Room, job: str, cell_id: str | None = None) -> str:
    """Return the command line that runs one stage by hand."""
    cell = f" --cell {cell_id}" if cell_id else ""
    return (
        f"replicata job {job} --paper {room.paper} --profile {room.profile} "
        f"--root {_shown_root(room)}{cell}"
    )


def _shown_root(room: Room) -> str:
    # What is kept with a result names no directory of this machine.
    return room.root.name if room.root.is_absolute() else str(room.root)


def _lock(room: Room, stage: str) -> FileLock:
    """Return a lock that the kernel releases when its holder ends, however it ends."""
    name = digest([str(room.dir), stage])
    path = repo_root() / ".snakemake" / "replicata" / "locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


def _compute(room: Room, params: StrictParams, cell: Cell) -> Any:
    experiment = room.module("experiment")
    # Cells of a registered study depend on the results root: its sealed records lie under one.
    wants_root = len(inspect.signature(experiment.run).parameters) == 3
    try:
        return (
            experiment.run(params, cell, room.root) if wants_root else experiment.run(params, cell)
        )
    except (ReplicataError, NotRun):
        raise
    except MemoryError as error:
        raise ResourceError(
            f"cell {cell.id} of {room.paper} ran out of memory (it reserves {cell.memory_mb} MiB)"
        ) from error
    except Exception as error:
        if isinstance(error, OSError):
            raise_if_disk_full(error, room.cell_path(cell.id))
        traceback.print_exc()
        raise RunError(
            f"cell {cell.id} of {room.paper} failed: {type(error).__name__}: {_one_line(error)}"
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or "no message"


def _checked(room: Room, cell: Cell, table: Any) -> "pd.DataFrame":
    import pandas as pd

    where = f"cell {cell.id} of {room.paper}"
    if not isinstance(table, pd.DataFrame):
        raise RunError(f"{where} gave a {type(table).__name__}, expected a DataFrame")
    missing = [column for column in TIDY if column not in table.columns]
    if missing:
        raise RunError(f"{where} gave no column {', '.join(missing)}, expected {', '.join(TIDY)}")
    taken = [column for column in _RESERVED if column in table.columns]
    if taken:
        raise RunError(f"{where} gave a column {taken[0]!r}, which the pipeline adds itself")
    if table.empty:
        raise RunError(f"{where} gave no rows, expected at least one")
    for column in ("arm", "unit", "metric"):
        wrong = [value for value in table[column] if not isinstance(value, str)]
        if wrong:
            raise RunError(f"{where}: column {column} holds {wrong[0]!r}, expected text")
    try:
        return table.assign(value=table["value"].astype("float64"))
    except (TypeError, ValueError) as error:
        raise RunError(f"{where}: column value holds no number: {_one_line(error)}") from error


def write_table(path: Path, table: "pd.DataFrame | None") -> None:
    """Write a table as Parquet, atomically; the same data give the same bytes.

    Parameters
    ----------
    path
        The file.
    table
        The rows; None writes a table with the tidy columns and no row.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    if table is None:
        empty = {name: pd.Series([], dtype="str") for name in TIDY[:-1]}
        table = pd.DataFrame(empty | {"value": pd.Series([], dtype="float64")})
    # pandas' own metadata records the index and library versions, which are no data.
    arrow = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None)
    with whole_or_not_at_all(path) as draft:
        pq.write_table(arrow, draft, compression="zstd", compression_level=9)


def load_cells(room: Room, groups: Sequence[str] | None = None) -> "pd.DataFrame":
    """Return the rows of a paper's cells in one table.

    Parameters
    ----------
    room
        The paper, profile and root.
    groups
        Which groups of cells; None for all. Tables of cells that are no longer planned are ignored.

    Returns
    -------
    DataFrame
        The cells' own columns, with ``group`` and ``cell`` added.

    Raises
    ------
    RunError
        If a cell has not been run.
    VerificationError
        If a table is not what its receipt recorded.
    """
    import pandas as pd

    params = load_params(room.paper, room.profile)
    tables = []
    for cell in planned_cells(room, params):
        if groups is not None and cell.group not in groups:
            continue
        path = room.cell_path(cell.id)
        recorded = table_digests(room, [cell.id])[cell.id]
        if not path.is_file():
            raise RunError(f"cell {cell.id} of {room.paper} ({room.profile}) has no table")
        if sha256_file(path) != recorded:
            raise VerificationError(
                f"cells/{path.name} of {room.paper} is not what its receipt recorded"
            )
        table = pd.read_parquet(path)
        if len(table):
            tables.append(table.assign(group=cell.group, cell=cell.id))
    if not tables:
        return pd.DataFrame(columns=[*TIDY, *_RESERVED])
    return pd.concat(tables, ignore_index=True)


def not_run_reason(room: Room, cells: Sequence[Cell], groups: Sequence[str]) -> str | None:
    """Return why ``groups`` were not run: no cells at this profile, or the first that could not."""
    planned = {cell.group for cell in cells}
    for group in groups:
        if group not in planned:
            return f"profile {room.profile} has no {group} cells"
    for cell in cells:
        if cell.group in groups:
            receipt = receipts.read(room.receipt_path(f"cells/{cell.id}"))
            if receipt is not None and receipt.not_run is not None:
                return receipt.not_run
    return None


def evaluate_claim(room: Room, params: StrictParams, claim: Any) -> Any:
    """Decide one claim from the tables of its groups.

    Parameters
    ----------
    room, params
        Of the paper.
    claim
        From the ledger.

    Returns
    -------
    Decision
        The verdict with its evidence.

    Raises
    ------
    RunError
        If the claim names a group without cells, has no evidence function, or that one fails.
    """
    from replicata.claims.verdicts import decide

    if claim.not_testable:
        return decide(claim, None)
    cells = planned_cells(room, params)
    planned = {cell.group for cell in cells}
    known = planned | set(getattr(room.module("experiment"), "GROUPS", ()))
    for group in claim.groups:
        if group not in known:
            raise RunError(
                f"claim {claim.id} needs group {group!r}, which no cell has{nearest(group, known)}"
            )
    reason = not_run_reason(room, cells, claim.groups)
    if reason is not None:
        return decide(claim, None, not_run=reason)
    analysis = room.module("analysis")
    find = analysis.EVIDENCE.get(claim.id.rsplit(".", 1)[-1])
    if find is None:
        raise RunError(f"{room.module_name('analysis')}.EVIDENCE has nothing for claim {claim.id}")
    rows = load_cells(room, claim.groups)
    try:
        evidence = find(rows, params)
    except ReplicataError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise RunError(
            f"the evidence for claim {claim.id} failed: {type(error).__name__}: {_one_line(error)}"
        ) from error
    return decide(claim, evidence)


def claims_document(room: Room) -> dict[str, Any]:
    """Return what claims.json holds, computed from the cells' tables."""
    from replicata.claims.ledger import load_ledger
    from replicata.claims.verdicts import ledger_document

    params = load_params(room.paper, room.profile)
    ledger = load_ledger(room.ledger)
    return ledger_document(
        ledger,
        room.profile,
        [evaluate_claim(room, params, claim) for claim in ledger.claims],
        ledger_sha256=sha256_file(room.ledger),
        params_sha256=digest(params.model_dump(mode="json")),
    )


def run_claims(room: Room) -> receipts.Receipt:
    """Decide all claims of a paper and draw its figures.

    Raises
    ------
    RunError
        If a cell is missing, or a claim or figure fails.
    VerificationError
        If a table is not what its receipt recorded.
    """
    started = time.perf_counter()
    params = load_params(room.paper, room.profile)
    cells = planned_cells(room, params)
    key = claims_key(room, params, table_digests(room, [cell.id for cell in cells]))
    document = claims_document(room)
    drawn, skipped = _draw_figures(room, params, cells)
    atomic_write(room.claims_json, pretty_json(document))
    outputs = [room.claims_json, *drawn]
    receipt = receipts.Receipt(
        stage="claims",
        key=key,
        outputs={str(path.relative_to(room.dir)): sha256_file(path) for path in outputs},
        skipped=skipped,
        seconds=round(time.perf_counter() - started, 3),
        peak_memory_mb=receipts.peak_memory_mb(),
        command=job_command(room, "claims"),
        environment=receipts.environment(),
    )
    receipts.write(room.receipt_path("claims"), receipt)
    return receipt


def _draw_figures(
    room: Room, params: StrictParams, cells: Sequence[Cell]
) -> tuple[list[Path], dict[str, str]]:
    """Write figures and captions; return their paths, and the figures skipped, with the reason."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    room.figures_dir.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []
    skipped: dict[str, str] = {}
    captions: dict[str, str] = {}
    for name, (groups, draw, caption) in room.module("figures").FIGURES.items():
        reason = not_run_reason(room, cells, groups)
        if reason is not None:
            skipped[f"figures/{name}.png"] = f"not run: {reason}"
            continue
        rows = load_cells(room, groups)
        try:
            figure = draw(rows, params)
            captions[name] = caption(rows, params) if callable(caption) else caption
        except ReplicataError:
            raise
        except Exception as error:
            traceback.print_exc()
            raise RunError(
                f"figure {name} of {room.paper} failed: {type(error).__name__}: {_one_line(error)}"
            ) from error
        path = room.figures_dir / f"{name}.png"
        with whole_or_not_at_all(path) as draft:
            # matplotlib's version is no part of the figure.
            figure.savefig(draft, dpi=150, metadata={"Software": None})
        plt.close(figure)
        drawn.append(path)
    for leftover in set(room.figures_dir.glob("*.png")) - set(drawn):
        leftover.unlink()
    atomic_write(room.figures_dir / "captions.json", pretty_json(captions))
    return [*drawn, room.figures_dir / "captions.json"], skipped
