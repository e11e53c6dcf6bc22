"""A model directory is made once, whole or not at all, and never trusted when damaged.

Layout: ``<cache>/models/<key>/`` holds the files and ``replicata.json``, written last, with the
size, modification time and SHA-256 of each. Builders work in a temporary sibling directory under a
file lock, and the finished directory is renamed into place, so a reader never sees a partial one; a
process killed half-way leaves a temporary directory that the next builder removes.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from replicata.errors import ResourceError
from replicata.workflow.files import sha256_file

RECORD = "replicata.json"
FORMAT = 1
"""Raised when the record changes shape: directories of another format are built anew."""


def cache_dir() -> Path:
    """Return ``$REPLICATA_CACHE``, or ``~/.cache/replicata`` when it is unset or empty."""
    configured = os.environ.get("REPLICATA_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "replicata"


def cached_directory(key: str, build: Callable[[Path], None]) -> Path:
    """Return the directory of ``key``, building it if it is missing or damaged.

    Parameters
    ----------
    key
        Directory name; everything the content depends on must be part of it.
    build
        Writes the files into the empty directory it is given.

    Returns
    -------
    Path
        A directory whose files are as they were built.

    Raises
    ------
    ResourceError
        If the cache cannot be written.
    """
    target = cache_dir() / "models" / key
    if is_intact(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{key}.lock")):
            # Another process may have built it while this one waited for the lock.
            if not is_intact(target):
                _build(target, build)
    except OSError as error:
        raise ResourceError(
            f"cache: cannot make the model directory {target}: {error.strerror or error}; "
            "set REPLICATA_CACHE to a directory with free space"
        ) from error
    return target


def is_intact(directory: Path) -> bool:
    """Tell whether every recorded file is there as it was built.

    Size and modification time are compared every time, at no cost; a file that was touched since
    (or copied from elsewhere) is hashed.
    """
    record = _read_record(directory)
    if record is None:
        return False
    for name, built in record["files"].items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != built["size"]:
            return False
        touched = path.stat().st_mtime_ns != built["mtime_ns"]
        if touched and sha256_file(path) != built["sha256"]:
            return False
    return True


def fingerprint(directory: Path) -> str:
    """Return the fingerprint recorded when a cached directory was built, see :func:`hash_model`."""
    record = _read_record(directory)
    if record is None:
        raise ResourceError(f"cache: {directory / RECORD} is missing or unreadable")
    return record["fingerprint"]


def hash_model(directory: Path) -> str:
    """Return one SHA-256 over ``config.json`` and all ``*.safetensors`` of a directory, in hex.

    It is the hash of the lines ``<name> NUL <sha256> LF``, sorted by name.
    """
    paths = sorted([directory / "config.json", *directory.glob("*.safetensors")])
    lines = [f"{path.name}\0{sha256_file(path)}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _build(target: Path, build: Callable[[Path], None]) -> None:
    """Build into a temporary sibling, record it, and put it in the place of ``target``."""
    prefix = f".{target.name}~"
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover)  # of a killed builder: the lock is ours, so nobody writes there
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=prefix))
    try:
        build(temporary)
        record = {
            "format": FORMAT,
            "files": _describe(temporary),
            "fingerprint": hash_model(temporary),
        }
        (temporary / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
        for path in temporary.rglob("*"):
            if path.is_file():
                path.chmod(0o644)
                with path.open("rb") as file:
                    os.fsync(file.fileno())  # sizes are recorded: the content must be there too
        if target.exists():
            shutil.rmtree(target)
        temporary.chmod(0o755)
        os.replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _describe(directory: Path) -> dict[str, dict[str, int | str]]:
    """Return size, modification time (ns) and SHA-256 of every file."""
    return {
        path.relative_to(directory).as_posix(): {
            "size": path.stat().st_size,
            "mtime_ns": path.stat().st_mtime_ns,
            "sha256": sha256_file(path),
        }
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def _read_record(directory: Path) -> dict[str, Any] | None:
    """Return the record, or ``None`` if it is missing, damaged or of another format."""
    try:
        record = json.loads((directory / RECORD).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("format") == FORMAT else None
