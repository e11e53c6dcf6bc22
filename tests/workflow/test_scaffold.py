"""A new room: complete, green at once, and never written over anything."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

from replicata.errors import UsageError
from replicata.workflow import scaffold
from replicata.workflow.scaffold import is_draft, new_paper
from tests.conftest import build_house

ROOM = ("__init__", "analysis", "baselines", "experiment", "figures", "method")
TITLE = "A \"quoted\" title: with \\ and # and 'signs'"


def expected(slug):
    """Return the files of a new room, as the house rules name them."""
    return sorted(
        [f"lib/replicata/papers/{slug}/{name}.py" for name in ROOM]
        + [f"lib/replicata/papers/{slug}/claims.yaml", f"notebooks/{slug}.ipynb"]
        + [f"params/{slug}/{name}.yaml" for name in ("cpu", "paper", "smoke")]
        + [f"tests/papers/{slug}/test_{slug}.py"]
    )


def files_in(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture
def root(tmp_path):
    """A repository without papers."""
    (tmp_path / "lib/replicata/papers").mkdir(parents=True)
    return tmp_path


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A repository with the real code and two new rooms: the shortest slug and the longest."""
    house = build_house(tmp_path_factory.mktemp("scaffold") / "house")
    new_paper("a", house.root)
    new_paper("p" * 32, house.root, TITLE)
    return house


def test_it_writes_a_whole_room_and_says_what(root):
    written = new_paper("toy_2", root, TITLE)
    assert [str(path.relative_to(root)) for path in written] == expected("toy_2")
    assert files_in(root) == expected("toy_2")
    for path in written:
        text = path.read_text()
        assert "@SLUG@" not in text
        assert "@TITLE@" not in text


def test_the_title_arrives_as_it_was_given(root):
    new_paper("toy", root, f"  {TITLE} ")
    ledger = yaml.safe_load((root / "lib/replicata/papers/toy/claims.yaml").read_text())
    assert ledger["paper"]["title"] == TITLE
    notebook = nbformat.read(root / "notebooks/toy.ipynb", as_version=4)
    assert notebook.cells[0].source.startswith(f"# {TITLE}\n")


def test_the_notebook_is_valid_and_has_no_outputs(house):
    for path in (house.root / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in code)
        tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
        assert len(tagged) == 1
        assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


@pytest.mark.parametrize("command", [["check", "--no-cache"], ["format", "--check", "--no-cache"]])
def test_the_style_is_the_houses(house, command):
    places = ["lib/replicata/papers", "tests", "notebooks"]
    said = subprocess.run(
        [sys.executable, "-m", "ruff", *command, *places],
        cwd=house.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr


def test_its_own_tests_pass(house):
    said = house.call("pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert said.returncode == 0, said.stdout
    assert " passed" in said.stdout
    assert "skipped" not in said.stdout


def test_it_is_a_draft_until_every_mark_is_gone(root):
    written = new_paper("toy", root)
    room = root / "lib/replicata/papers/toy"
    marked = [path for path in written if scaffold.MARK in path.read_text()]
    assert {path.parent.name for path in marked} >= {"toy"}
    for path in marked:
        assert is_draft(room), path
        path.write_text(path.read_text().replace(scaffold.MARK, "done"))
    assert not is_draft(room)
    (root / "params/toy/cpu.yaml").write_text(f"# {scaffold.MARK}\n")
    assert is_draft(room)


@pytest.mark.parametrize(
    "slug", ["", "Toy", "2toy", "my-paper", "my paper", "../toy", "toy/x", "class", "é", "p" * 33]
)
def test_a_slug_that_cannot_be_a_module_is_refused(root, slug):
    with pytest.raises(UsageError, match=r"cannot name a paper, expected at most 32 lower-case"):
        new_paper(slug, root)
    assert files_in(root) == []


@pytest.mark.parametrize("title", ["", "  ", "two\nlines", "tab\there"])
def test_a_title_that_is_no_line_is_refused(root, title):
    with pytest.raises(UsageError, match="cannot be a title, expected one line"):
        new_paper("toy", root, title)
    assert files_in(root) == []


@pytest.mark.parametrize(
    "taken",
    [
        "lib/replicata/papers/toy/notes.txt",
        "params/toy/cpu.yaml",
        "notebooks/toy.ipynb",
        "tests/papers/toy/test_it.py",
    ],
)
def test_nothing_is_written_over(root, taken):
    (root / taken).parent.mkdir(parents=True, exist_ok=True)
    (root / taken).write_text("mine")
    with pytest.raises(UsageError, match="exists already, expected a slug that no paper has"):
        new_paper("toy", root)
    assert files_in(root) == [taken]
    assert (root / taken).read_text() == "mine"


def test_outside_of_a_repository_it_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no lib/replicata/papers"):
        new_paper("toy", tmp_path)
    assert files_in(tmp_path) == []


def test_a_failure_halfway_leaves_nothing(root, monkeypatch):
    written = []

    def write(path, text):
        if len(written) == 5:
            raise OSError("no space left")
        written.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    monkeypatch.setattr(scaffold, "atomic_write", write)
    with pytest.raises(OSError, match="no space left"):
        new_paper("toy", root)
    assert len(written) == 5
    assert files_in(root) == []
    monkeypatch.undo()
    assert new_paper("toy", root)  # what is left does not stand in its own way


@pytest.mark.pipeline
@pytest.mark.timeout(180)
def test_the_pipeline_runs_it_to_its_verdict(tmp_path):
    house = build_house(tmp_path / "house")
    said = house.call("replicata", "new", "fresh", "--title", TITLE)
    assert said.returncode == 0, said.stderr
    assert said.stdout.split() == expected("fresh")

    said = house.run("--root", "results")
    assert said.returncode == 0, said.stdout + said.stderr
    results = house.results(paper="fresh")
    claims = json.loads((results / "claims.json").read_text())["claims"]
    assert [(claim["id"], claim["verdict"]) for claim in claims] == [("fresh.c1", "supported")]
    assert (results / "figures/f1_error.png").is_file()
    outputs = nbformat.read(results / "notebook.ipynb", as_version=4)
    assert not [
        output
        for cell in outputs.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]
    page = (house.root / "results/smoke/report.html").read_text()
    assert "SMOKE - NOT EVIDENCE" in page
    assert "fresh.c1" in page
    assert Path(house.root / "results/smoke/audit.json").is_file()

    again = house.snakemake()
    assert "Nothing to be done" in again.stdout + again.stderr

    said = house.run()
    assert said.returncode == 0, said.stdout + said.stderr
    page = (house.root / "rerun/smoke/report.html").read_text()
    assert "Rerun: identical, same verdict" in page
