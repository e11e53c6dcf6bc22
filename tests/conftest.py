"""A repository with two toy papers, which the whole pipeline runs in seconds."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

EXPERIMENT = '''
"""A coin that is thrown and counted."""

import os
import time

import numpy as np
import pandas as pd

from replicata.errors import NotRun
from replicata.papers.{slug}.method import throw
from replicata.workflow.cells import Cell, StrictParams
from replicata.workflow.seeds import derive_seed


class Params(StrictParams):
    """What the toy can do, and how it can go wrong."""

    seed: int
    replicates: int
    throws: int
    bias: float
    fails: str = ""
    unavailable: str = ""


def cells(params: Params) -> list[Cell]:
    """Plan a cell per replicate, and one that the others don't need."""
    coins = [
        Cell(id=f"coin-{{i}}", group="coin", params={{"replicate": i}})
        for i in range(params.replicates)
    ]
    return [*coins, Cell(id="engine", group="engine", priority=5)]


def run(params: Params, cell: Cell) -> pd.DataFrame:
    """Throw the coin."""
    time.sleep(float(os.environ.get("TOY_SECONDS", 0)))
    if params.fails == cell.id:
        raise RuntimeError("the coin is\\nlost")
    if params.unavailable and cell.group == "engine":
        raise NotRun(params.unavailable)
    rng = np.random.default_rng(derive_seed(params.seed, "{slug}", cell.id))
    heads = throw(rng, params.throws, params.bias)
    unit = [f"{{cell.id}}-{{i}}" for i in range(params.throws)]
    return pd.DataFrame({{"arm": "coin", "unit": unit, "metric": "head", "value": heads}})
'''

METHOD = '''
"""Throwing."""

from replicata.papers.{slug}.helper import as_float


def throw(rng, n, bias):
    """Return n throws, 1.0 for heads."""
    # One number each.
    return as_float(rng.random(n) < bias)
'''

HELPER = '''
"""Helping."""


def as_float(values):
    """Return them as floats."""
    return values.astype(float)
'''

ANALYSIS = '''
"""Counting."""

from replicata.claims.evidence import Evidence


def heads(rows, params):
    """Return the share of heads."""
    share = float(rows["value"].mean())
    return Evidence(quantities={{"share": share}}, estimate=share, n=len(rows), n_unit="throws")


EVIDENCE = {{"c1": heads, "c2": heads}}
'''

FIGURES = '''
"""Drawing."""


def bar(rows, params):
    """Draw the share of heads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1))
    figure.subplots().bar(["heads"], [rows["value"].mean()])
    return figure


FIGURES = {{
    "coin": (["coin"], bar, "Share of heads."),
    "engine": (["engine"], bar, "Share of heads."),
}}
'''

LEDGER = """
schema: 1
paper: {{slug: {slug}, title: A toy, authors: Nobody, reference: none, summary: Coins.}}
claims:
  - id: {slug}.c1
    statement: The coin is fair.
    source: stated
    paper_value: "0.5"
    kind: descriptive
    groups: [coin]
    test: Throw it.
    shows: That it is.
    rule: {{supported: "share > 0.3 and share < 0.7", contradicted: "share >= 0.7"}}
    headline: share
  - id: {slug}.c2
    statement: The engine is fair.
    source: stated
    paper_value: "0.5"
    kind: descriptive
    groups: [engine]
    test: Throw it.
    shows: That it is.
    rule: {{supported: "share > 0.3 and share < 0.7"}}
    headline: share
  - id: {slug}.c3
    statement: All coins are fair.
    source: reconstructed
    paper_value: all
    kind: descriptive
    not_testable: There are too many.
