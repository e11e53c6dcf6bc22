"""``replicata new <slug>``: a complete room for a new paper, which runs green at once.

The room it makes is a small, honest experiment in the shape every room has. Its author replaces the
experiment, and what is marked ``FILL IN``; until none of these marks is left, ``replicata list``
calls the paper a draft.
"""

import json
import keyword
import re
import shutil
from importlib.resources import files
from pathlib import Path

from replicata.errors import UsageError
from replicata.workflow.files import atomic_write

MARK = "FILL IN"
"""What stands where the author of a new room has to say something."""

_SLUG = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TEMPLATES = "scaffold_files"


def new_paper(slug: str, root: Path, title: str | None = None) -> list[Path]:
    """Write the room, params, notebook and tests of a new paper.

    Parameters
    ----------
    slug
        The paper's name in paths and commands: lower-case letters, digits and underscores.
    root
        The repository's root.
    title
        The paper's title, one line; by default a place to fill it in.

    Returns
    -------
    list[Path]
        The files written, sorted.

    Raises
    ------
    UsageError
        If the slug or title cannot be used, ``root`` is no repository, or any of the places is
        taken. Nothing is written then.
    """
    _check_slug(slug)
    title = _check_title(title)
    if not (root / "lib/replicata/papers").is_dir():
        raise UsageError(f"{root} holds no lib/replicata/papers, expected the repository's root")
    for place in _places(slug):
        if (root / place).exists():
            raise UsageError(f"{place} exists already, expected a slug that no paper has")
    contents = {root / path: text for path, text in _render(slug, title).items()}
    try:
        for path, text in contents.items():
            atomic_write(path, text)
    except BaseException:
        for place in _places(slug):  # none of them was there before
            _remove(root / place)
        raise
    return sorted(contents)


def is_draft(room_dir: Path) -> bool:
    """Say whether anything of a paper is still marked ``FILL IN``.

    Parameters
    ----------
    room_dir
        ``lib/replicata/papers/<slug>`` in the repository; the paper's params, notebook and tests
        are looked through too.
    """
    slug, root = room_dir.name, room_dir.parents[3]
    candidates = [root / place for place in _places(slug)]
    texts = [path for place in candidates for path in (place, *place.rglob("*")) if path.is_file()]
    return any(MARK.encode() in path.read_bytes() for path in texts if path.suffix != ".pyc")


def _places(slug: str) -> tuple[str, ...]:
    return (
        f"lib/replicata/papers/{slug}",
        f"params/{slug}",
        f"notebooks/{slug}.ipynb",
        f"tests/papers/{slug}",
    )


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _check_slug(slug: str) -> None:
    if not _SLUG.fullmatch(slug) or keyword.iskeyword(slug):
        raise UsageError(
            f"{slug!r} cannot name a paper, expected at most 32 lower-case letters, digits and "
            "underscores, a letter first, and no Python keyword, such as 'my_paper'"
        )


def _check_title(title: str | None) -> str:
    if title is None:
        return f"{MARK}: the paper's title"
    if not title.strip() or not title.isprintable():
        raise UsageError(f"{title!r} cannot be a title, expected one line of text")
    return title.strip()


def _render(slug: str, title: str) -> dict[str, str]:
    """Return the text of each new file by its path below the root."""
    room, params, notebook, tests = _places(slug)
    templates = {
        item.name.removesuffix(".template"): item.read_text(encoding="utf-8")
        for item in files("replicata.workflow").joinpath(_TEMPLATES).iterdir()
        if item.name.endswith(".template")
    }
    found: dict[str, str] = {}
    for name, text in templates.items():
        if name == "notebook.ipynb":
            found[notebook] = _render_notebook(text, slug, title)
            continue
        if name.startswith("test_"):
            path = f"{tests}/test_{slug}.py"
        elif name in ("smoke.yaml", "cpu.yaml", "paper.yaml"):
            path = f"{params}/{name}"
        else:
            path = f"{room}/{name}"
        quoted = json.dumps(title, ensure_ascii=False)  # a JSON string is a YAML string
        found[path] = text.replace("@TITLE@", quoted).replace("@SLUG@", slug)
    return found


def _render_notebook(text: str, slug: str, title: str) -> str:
    """Return the notebook with its placeholders filled in cell by cell, so that JSON stays JSON."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        cell["source"] = [
            line.replace("@TITLE@", title).replace("@SLUG@", slug) for line in cell["source"]
        ]
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
