"""Where things are: the repository, the papers' rooms, and what a run writes for each of them."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from replicata.errors import ReplicataError, RunError, UsageError, nearest

PROFILES = ("smoke", "cpu", "paper")
"""Every paper has params for these: for CI, for the main job, for the paper's own scale."""

MODULES = ("experiment", "analysis", "figures", "preflight")
"""The modules of a paper's room that the pipeline loads by name."""


def repo_root() -> Path:
    """Return the repository's root: the directory that holds pyproject.toml and Snakefile.

    ``REPLICATA_ROOT`` wins; otherwise the working directory and its parents are searched, then
    those of this file, so that a notebook opened in ``notebooks/`` finds the same root.

    Raises
    ------
    UsageError
        If there is none.
    """
    named = os.environ.get("REPLICATA_ROOT")
    if named:
        if not _is_root(Path(named)):
            raise UsageError(
                f"REPLICATA_ROOT is {named!r}, expected a directory with pyproject.toml and "
                "Snakefile"
            )
        return Path(named).resolve()
    for start in (Path.cwd(), Path(__file__).resolve()):
        for directory in (start, *start.parents):
            if _is_root(directory):
                return directory
    raise UsageError(
        "no repository found here: run this inside a clone of replicata, or set REPLICATA_ROOT"
    )


def _is_root(directory: Path) -> bool:
    return (directory / "pyproject.toml").is_file() and (directory / "Snakefile").is_file()


def papers() -> list[str]:
    """Return the slugs of all papers, sorted: the rooms that have a claims.yaml."""
    import replicata.papers as rooms

    return sorted(
        child.name
        for place in rooms.__path__
        for child in Path(place).iterdir()
        if (child / "claims.yaml").is_file()
    )


def select_papers(names: Sequence[str]) -> list[str]:
    """Return ``names`` without repeats, or all papers where there are none.

    Raises
    ------
    UsageError
        If a name is no paper; the sentence names the nearest.
    """
    known = papers()
    for name in names:
        if name not in known:
            raise UsageError(
                f"no paper is called {name!r}{nearest(name, known)}; known: {', '.join(known)}"
            )
    return list(dict.fromkeys(names)) or known


def check_profile(profile: str) -> str:
    """Return ``profile`` if it is one of ``PROFILES``.

    Raises
    ------
    UsageError
        If it is not; the sentence names the nearest.
    """
    if profile not in PROFILES:
        raise UsageError(
            f"no profile is called {profile!r}{nearest(profile, PROFILES)}; "
            f"known: {', '.join(PROFILES)}"
        )
    return profile


@dataclass(frozen=True)
class Room:
    """One paper at one profile under one results root: its modules, and the paths it writes.

    Attributes
    ----------
    paper
        The paper's slug.
    profile
        One of ``PROFILES``.
    root
        The results root; a relative one is taken from the repository's root.
    """

    paper: str
    profile: str
    root: Path = Path("results")

    def __post_init__(self) -> None:
        select_papers([self.paper])
        check_profile(self.profile)

    @property
    def dir(self) -> Path:
        """The directory of everything this paper writes: root/profile/paper."""
        return repo_root() / self.root / self.profile / self.paper

    @property
    def cells_dir(self) -> Path:
        """The directory of the cells' Parquet files."""
        return self.dir / "cells"

    def cell_path(self, cell_id: str) -> Path:
        """Return the Parquet file of a cell."""
        return self.cells_dir / f"{cell_id}.parquet"

    def receipt_path(self, stage: str) -> Path:
        """Return the receipt of a stage: ``cells/<id>``, ``claims`` or ``notebook``."""
        return self.dir / "receipts" / f"{stage}.json"

    @property
    def claims_json(self) -> Path:
        """The verdicts."""
        return self.dir / "claims.json"

    @property
    def figures_dir(self) -> Path:
        """The directory of the figures."""
        return self.dir / "figures"

    @property
    def notebook(self) -> Path:
        """The executed notebook."""
        return self.dir / "notebook.ipynb"

    @property
    def notebook_source(self) -> Path:
        """The notebook as it is written, without outputs."""
        return repo_root() / "notebooks" / f"{self.paper}.ipynb"

    @property
    def manifest_json(self) -> Path:
        """What was run, where and how, with the digest of every output."""
        return self.dir / "manifest.json"

    @property
    def ledger(self) -> Path:
        """The paper's claims.yaml."""
        import replicata.papers as rooms

        found = (Path(place) / self.paper / "claims.yaml" for place in rooms.__path__)
        return next(path for path in found if path.is_file())

    def log_path(self, stage: str) -> Path:
        """Return the log of a stage, under ``logs/``, which git ignores."""
        return repo_root() / "logs" / self.root.name / self.profile / self.paper / f"{stage}.log"

    def module_name(self, name: str) -> str:
        """Return the dotted name of one of the room's modules."""
        return f"replicata.papers.{self.paper}.{name}"

    def has_module(self, name: str) -> bool:
        """Return whether the paper's room has a module; only ``preflight`` may be missing."""
        return find_spec(self.module_name(name)) is not None

    def module(self, name: str) -> ModuleType:
        """Import one of ``MODULES`` from the paper's room.

        Raises
        ------
        RunError
            If it cannot be imported; the sentence names the module and the cause.
        """
        full = self.module_name(name)
        if full in sys.modules:
            return sys.modules[full]
        try:
            return import_module(full)
        except ReplicataError:
            raise
        except Exception as error:
            raise RunError(f"{full} cannot be imported: {type(error).__name__}: {error}") from error
