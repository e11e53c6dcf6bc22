"""The plan: what is current, by content."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replicata.errors import ResourceError, RunError, UsageError
from replicata.workflow import run
from replicata.workflow.cells import Cell
from replicata.workflow.layout import Room, papers, repo_root, select_papers
from replicata.workflow.params import load_params
from replicata.workflow.plan import PaperPlan, Plan, planned_cells
from tests.workflow.test_run import run_all_cells


@pytest.fixture
def room(toy_house):
    room = Room("toy", "smoke")
    run_all_cells(room)
    run.run_claims(room)
    return room


def stale(room):
    return {stage.name: stage.stale for stage in PaperPlan(room).stages if stage.stale}


def test_what_has_run_is_current(room):
    assert stale(room) == {"notebook": "no-receipt"}


def test_every_change_is_noticed_and_passed_on(room, toy_house):
    table, claims = room.cell_path("coin-0"), room.claims_json
    whole = table.read_bytes()
    table.write_bytes(whole[:-1])
    assert stale(room)["cells/coin-0"] == "output-edited"
    assert stale(room)["claims"] == "upstream-changed"
    table.unlink()
    assert stale(room)["cells/coin-0"] == "output-missing"
    table.write_bytes(whole)
    room.receipt_path("cells/coin-0").rename(room.dir / "aside")
    assert stale(room)["cells/coin-0"] == "no-receipt"
    room.receipt_path("cells/coin-0").write_text("{")
    assert stale(room)["cells/coin-0"] == "receipt-damaged"
    (room.dir / "aside").rename(room.receipt_path("cells/coin-0"))
    assert list(stale(room)) == ["notebook"]
    text = claims.read_text()
    claims.write_text(text.replace("supported", "Supported", 1))
    assert stale(room)["claims"] == "output-edited"
    claims.write_text(text)
    toy_house.params(throws=51)
    assert stale(room)["cells/coin-1"] == "inputs-changed"


def test_ledger_and_analysis_touch_the_claims_only(room):
    ledger = room.ledger.read_text()
    room.ledger.write_text(ledger.replace("0.7", "0.8"))
    assert stale(room) == {"claims": "inputs-changed", "notebook": "no-receipt"}


def test_a_key_ignores_scheduling_and_nothing_else(room, monkeypatch):
    experiment = room.module("experiment")
    cells = experiment.cells(load_params("toy", "smoke"))

    def planned(**change):
        monkeypatch.setattr(
            experiment, "cells", lambda _: [c.model_copy(update=change) for c in cells[:1]]
        )
        return stale(room).get("cells/coin-0")

    assert planned(priority=9, memory_mb=9) is None
    assert planned(threads=2) == "inputs-changed"
    assert planned(params={"replicate": 9}) == "inputs-changed"


def test_two_cells_of_one_name_are_refused(room, monkeypatch):
    twice = [Cell(id="a", group="g"), Cell(id="a", group="h")]
    monkeypatch.setattr(room.module("experiment"), "cells", lambda _: twice)
    with pytest.raises(RunError, match="'a' twice"):
        planned_cells(room, load_params("toy", "smoke"))


def test_markers_are_newer_than_the_outputs_and_never_the_same(room):
    room.claims_json.write_text("{}")
    future = 4 * 10**9
    os.utime(room.claims_json, (future, future))
    plan = Plan(["toy"], "smoke", "results")
    wildcards = type("W", (), {"paper": "toy", "cell": "coin-0"})
    assert plan.stale_cell(wildcards) == []
    (name,) = plan.stale_claims(wildcards)
    assert name == ".snakemake/replicata/stale/results/smoke/toy/claims/output-edited"
    plan.write_markers(fresh=True)
    marker = repo_root() / name
    first = marker.read_text()
    assert time.time() >= marker.stat().st_mtime > room.claims_json.stat().st_mtime
    plan.write_markers(fresh=False)
    assert marker.read_text() == first
    plan.write_markers(fresh=True)
    assert marker.read_text() != first


def test_config_is_strict(toy_house):
    assert Plan.from_config({"profile": "smoke"}).targets()[0] == "results/smoke/report.html"
    with pytest.raises(UsageError, match=r"'profil'.*did you mean 'profile'"):
        Plan.from_config({"profil": "smoke"})
    with pytest.raises(UsageError, match=r"'tox'.*did you mean 'toy'"):
        Plan.from_config({"profile": "smoke", "papers": "toy,tox"})
    with pytest.raises(UsageError, match=r"no cell 'coin-x'.*did you mean"):
        Plan.from_config({"profile": "smoke"}).cell(
            type("W", (), {"paper": "toy", "cell": "coin-x"})
        )


def test_one_run_at_a_time(toy_house):
    plan = Plan(["toy"], "smoke", "results")
    plan.hold()
    code = "from replicata.workflow.plan import Plan; Plan(['toy'], 'smoke', %r).hold()"
    command = [sys.executable, "-c", code % "results"]
    second = subprocess.run(command, env=toy_house.environment, capture_output=True, text=True)
    assert ResourceError.__name__ in second.stderr
    assert "another run is writing results/smoke" in second.stderr
    command = [sys.executable, "-c", code % "rerun"]
    assert subprocess.run(command, env=toy_house.environment).returncode == 0


def test_the_repository_is_found_from_below(toy_house, monkeypatch):
    assert papers() == ["toy"]
    assert select_papers([]) == ["toy"]
    monkeypatch.chdir(toy_house.root / "notebooks")
    assert Room("toy", "smoke").dir == toy_house.root / "results/smoke/toy"
    assert Room("toy", "smoke", Path("/x")).dir == Path("/x/smoke/toy")
    monkeypatch.delenv("REPLICATA_ROOT")
    assert repo_root() == toy_house.root
    monkeypatch.setenv("REPLICATA_ROOT", str(toy_house.root / "lib"))
    with pytest.raises(UsageError, match="REPLICATA_ROOT"):
        repo_root()


def test_listing_cells_imports_no_torch(toy_house):
    code = (
        "import sys; from replicata.workflow.plan import Plan; "
        "Plan(['toy'], 'smoke', 'results').stages; print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=toy_house.environment, capture_output=True, text=True)
    assert done.stdout == "False\n"
