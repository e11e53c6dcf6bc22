"""A notebook as its authors wrote it: is it clean, and which parameters does it take.

papermill warns about a misspelt parameter and runs with the default, lets the defaults win where
no cell has the tag ``parameters``, and writes text where it has no literal for a value. Here each
of these is an error.
"""

import ast
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replicata.errors import UsageError, nearest
from replicata.workflow.sanitize import INJECTED

_KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
}
_REASON_LENGTH = 200


@contextmanager
def light_imports() -> Iterator[None]:
    """Let packages that papermill and nbformat only try to import seem missing meanwhile.

    They are for storage services and for a format of web addresses that notebooks do not have, and
    take longer to load than a kernel takes to start.
    """
    optional = [name for name in ("pyarrow", "rfc3987_syntax") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(optional))
    try:
        yield
    finally:
        for name in optional:
            sys.modules.pop(name, None)


def read_source(source: Path, shown: str) -> Any:
    """Read a notebook that has not been executed.

    Parameters
    ----------
    source
        The file, which stays as it is.
    shown
        How to name it in errors.

    Returns
    -------
    nbformat.NotebookNode
        In format 4.5, every cell with an id.

    Raises
    ------
    UsageError
        The file is missing, no notebook, or carries outputs.
    """
    with light_imports():
        import nbformat
    try:
        document = json.loads(source.read_text(encoding="utf-8"), parse_constant=_refuse)
        for number, cell in enumerate(document["cells"], 1):
            cell.setdefault("id", f"cell-{number}")  # nbformat would draw it at random
        document["nbformat_minor"] = 5
        notebook = nbformat.reads(json.dumps(document), as_version=4)
        nbformat.validate(notebook)
    except FileNotFoundError:
        raise UsageError(f"{shown} is missing, expected a notebook") from None
    except (ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        reason = str(error).strip().partition("\n")[0][:_REASON_LENGTH]
        raise UsageError(f"{shown} is no valid notebook of format 4: {reason}") from None
    for number, cell in enumerate(notebook.cells, 1):
        if INJECTED in cell.metadata.get("tags", []):
            raise UsageError(
                f"{shown}, cell {number} has the tag {INJECTED!r}: this notebook was executed, "
                "expected its source"
            )
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None):
            raise UsageError(
                f"{shown}, cell {number} carries outputs, expected a notebook stripped of them"
            )
    return notebook


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _defaults(notebook: Any, shown: str) -> dict[str, Any]:
    """Return what the parameters cell assigns, by name."""
    tagged = [
        (number, cell)
        for number, cell in enumerate(notebook.cells, 1)
        if "parameters" in cell.metadata.get("tags", [])
    ]
    if len(tagged) != 1 or tagged[0][1].cell_type != "code":
        raise UsageError(
            f"{shown} has {len(tagged)} cells with the tag 'parameters', "
            "expected exactly one, a code cell"
        )
    number, cell = tagged[0]
    where = f"{shown}, cell {number}"
    try:
        statements = ast.parse(cell.source).body
    except SyntaxError as error:
        raise UsageError(f"{where}, line {error.lineno}: {error.msg}") from None
    lines = cell.source.splitlines()
    found: dict[str, Any] = {}
    for statement in statements:
        line = f"{where}, line {statement.lineno}: {lines[statement.lineno - 1].strip()!r}"
        name, value = _literal_assignment(statement, line)
        if name in found:
            raise UsageError(f"{line} assigns {name} again, expected one assignment to a name")
        found[name] = value
    return found


def _literal_assignment(statement: ast.stmt, line: str) -> tuple[str, Any]:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=expression):
            pass
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as expression):
            pass
        case _:
            raise UsageError(
                f"{line} assigns no value to one name, the only thing to do in a parameters cell"
            )
    try:
        value = ast.literal_eval(expression)
    except (ValueError, TypeError):
        raise UsageError(
            f"{line} computes a value, which would not follow a changed parameter; "
            "move it to the next cell"
        ) from None
    if not _survives_json(value):
        raise UsageError(f"{line} assigns a value that JSON has no type for")
    return name, value


def checked_parameters(parameters: dict[str, Any], notebook: Any, shown: str) -> dict[str, Any]:
    """Return the parameters with whole numbers made floats where the default is one.

    Parameters
    ----------
    parameters
        Values by name.
    notebook : nbformat.NotebookNode
        Whose parameters cell holds the defaults.
    shown
        How to name the notebook in errors.

    Raises
    ------
    UsageError
        The notebook has no parameters cell of literal assignments, or a parameter is unknown, has
        another type than its default, or is none that JSON keeps.
    """
    defaults = _defaults(notebook, shown)
    values = {}
    for name, value in parameters.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise UsageError(
                f"{shown} has no parameter {name!r}{nearest(str(name), defaults)}; known: {known}"
            )
        if not _survives_json(value):
            raise UsageError(
                f"{shown}: parameter {name} is {value!r}, expected a value that JSON keeps as it "
                "is: None, True, False, a finite number, text, or lists and mappings of them"
            )
        default = defaults[name]
        if type(default) is float and type(value) is int and float(value) == value:
            value = float(value)
        if default is not None and type(value) is not type(default):
            raise UsageError(
                f"{shown}: parameter {name} is {value!r}, expected {_KINDS[type(default)]} "
                f"like its default {default!r}"
            )
        values[name] = value
    return values


def _survives_json(value: Any) -> bool:
    try:
        return _same(value, json.loads(json.dumps(value, allow_nan=False)))
    except (TypeError, ValueError, RecursionError):
        return False


def _same(one: Any, other: Any) -> bool:
    """Say whether two values are equal and of equal types, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other
