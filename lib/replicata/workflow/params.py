"""Loading params/<paper>/<profile>.yaml, so that no typing slip changes an experiment silently.

YAML 1.1 reads ``yes`` as true, ``007`` as 7, ``1:30`` as 90 and ``1e-4`` as text. Here a plain word
is a boolean, a number or null only if it is written as JSON would write it; everything else stays
text, which the strict schema then refuses where it expects something else.
"""

import json
import re
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from replicata.errors import RunError, UsageError, nearest
from replicata.workflow.cells import StrictParams
from replicata.workflow.layout import Room, repo_root

_EXPECTED = {
    "int": "a whole number",
    "float": "a number with a point, such as 0.5 or 1.0e-4",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
}


class _Loader(yaml.SafeLoader):
    """YAML with the scalars of JSON; see the module's docstring."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (the name is PyYAML's)


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+]?[0-9]+)?", "-+0123456789"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )


def load_params(paper: str, profile: str, params_dir: Path | None = None) -> StrictParams:
    """Read and check a paper's params.

    Parameters
    ----------
    paper, profile
        Which ones.
    params_dir
        Where they lie; by default ``params/`` in the repository.

    Returns
    -------
    StrictParams
        The ``Params`` of the paper's experiment.

    Raises
    ------
    UsageError
        Unknown paper or profile, missing file, broken YAML, a key that is unknown, missing or
        twice there, a value of another type: a sentence that names file, key, value and what was
        expected.
    """
    room = Room(paper, profile)
    path = (params_dir or repo_root() / "params") / paper / f"{profile}.yaml"
    schema = getattr(room.module("experiment"), "Params", None)
    if not (isinstance(schema, type) and issubclass(schema, StrictParams)):
        raise RunError(f"{room.module_name('experiment')} has no class Params(StrictParams)")
    return _validate(schema, read_yaml(path), _shown(path))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping, refusing duplicate keys and the surprises of YAML 1.1.

    Raises
    ------
    UsageError
        If the file is missing, is no YAML, is no mapping, or has a key twice.
    """
    shown = _shown(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{shown} is missing, expected a YAML file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown} is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        node = yaml.compose(text, Loader=_Loader)
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{shown} holds no mapping, expected lines such as 'seeds: 5'")
        _refuse_duplicates(node, shown, "")
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UsageError(
            f"{shown}{where}: not valid YAML: {getattr(error, 'problem', None) or error}"
        ) from None


def _refuse_duplicates(node: yaml.Node, shown: str, prefix: str) -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            _refuse_duplicates(child, shown, f"{prefix}{index}.")
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise UsageError(
                    f"{shown}, line {line}: key {prefix}{key.value} is there already "
                    f"in line {seen[key.value]}, expected it once"
                )
            seen[key.value] = line
            _refuse_duplicates(child, shown, f"{prefix}{key.value}.")


def _validate(schema: type[StrictParams], values: dict[str, Any], shown: str) -> StrictParams:
    try:
        # Through JSON, because strict validation of Python values refuses a list for a tuple.
        return schema.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise UsageError(_sentence(schema, error, shown)) from None
    except TypeError as error:
        raise UsageError(f"{shown}: {error}, expected text, numbers, lists or mappings") from None


def _sentence(schema: type[BaseModel], error: ValidationError, shown: str) -> str:
    first, *more = error.errors(include_url=False)
    location = first["loc"]
    key = ".".join(str(part) for part in location) or "(the whole file)"
    others = f" (and {len(more)} more such errors)" if more else ""
    if first["type"] == "extra_forbidden":
        known = _known_keys(schema, location[:-1])
        return f"{shown}: unknown key {key}{nearest(str(location[-1]), known)}{others}"
    if first["type"] == "missing":
        return f"{shown}: key {key} is missing{others}"
    value = json.dumps(first["input"], ensure_ascii=False)
    kind = first["type"].removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    expected = _EXPECTED.get(kind) or first["msg"].removeprefix("Input should be ").removeprefix(
        "Value error, "
    )
    hint = ""
    if isinstance(first["input"], str) and kind in ("int", "float", "bool"):
        hint = " (this spelling is read as text)"
    return f"{shown}: key {key} is {value}{hint}, expected {expected}{others}"


def _known_keys(schema: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the schema has at ``location``, or none where that is not a model."""
    models: list[type[BaseModel]] = [schema]
    for part in location:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if isinstance(part, str) and fields:
            models = [found for field in fields for found in _models_in(field.annotation)]
    return sorted({name for model in models for name in model.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models_in(argument)]


def _shown(path: Path) -> str:
    """Return the path as a reader of the repository knows it."""
    parts = path.parts
    return "/".join(parts[parts.index("params") :]) if "params" in parts else path.name
