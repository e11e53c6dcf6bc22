"""Cells, claims and receipts, in this process."""

import errno
import importlib
import json
import os

import pandas as pd
import pytest

from replicata.errors import ResourceError, RunError, UsageError, VerificationError
from replicata.workflow import receipts, run
from replicata.workflow.files import atomic_write, sha256_file
from replicata.workflow.layout import Room
from replicata.workflow.params import load_params
from replicata.workflow.plan import PaperPlan, cell_key, planned_cells


@pytest.fixture
def room(toy_house):
    return Room("toy", "smoke")


def run_all_cells(room):
    for cell in planned_cells(room, load_params("toy", "smoke")):
        run.run_cell(room, cell.id)


def leftovers(room):
    return [path.name for path in room.dir.rglob(".*")]


def test_a_cell_leaves_a_table_and_a_receipt(room):
    receipt = run.run_cell(room, "coin-0")
    table = pd.read_parquet(room.cell_path("coin-0"))
    assert list(table.columns) == ["arm", "unit", "metric", "value"]
    assert len(table) == 50
    assert receipt.outputs == {"cells/coin-0.parquet": sha256_file(room.cell_path("coin-0"))}
    assert receipt.cell["params"] == {"replicate": 0}
    assert receipts.read(room.receipt_path("cells/coin-0")) == receipt
    assert str(room.dir) not in room.receipt_path("cells/coin-0").read_text()
    params = load_params("toy", "smoke")
    key = cell_key(room, params, planned_cells(room, params)[0])
    assert receipts.is_current(room, "cells/coin-0", key)
    assert not leftovers(room)


def test_the_same_cell_gives_the_same_bytes(room):
    first = run.run_cell(room, "coin-1").outputs
    room.receipt_path("cells/coin-1").unlink()
    assert run.run_cell(room, "coin-1").outputs == first
    again = pd.read_parquet(room.cell_path("coin-1"))
    again.index = range(7, 7 + len(again))
    run.write_table(room.cell_path("copy"), again)
    assert room.cell_path("copy").read_bytes() == room.cell_path("coin-1").read_bytes()


def test_an_unknown_cell_is_named(room):
    with pytest.raises(UsageError, match=r"'coin-9'.*did you mean 'coin-"):
        run.run_cell(room, "coin-9")


def test_a_failing_cell_is_one_sentence_and_leaves_nothing(toy_house, room, capsys):
    toy_house.params(fails="coin-0")
    with pytest.raises(
        RunError, match=r"cell coin-0 of toy failed: RuntimeError: the coin is lost"
    ):
        run.run_cell(room, "coin-0")
    assert "Traceback" in capsys.readouterr().err
    assert not room.dir.exists()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([1], "a list, expected a DataFrame"),
        (pd.DataFrame({"arm": ["a"], "unit": ["u"], "value": [1]}), "no column metric"),
        (pd.DataFrame({"arm": [], "unit": [], "metric": [], "value": []}), "no rows"),
        (
            pd.DataFrame({"arm": ["a"], "unit": ["u"], "metric": ["m"], "value": ["x"]}),
            "holds no number",
        ),
        (pd.DataFrame({"arm": ["a"], "unit": [3], "metric": ["m"], "value": [1]}), "unit holds 3"),
        (
            pd.DataFrame({c: ["1"] for c in ("arm", "unit", "metric", "value", "cell")}),
            "column 'cell'",
        ),
    ],
)
def test_a_table_that_is_not_tidy_is_refused(room, monkeypatch, table, words):
    monkeypatch.setattr(room.module("experiment"), "run", lambda params, cell: table)
    with pytest.raises(RunError, match=words):
        run.run_cell(room, "coin-0")
    assert not room.dir.exists()


