"""The notebook stage, and the manifest: what was run, from what, where, and what came out."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from replicata.errors import VerificationError
from replicata.workflow import receipts
from replicata.workflow.files import (
    atomic_write,
    digest,
    pretty_json,
    sha256_bytes,
    sha256_file,
)
from replicata.workflow.layout import Room, repo_root
from replicata.workflow.params import load_params
from replicata.workflow.plan import (
    cell_key,
    notebook_key,
    planned_cells,
    profile_key,
    profile_receipt,
)
from replicata.workflow.run import job_command


def run_notebook(room: Room) -> receipts.Receipt:
    """Execute a paper's notebook and write the manifest of all its outputs.

    Raises
    ------
    RunError
        If the notebook is missing or fails.
    """
    from replicata.workflow.notebooks import execute_notebook

    started = time.perf_counter()
    key = notebook_key(room)
    execute_notebook(
        room.notebook_source,
        room.notebook,
        {"profile": room.profile, "root": str(room.root)},
    )
    seconds = round(time.perf_counter() - started, 3)
    atomic_write(room.manifest_json, pretty_json(_manifest(room, seconds)))
    receipt = receipts.Receipt(
        stage="notebook",
        key=key,
        outputs={path.name: sha256_file(path) for path in (room.notebook, room.manifest_json)},
        seconds=seconds,
        peak_memory_mb=receipts.peak_memory_mb(),
        command=job_command(room, "notebook"),
        environment=receipts.environment(),
    )
    receipts.write(room.receipt_path("notebook"), receipt)
    return receipt


def _manifest(room: Room, notebook_seconds: float) -> dict[str, Any]:
    params = load_params(room.paper, room.profile)
    values = params.model_dump(mode="json")
    cells = planned_cells(room, params)
    stages = [receipts.read(room.receipt_path(f"cells/{cell.id}")) for cell in cells]
    stages.append(receipts.read(room.receipt_path("claims")))
    found = [receipt for receipt in stages if receipt is not None]
    outputs = {name: sha for receipt in found for name, sha in receipt.outputs.items()}
    outputs[room.notebook.name] = sha256_file(room.notebook)
    root = room.root.name if room.root.is_absolute() else room.root
    return {
        "schema": 1,
        "paper": room.paper,
        "profile": room.profile,
        "commit": _commit(),
        "params_sha256": digest(values),
        "code_sha256": digest([cell_key(room, params, cell) for cell in cells]),
        "ledger_sha256": sha256_file(room.ledger),
        "environment": receipts.environment(),
        "hardware": {
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        },
        "seeds": _seeds(values) | _seeds({cell.id: cell.params for cell in cells}),
        "seconds": round(sum(receipt.seconds for receipt in found) + notebook_seconds, 3),
        "peak_memory_mb": max([0.0, *(receipt.peak_memory_mb for receipt in found)]),
        "not_run": {receipt.stage: receipt.not_run for receipt in found if receipt.not_run},
        "command": f"replicata run {room.paper} --profile {room.profile} --root {root}",
        "outputs": dict(sorted(outputs.items())),
    }


def _commit() -> dict[str, Any] | None:
    """Return the commit of the code and whether it was changed since; None outside of git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments],
            cwd=repo_root(),
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        # Results are what the run writes; only what it was run from can make it unclean.
        changed = git("status", "--porcelain", "--", "lib", "params", "notebooks", "Snakefile")
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"sha": commit, "dirty": bool(changed)}


def _seeds(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return every value whose key says that it is a seed, by its dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items() if isinstance(values, dict) else ():
        name = f"{prefix}{key}"
        if "seed" in key and isinstance(value, int | list):
            found[name] = value
        found |= _seeds(value, f"{name}.")
    return found


def run_report(profile: str, root: Path, names: list[str]) -> None:
    """Write the front page of a profile, and its receipt.

    Parameters
    ----------
    profile, root
        Whose results.
    names
        The papers of the page.
    """
    from replicata.workflow.report import write_report

    started = time.perf_counter()
    page = write_report(root, profile, names)
    _write_profile_receipt("report", profile, root, page, started)


def run_audit(profile: str, root: Path, names: list[str]) -> list[str]:
    """Verify a profile's results and write audit.json and its receipt.

    Returns
    -------
    list[str]
        The lines of the audit.

    Raises
    ------
    VerificationError
        If any check fails; nothing is written then.
    """
    from replicata.workflow.verify import verify

    started = time.perf_counter()
    checks = [check for name in names for check in verify(Room(name, profile, root))]
    failed = [check for check in checks if check.status == "FAIL"]
    if failed:
        print("\n".join(check.line() for check in checks))
        raise VerificationError(
            f"{len(failed)} of {len(checks)} checks fail, first: {failed[0].line()}"
        )
    page = repo_root() / root / profile / "audit.json"
    document = {"schema": 1, "profile": profile, "checks": [vars(check) for check in checks]}
    atomic_write(page, pretty_json(document))
    _write_profile_receipt("audit", profile, root, page, started)
    return [check.line() for check in checks]


def _write_profile_receipt(
    stage: str, profile: str, root: Path, page: Path, started: float
) -> None:
    receipt = receipts.Receipt(
        stage=stage,
        key=profile_key(stage, root, profile),
        outputs={page.name: sha256_bytes(page.read_bytes())},
        seconds=round(time.perf_counter() - started, 3),
        peak_memory_mb=receipts.peak_memory_mb(),
        command=f"replicata job {stage} --profile {profile} --root {root.name}",
        environment=receipts.environment(),
    )
    receipts.write(profile_receipt(root, profile, stage), receipt)
