"""Comparing a rerun with the reference, and verifying results."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from replicata.errors import UsageError, VerificationError
from replicata.workflow import compare as c
from replicata.workflow import run
from replicata.workflow.layout import Room
from replicata.workflow.verify import verify
from tests.workflow.test_run import run_all_cells


@pytest.fixture
def rooms(toy_house):
    reference = Room("toy", "smoke")
    run_all_cells(reference)
    run.run_claims(reference)
    rerun = Room("toy", "smoke", Path("rerun"))
    shutil.copytree(reference.dir, rerun.dir)
    return rerun, reference


def edit(room, number=0, **values):
    document = json.loads(room.claims_json.read_text())
    document["claims"][number] |= values
    room.claims_json.write_text(json.dumps(document))


def first(rooms):
    return c.compare(*rooms)[0]


def estimate(room):
    return json.loads(room.claims_json.read_text())["claims"][0]["estimate"]


def reference_runs(room, *values):
    runs = [
        {"name": str(i), "environment": {}, "claims": {"toy.c1": value}}
        for i, value in enumerate(values)
    ]
    (room.dir / "reference_runs.json").write_text(json.dumps({"runs": runs}))


def test_equal_is_identical(rooms):
    found = c.compare(*rooms)
    assert [comparison.category for comparison in found] == [c.IDENTICAL] * 3
    assert all(comparison.holds and comparison.same_verdict for comparison in found)


def test_one_reference_allows_no_difference(rooms):
    edit(rooms[0], estimate=estimate(rooms[1]) + 1e-9)
    assert first(rooms).category == c.DRIFTED
    assert not first(rooms).holds
    assert "no other reference run" in first(rooms).line()


def test_more_references_give_a_prediction_interval(rooms):
    before = estimate(rooms[1])
    values = [before + 0.01, before - 0.03]
    reference_runs(rooms[1], *values)
    data = np.array([before, *values])
    half = stats.t.ppf(0.975, 2) * data.std(ddof=1) * np.sqrt(1 + 1 / 3)
    for offset, category in ((0.99, c.WITHIN), (-0.99, c.WITHIN), (1.01, c.DRIFTED)):
        edit(rooms[0], estimate=data.mean() + offset * half)
        assert first(rooms).category == category
        assert first(rooms).holds == (category == c.WITHIN)


def test_another_verdict_never_holds(rooms):
    reference_runs(rooms[1], 0.0, 1.0)
    edit(rooms[0], estimate=estimate(rooms[1]) + 0.01, verdict="inconclusive")
    assert first(rooms).category == c.WITHIN
    assert not first(rooms).same_verdict
    assert not first(rooms).holds
    assert "supported -> inconclusive" in first(rooms).line()


def test_not_run_is_neither(rooms):
    edit(rooms[0], verdict="not run: no engine", estimate=None)
    assert first(rooms).category == c.NOT_RUN
    assert first(rooms).holds
    assert not first(rooms).same_verdict


def test_a_run_is_added_once(rooms):
    rerun, reference = rooms
    c.add_reference(rerun, reference, "laptop")
    runs = json.loads((reference.dir / "reference_runs.json").read_text())["runs"]
    assert runs[0]["name"] == "laptop"
    assert runs[0]["claims"]["toy.c1"] == estimate(rerun)
    assert "numpy" in runs[0]["environment"]["packages"]
    with pytest.raises(UsageError, match="'laptop' is taken"):
        c.add_reference(rerun, reference, "laptop")
    with pytest.raises(UsageError, match="the reference itself"):
        c.add_reference(reference, reference, "x")
    with pytest.raises(UsageError, match="no finished run"):
        c.add_reference(Room("toy", "smoke", Path("nowhere")), reference, "x")


def test_damaged_files_are_named(rooms):
    (rooms[1].dir / "reference_runs.json").write_text('{"run": []}')
    with pytest.raises(VerificationError, match=r"reference_runs.json of toy: run"):
        c.compare(*rooms)
    reference_runs(rooms[1])
    rooms[0].claims_json.write_text("{")
    with pytest.raises(VerificationError, match=r"claims.json of toy"):
        c.compare(*rooms)


# --- verify ---------------------------------------------------------------------------------------


def manifest(room):
    listed = {
        f"cells/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in room.cells_dir.iterdir()
    }
    room.manifest_json.write_text(json.dumps({"outputs": listed}))


def failures(room):
    return {check.subject: check.detail for check in verify(room) if check.status == "FAIL"}


def test_whole_results_pass(rooms):
    room = rooms[1]
    manifest(room)
    # The notebook has not been run in this fixture.
    assert list(failures(room)) == ["notebook"]
    passed = {check.subject for check in verify(room) if check.status == "PASS"}
    assert {"cells/coin-0", "claims", "manifest.json", "toy.c1", "toy.c2", "toy.c3"} <= passed


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"verdict": "contradicted"}, "verdict is 'contradicted' in claims.json and 'supported'"),
        ({"estimate": 0.1234}, "estimate is 0.1234 in claims.json"),
        ({"n": 101}, "n is 101"),
        ({"quantities": {"share": 0.1}}, "quantities.share is 0.1"),
        ({"extra": 1}, "extra is in one of"),
    ],
)
def test_an_edited_verdict_fails_even_with_a_forged_receipt(rooms, values, words):
    room = rooms[1]
    edit(room, **values)
    path = room.receipt_path("claims")
    receipt = json.loads(path.read_text())
    receipt["outputs"]["claims.json"] = hashlib.sha256(room.claims_json.read_bytes()).hexdigest()
    path.write_text(json.dumps(receipt))
    found = failures(room)
    assert "claims" not in found
    assert words in found["toy.c1"]


def test_an_edited_table_fails_everywhere_it_is_used(rooms):
    room = rooms[1]
    manifest(room)
    run.write_table(room.cell_path("coin-0"), None)
    found = failures(room)
    assert "not what was recorded" in found["cells/coin-0"]
    assert "coin-0.parquet is not what is listed" in found["manifest.json"]
    assert "cannot be derived again" in found["claims.json"]


def test_claims_taken_out_or_put_in_fail(rooms):
    room = rooms[1]
    document = json.loads(room.claims_json.read_text())
    document["claims"][0]["id"] = "toy.c9"
    room.claims_json.write_text(json.dumps(document))
    found = failures(room)
    assert found["toy.c1"] == "claims.json does not have it"
    assert "the ledger does not" in found["toy.c9"]


def test_the_last_bits_of_a_number_are_another_machine(rooms):
    room = rooms[1]
    edit(room, estimate=estimate(room) * (1 + 1e-13))
    assert "toy.c1" not in failures(room)


def test_extra_cells_and_cells_not_run_are_said(rooms, toy_house):
    room = rooms[1]
    (room.cells_dir / "old.parquet").write_bytes(b"")
    assert ("EXTRA", "cells/old.parquet") in {(k.status, k.subject) for k in verify(room)}
    toy_house.params(unavailable="no engine")
    run_all_cells(room)
    run.run_claims(room)
    found = {(check.status, check.subject) for check in verify(room)}
    assert ("NOT RUN", "cells/engine") in found
    assert ("PASS", "claims") in found
    assert ("PASS", "toy.c2") in found