"""

PARAMS = """
seed: 1
replicates: 2
throws: 50
bias: 0.5
"""

NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# A toy"},
        {
            "cell_type": "code",
            "id": "b",
            "metadata": {"tags": ["parameters"]},
            "execution_count": None,
            "outputs": [],
            "source": 'profile = "smoke"\nroot = "results"',
        },
        {
            "cell_type": "code",
            "id": "c",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": "import os, time\n"
            "from replicata.papers.SLUG import helper\n"
            "time.sleep(float(os.environ.get('TOY_NOTEBOOK_SECONDS', 0)))\n"
            "print(profile, helper.__name__)",
        },
    ],
    "metadata": {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    },
    "nbformat": 4,
    "nbformat_minor": 5,
}


@dataclass(frozen=True)
class House:
    """A repository of its own: the real workflow and Snakefile, and toy papers."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which commands run this repository's code."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("REPLICATA")}
        return kept | {"PYTHONPATH": str(self.root / "lib"), "OMP_NUM_THREADS": "1"}

    def room(self, paper: str = "toy") -> Path:
        """Return where a paper's code lies."""
        return self.root / "lib/replicata/papers" / paper

    def results(self, root: str = "results", paper: str = "toy") -> Path:
        """Return where a paper's results lie."""
        return self.root / root / "smoke" / paper

    def params(self, paper: str = "toy", **values: object) -> None:
        """Write a paper's params, with ``values`` added."""
        lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
        base = [line for line in PARAMS.split("\n") if line.split(":")[0] not in values]
        path = self.root / "params" / paper / "smoke.yaml"
        path.write_text("\n".join([*base, *lines]) + "\n")

    def call(self, *command: str) -> subprocess.CompletedProcess:
        """Run a Python module's command line in this repository and return what it said."""
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(
        self, *command: str, seconds: float = 0.0, notebook_seconds: float = 0.0
    ) -> subprocess.Popen:
        """Start a Python module's command line; each cell or notebook takes some seconds longer."""
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.root,
            env=self.environment
            | {"TOY_SECONDS": str(seconds), "TOY_NOTEBOOK_SECONDS": str(notebook_seconds)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def snakemake(self, *arguments: str, root: str = "results") -> subprocess.CompletedProcess:
        """Run Snakemake on the toy papers."""
        config = ("--config", "profile=smoke", f"root={root}")
        return self.call("snakemake", "--cores", "2", *arguments, *config)

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        """Call `replicata run` at profile smoke."""
        return self.call("replicata", "run", "--profile", "smoke", *arguments)


def add_paper(root: Path, slug: str) -> None:
    """Write the room, params and notebook of a toy paper."""
    room = root / "lib/replicata/papers" / slug
    room.mkdir(parents=True)
    for name, text in (
        ("__init__.py", '"""A toy paper."""\n'),
        ("experiment.py", EXPERIMENT.format(slug=slug)),
        ("method.py", METHOD.format(slug=slug)),
        ("helper.py", HELPER),
        ("analysis.py", ANALYSIS.format()),
        ("figures.py", FIGURES.format()),
        ("claims.yaml", LEDGER.format(slug=slug)),
    ):
        (room / name).write_text(text)
    (root / "params" / slug).mkdir(parents=True)
    (root / "notebooks").mkdir(exist_ok=True)
    House(root).params(slug)
    source = json.dumps(NOTEBOOK).replace("SLUG", slug)
    (root / "notebooks" / f"{slug}.ipynb").write_text(source)


def _no_papers(directory: str, _names: list[str]) -> list[str]:
    return ["papers"] if Path(directory) == REPOSITORY / "lib/replicata" else []


def build_house(root: Path, *slugs: str) -> House:
    """Make a repository in ``root`` with toy papers and a copy of the real code."""
    package = root / "lib/replicata"
    shutil.copytree(REPOSITORY / "lib/replicata", package, ignore=_no_papers)
    (package / "papers").mkdir()
    (package / "papers/__init__.py").write_text('"""Toy papers."""\n')
    for name in ("Snakefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, root / name)
    for name in ("profiles", "requirements"):
        shutil.copytree(REPOSITORY / name, root / name)
    for slug in slugs:
        add_paper(root, slug)
    return House(root)


@pytest.fixture
def toy_house(tmp_path, monkeypatch) -> House:
    """A repository with the paper ``toy``, which code imported in this process sees too."""
    house = build_house(tmp_path / "house", "toy")
    import replicata.papers

    monkeypatch.setattr(replicata.papers, "__path__", [str(house.room().parent)])
    monkeypatch.setenv("REPLICATA_ROOT", str(house.root))
    monkeypatch.chdir(house.root)
    yield house
    for name in [name for name in sys.modules if name.startswith("replicata.papers.")]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Two papers, run once into results/; and what was said."""
    house = build_house(tmp_path_factory.mktemp("finished") / "house", "toy", "other")
    return house, house.run("--root", "results")
