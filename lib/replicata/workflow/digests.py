"""Digests of code: what a result depends on, and nothing that cannot change it.

The digest of a module covers it and everything of ours that it imports, directly or not, also
inside functions. A module counts as its syntax tree without docstrings, so that rewording a comment
reruns nothing. Imports whose name is computed at run time are not seen.
"""

import ast
import json
import sys
from collections.abc import Iterable
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from replicata.errors import RunError
from replicata.workflow.files import digest, sha256_bytes

PACKAGE = "replicata"


def code_digest(*modules: str) -> str:
    """Return the digest of the first-party code that importing ``modules`` can run.

    Parameters
    ----------
    *modules
        Dotted names inside this package.

    Returns
    -------
    str
        SHA-256 in hex over the sorted (name, digest) pairs of the closure of imports.

    Raises
    ------
    RunError
        If a module does not exist or does not parse.
    """
    return digest({name: _tree_digest(path, _stamp(path)) for name, path in _closure(modules)})


def imports_of_notebook(source: str) -> list[str]:
    """Return the first-party modules that a notebook's code cells import.

    Parameters
    ----------
    source
        The notebook's JSON.

    Raises
    ------
    RunError
        If it is no notebook, or a cell does not parse.
    """
    try:
        cells = [cell for cell in json.loads(source)["cells"] if cell["cell_type"] == "code"]
        code = "\n".join(line for cell in cells for line in _text(cell).splitlines())
        # Magics and shell lines are IPython's, not Python's.
        plain = "\n".join(
            line for line in code.splitlines() if not line.lstrip().startswith(("%", "!"))
        )
        tree = ast.parse(plain)
    except (KeyError, TypeError, ValueError, SyntaxError) as error:
        raise RunError(f"the notebook's code cannot be read: {error}") from error
    return [name for name in _imports(tree, PACKAGE, True) if find_source(name)]


def notebook_digest(source: str) -> str:
    """Return the digest of what a notebook says and runs: its cells, without outputs."""
    cells = json.loads(source)["cells"]
    kept = [
        [cell["cell_type"], _text(cell), sorted(cell.get("metadata", {}).get("tags", []))]
        for cell in cells
    ]
    return digest(kept)


def find_source(name: str) -> Path | None:
    """Return the source file of a first-party module without importing it, or None."""
    path: Iterable[str] | None = None
    parts = name.split(".")
    if parts[0] != PACKAGE:
        return None
    origin: str | None = None
    for depth in range(1, len(parts) + 1):
        prefix = ".".join(parts[:depth])
        loaded = sys.modules.get(prefix)
        if loaded is not None and getattr(loaded, "__file__", None):
            path, origin = getattr(loaded, "__path__", None), loaded.__file__
        else:
            spec = PathFinder.find_spec(prefix, path)
            if spec is None:
                return None
            path, origin = spec.submodule_search_locations, spec.origin
        if path is None and depth < len(parts):
            return None
    return Path(origin) if origin else None


def _closure(modules: Iterable[str]) -> list[tuple[str, Path]]:
    found: dict[str, Path] = {}
    waiting = list(modules)
    for name in waiting:
        if find_source(name) is None:
            raise RunError(f"there is no module {name}")
    while waiting:
        name = waiting.pop()
        path = None if name in found else find_source(name)
        if path is None:
            continue
        found[name] = path
        # Importing a.b.c runs a and a.b first.
        waiting += [name.rsplit(".", 1)[0]] if "." in name else []
        waiting += _module_imports(path, _stamp(path), name)
    return sorted(found.items())


def _stamp(path: Path) -> tuple[int, int, int]:
    """Key of the caches below: in a session that edits the code, the file is read again."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


@cache
def _parse(path: Path, stamp: tuple[int, int, int]) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise RunError(f"{path.name}, line {error.lineno}: not valid Python: {error.msg}") from None


@cache
def _module_imports(path: Path, stamp: tuple[int, int, int], name: str) -> tuple[str, ...]:
    return tuple(_imports(_parse(path, stamp), name, path.name == "__init__.py"))


@cache
def _tree_digest(path: Path, stamp: tuple[int, int, int]) -> str:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [statement for statement in body if not _is_bare_text(statement)]
    return sha256_bytes(ast.dump(tree))


def _is_bare_text(node: ast.AST) -> bool:
    """Docstrings, and the strings under attributes that serve as such: neither can do anything."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _imports(tree: ast.AST, module: str, is_package: bool) -> list[str]:
    """Return the first-party names that ``tree`` may import; some may be no modules."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")
                above = above[: len(above) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.split(".")[0] == PACKAGE]


def _text(cell: dict) -> str:
    source = cell["source"]
    return "".join(source) if isinstance(source, list) else source
