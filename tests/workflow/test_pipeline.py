"""The pipeline as people use it: `replicata run`, `snakemake`, `make`'s command, after a clone."""

import json
import os
import random
import shutil

import pytest

from tests.conftest import House

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(180)]

NOTHING = "Nothing to be done"


@pytest.fixture
def clone(finished, tmp_path):
    """What `git clone` gives: the files, at other times, and nothing of Snakemake's."""
    ignored = shutil.ignore_patterns(".snakemake", "logs", "__pycache__", ".snakemake_timestamp")
    shutil.copytree(finished[0].root, tmp_path / "clone", symlinks=True, ignore=ignored)
    rng = random.Random(0)
    for path in (tmp_path / "clone").rglob("*"):
        if path.is_file() and not path.is_symlink():
            time = rng.uniform(1e9, 3e9)  # from 2001 to 2065
            os.utime(path, (time, time))
    return House(tmp_path / "clone")


def scheduled(said):
    """Return the outputs' papers and rules that a dry run lists."""
    rules, rule = [], ""
    for line in said.stdout.splitlines() + said.stderr.splitlines():
        if line.startswith(("rule ", "localrule ")):
            rule = line.split()[1].rstrip(":")
        if line.strip().startswith("output:"):
            parts = line.split()[1].rstrip(",").split("/")
            rules.append(f"{parts[2]} {rule}" if len(parts) > 3 else rule)
    return sorted(rules)


def outputs(house, root, paper="toy"):
    """Return the digests of all that is compared between runs; the manifest holds times."""
    found = {}
    for path in sorted((house.results(root, paper) / "receipts").rglob("*.json")):
        receipt = json.loads(path.read_text())
        found |= {k: v for k, v in receipt["outputs"].items() if k != "manifest.json"}
    return found


def test_the_first_run_says_what_it_does(finished):
    house, said = finished
    assert said.returncode == 0, said.stdout + said.stderr
    lines = said.stdout.splitlines()
    assert lines[0].startswith("12 of 12 stages of results/smoke to run")
    assert sum(line.startswith("[") for line in lines) == 12
    landed = next(i for i, line in enumerate(lines) if line.startswith("  toy.c1: supported"))
    decided = next(i for i, line in enumerate(lines) if "toy claims done" in line)
    assert landed < decided
    audit = json.loads((house.root / "results/smoke/audit.json").read_text())
    assert {check["status"] for check in audit["checks"]} == {"PASS"}
    assert (house.root / "results/smoke/report.html").stat().st_size > 0


def test_the_manifest_is_complete_and_private(finished):
    house, _ = finished
    text = (house.results() / "manifest.json").read_text()
    manifest = json.loads(text)
    assert str(house.root) not in text
    assert manifest["command"] == "replicata run toy --profile smoke --root results"
    assert manifest["seeds"] == {"seed": 1}
    assert set(manifest["outputs"]) == {
        "cells/coin-0.parquet",
        "cells/coin-1.parquet",
        "cells/engine.parquet",
        "claims.json",
        "figures/captions.json",
        "figures/coin.png",
        "figures/engine.png",
        "notebook.ipynb",
    }


def test_a_second_run_does_nothing(finished):
    house, _ = finished
    said = house.run("--root", "results")
    assert said.returncode == 0
    assert said.stdout.splitlines()[0].startswith("Nothing to do: all 12 stages")


def test_after_a_clone_nothing_is_to_be_done(clone):
    said = clone.snakemake("-n")
    assert NOTHING in said.stdout + said.stderr
    assert not (clone.root / ".snakemake/replicata/stale").exists()


def test_an_edited_result_is_run_again(clone):
    path = clone.results() / "claims.json"
    before = path.read_text()
    path.write_text(before.replace("0.5", "0.6"))
    said = clone.snakemake("-n")
    assert scheduled(said) == ["audit", "report", "toy claims", "toy notebook"]
    assert "output-edited" in said.stdout + said.stderr
    assert clone.snakemake().returncode == 0
    assert path.read_text() == before
    assert NOTHING in (said := clone.snakemake("-n")).stdout + said.stderr


