"""The manifest: digests of every file that a study's results depend on.

Code is found by following the imports of the study's entry point (also those inside functions) as
far as they lead to files of the same repository, and listed with its module names, so that the
analysis can check the very files it has loaded. Imports whose name is computed are not seen; the
protocol names such modules itself.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from replicata.errors import UsageError
from replicata.preregistration.protocol import Protocol
from replicata.workflow.files import sha256_bytes


def build_manifest(protocol: Protocol, root: Path) -> dict[str, Any]:
    """Return ``{"files": {path: sha256}, "modules": {name: path}}`` for a protocol.

    Raises
    ------
    UsageError
        If a named module or file does not exist in the repository.
    """
    names = [protocol.analysis.entry_point.partition(":")[0], *protocol.analysis.modules]
    modules = {name: str(path.relative_to(root)) for name, path in code_files(names, root).items()}
    paths = {*modules.values(), *protocol.analysis.files}
    return {
        "files": {path: file_digest(root / path) for path in sorted(paths)},
        "modules": dict(sorted(modules.items())),
    }


def code_files(names: Iterable[str], root: Path) -> dict[str, Path]:
    """Return the files under ``root`` that importing ``names`` can run, by module name.

    Raises
    ------
    UsageError
        If one of ``names`` is no module of this repository.
    """
    found: dict[str, Path] = {}
    waiting = list(names)
    for name in waiting:
        if _source(name, root) is None:
            raise UsageError(f"draft.yaml: analysis names {name!r}, which is no module in here")
    while waiting:
        name = waiting.pop()
        path = None if name in found else _source(name, root)
        if path is not None:
            found[name] = path
            waiting += [name.rpartition(".")[0]] if "." in name else []
            waiting += _imports(path, name)
    return found


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file; of a notebook, of its code cells only.

    Raises
    ------
    UsageError
        If there is no such file, or a notebook is none.
    """
    try:
        data = path.read_bytes()
        if path.suffix != ".ipynb":
            return hashlib.sha256(data).hexdigest()
        cells = [cell for cell in json.loads(data)["cells"] if cell["cell_type"] == "code"]
        return sha256_bytes(json.dumps(["".join(cell["source"]) for cell in cells]))
    except FileNotFoundError:
        raise UsageError(f"{path.name} is named by the protocol but missing") from None
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path.name} is no notebook: {error}") from None


def differing_files(manifest: dict[str, Any], root: Path) -> list[str]:
    """Return the manifest's paths whose files are missing or other than they were."""
    return [path for path, digest in manifest["files"].items() if _differs(root / path, digest)]


def differing_code(manifest: dict[str, Any], root: Path, before: set[str]) -> list[str]:
    """Return what differs between the frozen code and the code that has been loaded.

    Parameters
    ----------
    manifest
        The frozen one.
    root
        The repository.
    before
        Names in ``sys.modules`` before the study was loaded: what came since belongs to it.

    Returns
    -------
    list[str]
        Paths, relative to ``root`` where they are in it: frozen files that are other now or were
        loaded from elsewhere, and loaded files of the repository that were not frozen.
    """
    differing = set(differing_files(manifest, root))
    for name, path in manifest["modules"].items():
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded is not None and Path(loaded).resolve() != (root / path).resolve():
            digest = manifest["files"][path]
            if _differs(Path(loaded), digest):
                differing.add(path)
    for name in set(sys.modules) - before - set(manifest["modules"]):
        loaded = getattr(sys.modules.get(name), "__file__", None)
        # Some libraries name files that do not exist, such as torch's "_ops.py", which would lie
        # wherever the analysis is run.
        if (
            loaded
            and loaded.endswith(".py")
            and Path(loaded).is_file()
            and _inside(Path(loaded), root)
        ):
            differing.add(f"{Path(loaded).resolve().relative_to(root.resolve())} (not frozen)")
    return sorted(differing)


def _differs(path: Path, digest: str) -> bool:
    try:
        return file_digest(path) != digest
    except (UsageError, OSError):
        return True


def _inside(path: Path, root: Path) -> bool:
    path, root = path.resolve(), root.resolve()
    return path.is_relative_to(root) and "site-packages" not in path.parts


def _source(name: str, root: Path) -> Path | None:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin).resolve()
    return path if _inside(path, root) else None


def _running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a syntax tree, leaving out what is there for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if not (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            yield node
            yield from _running_nodes(node)


def _imports(path: Path, module: str) -> list[str]:
    names: list[str] = []
    for node in _running_nodes(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")
                above = above[: len(above) - node.level + (path.name == "__init__.py")]
                base = ".".join([*above, base] if base else above)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names
