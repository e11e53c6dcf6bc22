"""Models of the Hugging Face hub, pinned to a revision."""

import re
from pathlib import Path

from replicata.errors import ResourceError, UsageError
from replicata.models.cache import cache_dir, hash_model
from replicata.workflow.files import atomic_write

PREFIX = "hub:"
# Weights as safetensors only: a pickled checkpoint can run code when it is loaded.
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def parse(name: str) -> tuple[str, str]:
    """Split ``hub:<repository>@<revision>``.

    Raises
    ------
    UsageError
        If the revision is missing: a branch moves, so results would not be reproducible.
    """
    match = re.fullmatch(r"hub:([\w.-]+(?:/[\w.-]+)?)@([\w./-]+)", name)
    if match is None:
        raise UsageError(
            f"model {name!r}: expected hub:<repository>@<revision>, the revision a commit or tag"
        )
    return match[1], match[2]


def directory(name: str) -> Path:
    """Return the local snapshot of a hub model, downloading what is missing.

    Raises
    ------
    UsageError
        If ``name`` is malformed.
    ResourceError
        If it is neither in the local Hugging Face cache nor downloadable.
    """
    from huggingface_hub import snapshot_download

    repository, revision = parse(name)
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=FILES))
    # No network, unknown repository or revision, no permission, disk full: the client's errors
    # have no common base below Exception.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ResourceError(
            f"model {name}: not in the local Hugging Face cache and not downloadable "
            f"({type(error).__name__}: {reason[:200]}); on a machine with network run "
            f"'hf download {repository} --revision {revision}' and copy its cache here"
        ) from error


def fingerprint(snapshot: Path) -> str:
    """Return the fingerprint of a snapshot, hashing its weights only the first time.

    A snapshot directory is named by its commit, which determines the content.
    """
    known = cache_dir() / "fingerprints" / f"{snapshot.parent.parent.name}-{snapshot.name}"
    if known.is_file():
        return known.read_text().strip()
    value = hash_model(snapshot)
    atomic_write(known, value + "\n")
    return value