def test_a_table_without_receipt_is_not_complete(clone):
    (clone.results() / "receipts/cells/coin-0.json").unlink()
    assert "toy cells" in scheduled(clone.snakemake("-n"))


def test_params_of_one_paper_rerun_that_paper_only(clone):
    clone.params("toy", throws=51)
    assert scheduled(clone.snakemake("-n")) == [
        "audit",
        "report",
        *["toy cells"] * 3,
        "toy claims",
        "toy notebook",
    ]


def test_lint_report_and_slurm_work_as_people_expect(clone):
    lint = clone.call("snakemake", "--lint", "--config", "profile=smoke")
    assert lint.returncode == 0, lint.stdout + lint.stderr
    report = clone.snakemake("--report", "x.html")
    assert report.returncode == 0, report.stdout + report.stderr
    assert (clone.root / "x.html").stat().st_size > 0
    slurm = clone.snakemake("-n", "--profile", "profiles/slurm", root="rerun")
    assert slurm.returncode == 0, slurm.stdout + slurm.stderr
    assert len(scheduled(slurm)) == 12


def test_a_failing_cell_stops_what_needs_it_and_nothing_else(clone):
    clone.params("toy", fails="coin-0")
    said = clone.run("--root", "rerun")
    assert said.returncode == 4
    lines = said.stdout.splitlines()
    sentence = "FAILED toy cells/coin-0: cell coin-0 of toy failed: RuntimeError: the coin is lost"
    assert sentence in lines
    assert any("exit code 4, log: logs/rerun/smoke/toy/cells/coin-0.log" in x for x in lines)
    log = (clone.root / "logs/rerun/smoke/toy/cells/coin-0.log").read_text()
    assert "Traceback" in log
    assert log.splitlines()[-1].startswith("replicata: error: cell coin-0 of toy failed")
    assert (clone.results("rerun") / "cells/coin-1.parquet").exists()
    assert (clone.results("rerun", "other") / "manifest.json").exists()
    assert not (clone.results("rerun") / "cells/coin-0.parquet").exists()


def test_a_rerun_is_compared_with_the_reference(clone):
    said = clone.run("toy", "--root", "rerun")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "toy.c1: identical, same verdict: supported" in said.stdout
    rerun, reference = outputs(clone, "rerun"), outputs(clone, "results")
    # The notebook shows which root it reads.
    assert rerun.pop("notebook.ipynb") != reference.pop("notebook.ipynb")
    assert rerun == reference
    comparison = json.loads((clone.root / "rerun/smoke/comparison.json").read_text())
    assert comparison["toy"]["toy.c1"]["status"] == "identical"
    path = clone.results() / "claims.json"
    document = json.loads(path.read_text())
    document["claims"][0] |= {"estimate": 0.123, "verdict": "contradicted"}
    path.write_text(json.dumps(document))
    said = clone.run("toy", "--root", "rerun")
    assert said.returncode == 5
    assert said.stdout.startswith("Nothing to do")
    assert "toy.c1: drifted, another verdict: contradicted -> supported" in said.stdout
    assert "replicata: error: 1 of 3 claims do not agree with the reference" in said.stderr
    verified = clone.call("replicata", "verify", "toy", "--profile", "smoke")
    assert verified.returncode == 5
    assert "FAIL    toy toy.c1: " in verified.stdout


def test_mistakes_are_one_sentence(clone):
    for words, code, sentence in (
        (["run", "tox"], 2, "no paper is called 'tox' (did you mean 'toy'?)"),
        (
            ["verify", "toy", "--profile", "cup"],
            2,
            "no profile is called 'cup' (did you mean 'cpu'",
        ),
        (["run", "toy", "--profile", "cpu"], 2, "params/toy/cpu.yaml is missing"),
        (["report", "--root", "nowhere"], 2, "nowhere/cpu holds no results"),
    ):
        said = clone.call("replicata", *words)
        assert said.returncode == code
        assert said.stderr.startswith("replicata: error: ")
        assert sentence in said.stderr
        assert said.stderr.count("\n") == 1
