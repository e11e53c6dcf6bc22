"""What a notebook sees of its paper, in the pipeline and opened by hand."""

import base64
import json

import pandas as pd
import pytest

from replicata.errors import RunError, UsageError
from replicata.workflow import run, session
from replicata.workflow.layout import Room
from replicata.workflow.params import load_params
from replicata.workflow.plan import planned_cells
from replicata.workflow.session import open_paper
from tests.workflow.notebook_files import code, outputs, write


@pytest.fixture
def computed(monkeypatch):
    """The cells that the session computes."""
    found = []

    def run_cell(room, cell_id):
        found.append(cell_id)
        return run.run_cell(room, cell_id)

    monkeypatch.setattr(session, "run_cell", run_cell)
    return found


@pytest.fixture
def shown(monkeypatch):
    """What the session displays."""
    found = []
    monkeypatch.setattr("IPython.display.display", found.append)
    return found


def pipeline():
    """Run the stages before the notebook."""
    room = Room("toy", "smoke")
    for cell in planned_cells(room, load_params("toy", "smoke")):
        run.run_cell(room, cell.id)
    run.run_claims(room)
    return room


def test_opened_by_hand_it_computes_what_is_missing_and_only_that(toy_house, computed):
    run.run_cell(Room("toy", "smoke"), "coin-0")
    opened = open_paper("toy", "smoke")
    rows = opened.cells("coin")
    assert computed == ["coin-1"]
    assert set(rows["group"]) == {"coin"}
    assert len(rows) == 2 * opened.params.throws == 100
    assert set(opened.cells()["cell"]) == {"coin-0", "coin-1", "engine"}
    assert computed == ["coin-1", "engine"]
    pd.testing.assert_frame_equal(opened.cells("coin"), rows)
    assert computed == ["coin-1", "engine"]


def test_changed_params_make_cells_stale(toy_house, computed):
    assert len(open_paper("toy", "smoke").cells("engine")) == 50
    toy_house.params(throws=20)
    assert len(open_paper("toy", "smoke").cells("engine")) == 20
    assert computed == ["engine", "engine"]


def test_an_edited_table_is_computed_again(toy_house, computed):
    pipeline()
    Room("toy", "smoke").cell_path("coin-0").write_bytes(b"edited")
    assert len(open_paper("toy", "smoke").cells("coin")) == 100
    assert computed == ["coin-0"]


def test_results_can_lie_under_another_root(toy_house, computed, monkeypatch):
    (toy_house.root / "notebooks").mkdir(exist_ok=True)
    monkeypatch.chdir(toy_house.root / "notebooks")
    open_paper("toy", "smoke", "rerun").cells("engine")
    assert (toy_house.results("rerun") / "cells/engine.parquet").is_file()


def test_unknown_names_give_the_nearest_known_one(toy_house):
    with pytest.raises(UsageError, match=r"no paper is called 'toys'.*'toy'"):
        open_paper("toys", "smoke")
    opened = open_paper("toy", "smoke")
    with pytest.raises(UsageError, match=r"no group of cells 'coins'.*'coin'.*known: coin, engine"):
        opened.cells("coins")
    with pytest.raises(UsageError, match=r"no figure 'coins'.*'coin'.*known: coin, engine"):
        opened.figure("coins")


def test_what_cannot_run_here_is_tried_once_and_said(toy_house, computed, shown):
    toy_house.params(unavailable="no engine here")
    opened = open_paper("toy", "smoke")
    assert opened.cells("engine").empty
    opened.figure("engine")
    assert computed == ["engine"]
    assert "not run: no engine here" in shown[0].data
    assert opened.claims().data["verdict"].tolist()[1] == "not run: no engine here"


def test_a_failing_cell_is_an_error(toy_house):
    toy_house.params(fails="coin-0")
    with pytest.raises(RunError, match="cell coin-0 of toy failed"):
        open_paper("toy", "smoke").cells("coin")


def test_current_verdicts_are_read_and_others_decided_anew(toy_house, monkeypatch):
    room = pipeline()
    monkeypatch.setattr(session, "claims_document", lambda room: pytest.fail("was current"))
    read = open_paper("toy", "smoke").claims().data
    monkeypatch.setattr(session, "claims_document", run.claims_document)
    room.claims_json.unlink()
    decided = open_paper("toy", "smoke").claims().data
    pd.testing.assert_frame_equal(read, decided)
    assert read["claim"].tolist() == ["toy.c1", "toy.c2", "toy.c3"]
    assert read["verdict"].tolist()[2] == "not testable at this scale"
    assert not room.claims_json.exists()


def test_edited_verdicts_are_not_shown(toy_house):
    room = pipeline()
    edited = room.claims_json.read_text().replace('"supported"', '"contradicted"')
    room.claims_json.write_text(edited)
    assert "contradicted" not in open_paper("toy", "smoke").claims().to_html()


def test_the_table_of_verdicts_is_the_same_html_each_time(toy_house):
    pipeline()
    tables = {open_paper("toy", "smoke").claims()._repr_html_() for _ in range(2)}
    assert len(tables) == 1


def test_a_figure_comes_with_its_caption_and_the_same_each_time(toy_house, shown):
    opened = open_paper("toy", "smoke")
    opened.figure("coin")
    opened.figure("coin")
    pictures, captions = shown[::2], shown[1::2]
    assert pictures[0].data.startswith(b"\x89PNG")
    assert pictures[0].data == pictures[1].data
    assert b"Matplotlib" not in pictures[0].data
    assert [caption.data for caption in captions] == ["Share of heads."] * 2


def test_a_notebook_tells_the_same_whether_it_computed_the_cells_or_found_them(toy_house):
    source = write(
        toy_house.root / "notebooks" / "toy.ipynb",
        code('profile = "smoke"\nroot = "results"', "parameters"),
        code("from replicata.workflow.session import open_paper\n"
             'paper = open_paper("toy", profile, root)\npaper'),
        code('paper.cells("coin").groupby("cell")["value"].mean()'),
        code('paper.figure("coin")'),
        code("paper.claims()"),
    )  # fmt: skip
    texts = []
    for name in ("first.ipynb", "second.ipynb"):
        called = toy_house.call("replicata.workflow.notebooks", str(source), name)
        assert called.returncode == 0, called.stderr
        texts.append((toy_house.root / name).read_text())
    assert texts[0] == texts[1]
    assert (toy_house.results() / "cells/coin-1.parquet").is_file()
    _, opened, _, figure, claims = outputs(toy_house.root / "first.ipynb")
    assert opened[0]["data"]["text/plain"] == ["toy at profile smoke: 3 cells"]
    assert base64.b64decode(figure[0]["data"]["image/png"]).startswith(b"\x89PNG")
    assert figure[1]["data"]["text/markdown"] == ["Share of heads."]
    assert "toy.c1" in json.dumps(claims[0]["data"]["text/html"])
