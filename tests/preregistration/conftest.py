"""Repositories with a registered toy study, in the states that tests start from."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_repository import forget, make_repository, whole_life

from replicata.preregistration.places import Places


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("blank") / "repo"
    make_repository(root)
    return root


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Places]:
    """Make a repository the one that is imported from."""

    def use(root: Path) -> Places:
        forget()
        monkeypatch.syspath_prepend(str(root / "code"))
        monkeypatch.setenv("REPLICATA_ROOT", str(root))
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        return Places(root, "toy", "smoke")

    yield use
    forget()


@pytest.fixture
def places(blank: Path, tmp_path: Path, at: Callable[[Path], Places]) -> Places:
    """A repository with a draft."""
    shutil.copytree(blank, tmp_path / "repo")
    return at(tmp_path / "repo")


@pytest.fixture(scope="session")
def finished(blank: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose study is analysed; never change it, copy it."""
    root = tmp_path_factory.mktemp("finished") / "repo"
    shutil.copytree(blank, root)
    forget()
    sys.path.insert(0, str(root / "code"))
    try:
        whole_life(Places(root, "toy", "smoke"))
    finally:
        sys.path.remove(str(root / "code"))
        forget()
    return root


@pytest.fixture
def analysed(finished: Path, tmp_path: Path, at: Callable[[Path], Places]) -> Places:
    """A copy of a repository whose study is analysed."""
    shutil.copytree(finished, tmp_path / "repo")
    return at(tmp_path / "repo")
