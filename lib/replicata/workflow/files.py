"""Writing files whole or not at all, and digests of what is in them."""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replicata.errors import ResourceError, RunError


@contextmanager
def whole_or_not_at_all(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it once the block has succeeded.

    A reader sees the old file or the new one, never a part; after an error, or a kill, ``path``
    is as it was.

    Raises
    ------
    ResourceError
        If the disk is full or over quota.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix
        )
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            draft.chmod(0o644)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise_if_disk_full(error, path)
        raise


def raise_if_disk_full(error: OSError, path: Path) -> None:
    """Turn "no space left" and "over quota" into a sentence; let any other error pass.

    Raises
    ------
    ResourceError
        If that is what ``error`` says.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise ResourceError(
            f"no space left on the disk for {path.name}: free some and run the same command again; "
            "nothing half-written was kept"
        ) from error


def atomic_write(path: Path, content: bytes | str) -> None:
    """Write ``content`` (text as UTF-8, line ends as they are) so that ``path`` is never partial.

    Raises
    ------
    ResourceError
        If the disk is full or over quota.
    """
    data = content.encode() if isinstance(content, str) else content
    with whole_or_not_at_all(path) as draft, draft.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def sha256_bytes(content: bytes | str) -> str:
    """Return the SHA-256 of ``content`` in hex; text is taken as UTF-8."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """Return ``value`` as JSON with sorted keys, no spaces and no NaN: one text per value.

    Raises
    ------
    RunError
        If it holds a NaN, an infinity or something JSON has no type for.
    """
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise RunError(f"a value has no canonical JSON form: {error}") from error


def pretty_json(value: Any) -> str:
    """Return ``value`` as JSON for people and for git: sorted keys, indented, newline at the end.

    Raises
    ------
    RunError
        If it holds a NaN, an infinity or something JSON has no type for.
    """
    canonical_json(value)
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of ``value`` in hex."""
    return sha256_bytes(canonical_json(value))