def full(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_one_sentence_and_leaves_nothing(room, monkeypatch):
    import pyarrow.parquet

    monkeypatch.setattr(pyarrow.parquet, "write_table", full)
    with pytest.raises(ResourceError, match=r"no space left on the disk for coin-0.parquet"):
        run.run_cell(room, "coin-0")
    assert [path for path in room.dir.rglob("*") if path.is_file()] == []


def test_a_disk_that_fills_while_a_paper_computes(room, monkeypatch):
    monkeypatch.setattr(room.module("experiment"), "run", full)
    with pytest.raises(ResourceError, match="no space left"):
        run.run_cell(room, "coin-0")


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    atomic_write(path, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_cell_not_run_is_recorded_and_never_current(toy_house, room):
    toy_house.params(unavailable="no engine here")
    run_all_cells(room)
    receipt = receipts.read(room.receipt_path("cells/engine"))
    assert receipt.not_run == "no engine here"
    assert len(pd.read_parquet(room.cell_path("engine"))) == 0
    run.run_claims(room)
    verdicts = {c["id"]: c["verdict"] for c in json.loads(room.claims_json.read_text())["claims"]}
    assert verdicts == {
        "toy.c1": "supported",
        "toy.c2": "not run: no engine here",
        "toy.c3": "not testable at this scale",
    }
    claims = receipts.read(room.receipt_path("claims"))
    assert claims.skipped == {"figures/engine.png": "not run: no engine here"}
    assert sorted(claims.outputs) == ["claims.json", "figures/captions.json", "figures/coin.png"]
    stale = {stage.name: stage.stale for stage in PaperPlan(room).stages}
    assert stale["cells/engine"] == "not-run"
    assert stale["cells/coin-0"] is None
    assert stale["claims"] == "upstream-changed"


def test_claims_give_the_same_bytes_twice(room):
    run_all_cells(room)
    first = run.run_claims(room).outputs
    (room.figures_dir / "leftover.png").write_bytes(b"x")
    assert run.run_claims(room).outputs == first
    drawn = ["captions.json", "coin.png", "engine.png"]
    assert sorted(first) == ["claims.json", *(f"figures/{name}" for name in drawn)]
    assert sorted(path.name for path in room.figures_dir.iterdir()) == drawn


def test_load_cells_takes_planned_groups_and_checks_bytes(room):
    run_all_cells(room)
    run.write_table(room.cell_path("superseded"), pd.read_parquet(room.cell_path("coin-0")))
    rows = run.load_cells(room, ["coin"])
    assert set(rows["cell"]) == {"coin-0", "coin-1"}
    assert set(rows["group"]) == {"coin"}
    assert set(run.load_cells(room)["group"]) == {"coin", "engine"}
    run.write_table(room.cell_path("coin-0"), None)
    with pytest.raises(VerificationError, match=r"coin-0.*receipt"):
        run.load_cells(room, ["coin"])
    room.receipt_path("cells/coin-0").unlink()
    with pytest.raises(RunError, match="has not been run"):
        run.load_cells(room)


def test_evidence_that_is_missing_or_fails_is_named(room, monkeypatch):
    run_all_cells(room)
    evidence = room.module("analysis").EVIDENCE
    monkeypatch.setitem(evidence, "c1", lambda rows, params: 1 / 0)
    with pytest.raises(RunError, match=r"toy\.c1 failed: ZeroDivisionError"):
        run.claims_document(room)
    monkeypatch.delitem(evidence, "c1")
    with pytest.raises(RunError, match=r"EVIDENCE has nothing for claim toy\.c1"):
        run.claims_document(room)


def test_preflight_names_everything_missing(room, toy_house):
    (toy_house.root / "params/toy/paper.yaml").write_bytes(
        (toy_house.root / "params/toy/smoke.yaml").read_bytes()
    )
    module = toy_house.root / "lib/replicata/papers/toy/preflight.py"
    module.write_text(
        "def preflight(params):\n"
        "    return ['two GPUs are needed, none is here.', 'the data set is not in the cache']\n"
    )
    importlib.invalidate_caches()
    with pytest.raises(ResourceError, match=r"two GPUs.*none is here; the data set"):
        run.run_cell(Room("toy", "paper"), "coin-0")
    assert run.run_cell(room, "coin-0").not_run is None


def test_environment_names_no_person_and_no_place(room):
    import getpass
    import socket

    text = run.run_cell(room, "coin-0").model_dump_json()
    assert socket.gethostname() not in text
    assert f'"{getpass.getuser()}"' not in text
