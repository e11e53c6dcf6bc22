"""The whole pipeline at profile smoke, on every paper, as a user runs it."""

import json
import subprocess
import sys

import pytest

from replicata.workflow.layout import papers, repo_root

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(600)]


def replicata(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "replicata", *arguments],
        cwd=repo_root(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture(scope="module")
def finished(root):
    return replicata("run", "--profile", "smoke", "--root", str(root))


def test_every_paper_ends_in_a_verdict_for_every_claim(finished, root):
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for paper in papers():
        document = json.loads((root / "smoke" / paper / "claims.json").read_text())
        for claim in document["claims"]:
            assert f"{claim['id']}: {claim['verdict']}" in finished.stdout
        notebook = json.loads((root / "smoke" / paper / "notebook.ipynb").read_text())
        assert all(c["execution_count"] for c in notebook["cells"] if c["cell_type"] == "code")
        assert any((root / "smoke" / paper / "figures").glob("*.png"))
    page = (root / "smoke" / "report.html").read_text()
    assert all(paper in page for paper in papers())
    assert "NOT EVIDENCE" in page


def test_what_it_left_verifies_and_a_second_run_has_nothing_to_do(finished, root):
    checked = replicata("verify", "--profile", "smoke", "--root", str(root))
    assert checked.returncode == 0, checked.stdout
    again = replicata("run", "--profile", "smoke", "--root", str(root))
    assert again.returncode == 0
    assert "done in" not in again.stdout


def test_an_edited_table_is_found(finished, root):
    table = next((root / "smoke").glob("*/cells/*.parquet"))
    content = table.read_bytes()
    table.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        checked = replicata("verify", "--profile", "smoke", "--root", str(root))
        assert checked.returncode == 5
        assert table.name in checked.stdout
    finally:
        table.write_bytes(content)
