"""A repository with the toy study, and its whole life cycle in one call."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

from replicata.preregistration.analysis import analyze
from replicata.preregistration.anchor import record_anchor
from replicata.preregistration.archive import write_archive
from replicata.preregistration.collect import collect
from replicata.preregistration.freeze import freeze
from replicata.preregistration.places import Places
from replicata.preregistration.registration import load_registration
from replicata.preregistration.seal import seal
from replicata.preregistration.stamping import stamp_all

TOY = Path(__file__).parent / "toy"


def git(root, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


def commit(root):
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x")


def make_repository(root: Path) -> None:
    code, protocol = root / "code" / "toy_study", root / "protocols" / "toy"
    code.mkdir(parents=True)
    protocol.mkdir(parents=True)
    (code / "__init__.py").write_text("")
    for name in ("study.py", "scores.py"):
        shutil.copy(TOY / name, code / name)
    shutil.copy(TOY / "draft.yaml", protocol / "draft.yaml")
    (root / "data.txt").write_text("data\n")
    (root / ".gitattributes").write_text("* -text\n")
    (root / ".gitignore").write_text("__pycache__/\nresults/\n")
    for name in ("pyproject.toml", "Snakefile"):
        (root / name).write_text("")
    git(root, "init", "-q", "-b", "main")
    commit(root)


def forget():
    for name in [name for name in sys.modules if name.split(".")[0] == "toy_study"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def to_stamped(places: Places) -> None:
    freeze(places)
    write_archive(load_registration(places))
    commit(places.root)
    record_anchor(places)
    stamp_all(places)


def whole_life(places: Places) -> None:
    to_stamped(places)
    collect(places)
    seal(places)
    analyze(places)
