"""Git around a protocol: is the tree clean, are digests safe on checkout, which commit holds it.

A commit is a weak anchor: its author controls its date and, until it is pushed, its history.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from replicata.errors import RunError, UsageError, VerificationError
from replicata.preregistration.canonical import canonical, read_canonical
from replicata.preregistration.places import Places
from replicata.workflow.files import atomic_write


def git(root: Path, *arguments: str) -> str:
    """Return what a git command prints.

    Raises
    ------
    RunError
        If git is missing or the command fails.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise RunError("git is not installed, and protocols are frozen in a repository") from None
    if done.returncode:
        message = done.stderr.strip().splitlines()
        raise RunError(f"git {arguments[0]} failed: {message[-1] if message else done.returncode}")
    return done.stdout


def check_clean(root: Path) -> str:
    """Return the commit of a clean tree.

    Raises
    ------
    UsageError
        If something is modified, staged or untracked: the sentence names the first file.
    """
    changed = git(root, "status", "--porcelain", "--untracked-files=all").splitlines()
    if changed:
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise UsageError(f"freeze refuses: {changed[0][3:]} is not committed{more}")
    return git(root, "rev-parse", "HEAD").strip()


def check_committed(root: Path, paths: Iterable[str]) -> None:
    """Check that HEAD holds ``paths`` as they are here, also where git was told to look away.

    A file that is ignored or marked as unchanged leaves the tree clean, and lacks in every clone.

    Raises
    ------
    UsageError
        If it does not.
    """
    names = list(paths)
    tree = git(root, "ls-tree", "-r", "-z", "HEAD", "--", *names).split("\0")
    held = {line.partition("\t")[2]: line.split()[2] for line in tree if line}
    here = git(root, "hash-object", "--no-filters", "--", *names).split()
    for name, blob in zip(names, here, strict=True):
        if held.get(name) != blob:
            raise UsageError(f"freeze refuses: {name} is not committed as it is here")


def check_attributes(root: Path, paths: Iterable[str]) -> None:
    """Check that a checkout cannot convert line ends of ``paths``.

    Raises
    ------
    UsageError
        If ``.gitattributes`` does not say ``-text`` for one, which would change its digest on a
        machine with ``core.autocrlf``.
    """
    for line in git(root, "check-attr", "text", "--", *paths).splitlines():
        path, _, value = line.rsplit(": ", 2)
        if value != "unset":
            raise UsageError(
                f".gitattributes leaves {path} to line-end conversion, expected '-text' for it"
            )


def record_anchor(places: Places) -> bool:
    """Write anchor.json if HEAD holds frozen.json as it is; return whether it does."""
    shown = places.shown(places.frozen)
    try:
        blob = git(places.root, "rev-parse", f"HEAD:{shown}").strip()
    except RunError:
        return False
    if blob != git(places.root, "hash-object", "--no-filters", shown).strip():
        return False
    if not places.anchor.exists():
        commit = git(places.root, "log", "-1", "--format=%H", "--", shown).strip()
        atomic_write(places.anchor, canonical({"blob": blob, "commit": commit, "path": shown}))
    return True


def missing_history(root: Path) -> str | None:
    """Return why ancestry cannot be told here, or None: an export, or a shallow clone."""
    try:
        found = git(root, "rev-parse", "--show-toplevel", "--is-shallow-repository")
    except RunError:
        return "no git history here"
    top, shallow = found.splitlines()
    if Path(top).resolve() != root.resolve():
        return "no git history here"
    return "a shallow clone: git fetch --unshallow" if shallow == "true" else None


def verify_anchor(places: Places) -> str:
    """Return the anchoring commit.

    Raises
    ------
    VerificationError
        If the commit is no ancestor of HEAD, or holds another frozen.json.
    """
    anchor = read_canonical(places.anchor)
    commit, path = anchor["commit"], anchor["path"]
    try:
        git(places.root, "merge-base", "--is-ancestor", commit, "HEAD")
        blob = git(places.root, "rev-parse", f"{commit}:{path}").strip()
    except RunError:
        raise VerificationError(
            f"anchor.json: commit {commit[:12]} with {path} is no ancestor of HEAD"
        ) from None
    actual = git(places.root, "hash-object", "--no-filters", str(places.frozen)).strip()
    if blob != anchor["blob"] or actual != blob:
        raise VerificationError(f"anchor.json: commit {commit[:12]} holds another {path}")
    return commit
