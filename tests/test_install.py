"""The installer: what it takes for complete, what it goes on with, and what it refuses."""

import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("install", ROOT / "requirements/install.py")
install = importlib.util.module_from_spec(spec)
spec.loader.exec_module(install)

LOCK = "# Lock\n\n# First\n# a note\nalpha==1.0\nbeta==2\n\n# Second\ntorch==3.0\n"


class Recorded(install.Environment):
    """An environment whose pip calls are recorded, and can fail after some of them."""

    def __init__(self, root: Path, fail_at: int | None = None) -> None:
        super().__init__(root / ".venv", root / "lock.txt", root / "pyproject.toml", [])
        self.calls: list[tuple[str, ...]] = []
        self.fail_at = fail_at

    def _pip(self, *arguments: str) -> None:
        if len(self.calls) == self.fail_at:
            raise KeyboardInterrupt
        self.calls.append(arguments)


@pytest.fixture
def root(tmp_path, monkeypatch):
    (tmp_path / "lock.txt").write_text(LOCK)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    created = []

    def create(command, check):
        directory = Path(command[-1])
        created.append(directory)
        for path in sorted(directory.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        (directory / "bin").mkdir(parents=True)
        (directory / "bin/python").touch()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(install.subprocess, "run", create)
    return tmp_path, created


def test_groups_hold_every_line_of_the_committed_locks():
    for lock in (ROOT / "requirements").glob("*pu.txt"):
        groups = install.read_groups(lock)
        lines = lock.read_text().splitlines()
        assert [pin for pins in groups.values() for pin in pins] == [x for x in lines if "==" in x]
        assert all(title and "==" not in title for title in groups)


def test_a_new_environment_gets_group_after_group_then_torch_then_the_project(root):
    directory, created = root
    environment = Recorded(directory)
    environment.build()
    assert created == [directory / ".venv"]
    assert environment.calls[:2] == [
        ("--no-deps", "alpha==1.0", "beta==2"),
        ("--no-deps", "torch==3.0"),
    ]
    assert environment.calls[2] == ("--constraint", str(directory / "lock.txt"), "torch==3.0")
    assert "--editable" in environment.calls[3]
    assert len(environment.calls) == 4


def test_a_complete_environment_is_left_alone_and_nothing_is_said(root, capsys):
    directory, created = root
    Recorded(directory).build()
    capsys.readouterr()
    again = Recorded(directory)
    again.build()
    assert (again.calls, len(created), capsys.readouterr().out) == ([], 1, "")


def test_a_changed_project_is_installed_again_and_nothing_else(root):
    directory, created = root
    Recorded(directory).build()
    (directory / "pyproject.toml").write_text("[project]\nname='x'\n")
    again = Recorded(directory)
    again.build()
    assert len(again.calls) == len(created) == 1
    assert "--editable" in again.calls[0]


@pytest.mark.parametrize("complete", [True, False])
def test_a_changed_lock_starts_from_an_empty_environment(root, complete):
    directory, created = root
    if complete:
        Recorded(directory).build()
    else:
        with pytest.raises(KeyboardInterrupt):
            Recorded(directory, fail_at=1).build()
    (directory / ".venv/lingering").touch()
    (directory / "lock.txt").write_text(LOCK.replace("beta==2", "beta==3"))
    Recorded(directory).build()
    assert len(created) == 2
    assert not (directory / ".venv/lingering").exists()


@pytest.mark.parametrize("fail_at", [0, 1, 2, 3])
def test_an_interrupted_installation_goes_on(root, fail_at):
    directory, created = root
    with pytest.raises(KeyboardInterrupt):
        Recorded(directory, fail_at).build()
    assert not (directory / ".venv/.installed").exists()
    Recorded(directory).build()
    assert len(created) == 1
    last = Recorded(directory)
    last.build()
    assert last.calls == []


def test_a_moved_checkout_is_built_anew(root, tmp_path_factory):
    directory, created = root
    Recorded(directory).build()
    moved = tmp_path_factory.mktemp("moved") / "here"
    directory.rename(moved)
    Recorded(moved).build()
    assert created == [directory / ".venv", moved / ".venv"]


def test_half_installed_packages_are_found(tmp_path):
    for name, files in {"whole": ["METADATA", "INSTALLER"], "half": ["METADATA"]}.items():
        (tmp_path / f"{name}-1.dist-info").mkdir()
        for file in files:
            (tmp_path / f"{name}-1.dist-info" / file).touch()
    assert install.drop_partial_packages(tmp_path) == ["half-1.dist-info"]
    assert [path.name for path in tmp_path.iterdir()] == ["whole-1.dist-info"]


def test_pip_failing_ends_with_its_last_lines_and_a_sentence(tmp_path):
    environment = install.Environment(tmp_path, Path(__file__), Path(__file__), [])
    environment.python.parent.mkdir()
    environment.python.write_text("#!/bin/sh\necho no such package\nexit 7\n")
    environment.python.chmod(0o755)
    with pytest.raises(SystemExit, match=r"(?s)no such package.*pip ended with code 7"):
        environment._pip("x")


def test_another_python_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11, and .* make PYTHON="):
        install.main([])


def test_another_platform_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(SystemExit, match="Darwin"):
        install.main([])


def test_a_missing_lock_is_refused_in_one_sentence():
    with pytest.raises(SystemExit, match=r"no lock nowhere\.txt"):
        install.main(["nowhere.txt"])
