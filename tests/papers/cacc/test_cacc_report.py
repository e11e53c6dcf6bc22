"""``replicata cacc report``: a pool of known outcome, and pools that are refused."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from replicata.errors import UsageError
from replicata.papers.cacc.cli import app
from replicata.papers.cacc.grading import Grader
from replicata.papers.cacc.pool_file import read_pool
from replicata.papers.cacc.report import make_report
from replicata.workflow.layout import repo_root

EXAMPLE = repo_root() / "docs" / "examples" / "cacc" / "pool.jsonl"


def write(path: Path, *lines: dict | str) -> Path:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text), encoding="utf-8")
    return path


def line(**changes: object) -> dict:
    return {"id": "q", "question": "What is 1 + 2?", "mode": "number", "gold": "3",
            "candidates": ["#### 3"]} | changes  # fmt: skip


def test_a_pool_whose_outcome_is_known(tmp_path: Path) -> None:
    """Four questions: right at once; released; lost to the vote afterwards; never right."""
    cut = {"text": "To add, we", "finished": False}
    pool = read_pool(
        write(
            tmp_path / "pool.jsonl",
            line(id="right"),
            line(id="released", candidates=["It is 3.", "It is 3", cut]),
            line(id="outvoted", candidates=["#### 3", "It is 4.", "So it is 4."]),
            line(id="wrong", candidates=["#### 4", "no idea"]),
        )
    )
    with Grader() as grader:
        found = make_report(pool, grader)
    assert (found.questions, found.candidates, found.strict, found.aligned) == (4, 9, 3, 7)
    assert (found.before.c_raw, found.before.c_sel, found.before.accuracy) == (0.75, 0.5, 0.5)
    assert (found.after.c_raw, found.after.c_sel, found.after.accuracy) == (0.75, 0.75, 0.5)
    assert (found.gained, found.given_up, found.p_value) == (1, 1, 1.0)
    assert found.causes == {"mode mismatch": 1}
    assert [one.question for one in found.lost] == ["released", "released"]
    assert [name for name, _ in found.unread] == ["released", "wrong"]


def test_the_order_of_questions_and_of_golds_between_them_matters_not(tmp_path: Path) -> None:
    """Interfaces do not see gold: other golds change grades and nothing else."""
    lines = [json.loads(text) for text in EXAMPLE.read_text().splitlines()]
    numbers = [one for one in lines if one["mode"] == "number"]
    swapped = [one | {"gold": gold} for one, gold in zip(numbers, ("1", "2", "3"), strict=True)]
    with Grader() as grader:
        one = make_report(read_pool(write(tmp_path / "a.jsonl", *numbers)), grader)
        two = make_report(read_pool(write(tmp_path / "b.jsonl", *swapped)), grader)
    assert (one.strict, one.aligned, one.unread) == (two.strict, two.aligned, two.unread)
    assert one.before.accuracy > 0 == two.before.accuracy


def test_the_command_prints_the_example() -> None:
    shown = CliRunner().invoke(app, ["report", str(EXAMPLE), "--examples", "2"])
    assert shown.exit_code == 0, shown.output
    for part in ("7 questions", "interface tax", "mode mismatch", "and 10 more", "I do not know"):
        assert part in shown.output
    numbers = json.loads(CliRunner().invoke(app, ["report", str(EXAMPLE), "--json"]).output)
    assert numbers["before"]["tau"] == pytest.approx(4 / 7)
    assert numbers["candidates"] == 27


def test_without_gold_only_losses_of_reading_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "pool.jsonl", line(gold=None, candidates=["It is 3.", "?"]))
    shown = CliRunner().invoke(app, ["report", str(path)])
    assert "No gold answers" in shown.output
    assert "accuracy (majority)" not in shown.output


def test_an_empty_pool_counts_as_wrong(tmp_path: Path) -> None:
    pool = read_pool(write(tmp_path / "pool.jsonl", line(candidates=[]), line(id="r")))
    with Grader() as grader:
        found = make_report(pool, grader)
    assert (found.before.n, found.before.accuracy) == (2, 0.5)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "no questions, expected one JSON object a line"),
        (["{"], "line 1: line: Invalid JSON"),
        ([line(mode="word")], "line 1: mode: Input should be 'number', 'latex' or 'letter'"),
        ([line(), line()], "line 2: id 'q' occurs twice"),
        ([line(mode="letter", gold="A")], "options: expected for mode letter"),
        ([line(options=["1"])], "options: expected for mode letter, and for no other mode"),
        ([line(mode="letter", options=["a", "A "], gold="A")], "two of question q are the same"),
        ([line(mode="letter", options=[str(i) for i in range(27)], gold="A")],
         "27 of question q, expected at most 26"),
        ([line(mode="letter", options=["1", "2"], gold="C")], "expected a letter from A to B"),
        ([line(extra=1)], "line 1: extra: Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_bad_pools_are_named(tmp_path: Path, lines: list, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_pool(write(tmp_path / "pool.jsonl", *lines))
    assert expected in str(caught.value)
    assert "pool.jsonl" in str(caught.value)


def test_gold_for_some_questions_only_is_refused(tmp_path: Path) -> None:
    pool = read_pool(write(tmp_path / "pool.jsonl", line(), line(id="r", gold=None)))
    with Grader() as grader, pytest.raises(UsageError, match="1 of 2 questions have a gold"):
        make_report(pool, grader)


def test_a_parser_of_another_mode_is_refused() -> None:
    shown = CliRunner().invoke(app, ["report", str(EXAMPLE), "--interface", "boxed"])
    assert shown.exit_code != 0
    assert "boxed: it gives latex" in str(shown.exception)
    other = CliRunner().invoke(app, ["report", str(EXAMPLE), "--interface", "xml"])
    assert "--interface xml: unknown" in str(other.exception)


def test_a_gold_answer_that_nothing_can_equal_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "pool.jsonl", line(), line(id="r", gold="forty-two"))
    shown = CliRunner().invoke(app, ["report", str(path)])
    assert "gold answer of 1 questions cannot be read, so they count as wrong: r." in shown.output
