"""Grading in a process of its own: math-verify as it is, and what happens when it hangs."""

import os
import signal
from collections.abc import Iterator

import pytest
import reasoning_gym
from math_verify import parse, verify

from replicata.papers.cacc.grading import Grader
from replicata.papers.cacc.pool import Asked

NUMBER = Asked("n", "What is 30 + 7?", "number")
LETTER = Asked("m", "Which?", "letter", ("1", "2"))


@pytest.fixture
def grader() -> Iterator[Grader]:
    with Grader() as made:
        yield made


def test_math_verify_is_what_we_take_it_for() -> None:
    def equal(gold: str, answer: str) -> bool:
        return verify(parse(gold), parse(answer))

    assert equal("0.75", "3/4")
    assert equal("3/4", "0.75")
    assert not equal("0.333", "1/3")
    assert not equal("1/3", "0.333")
    assert parse("The answer is (B)") == []


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [("42", "42", True), ("42", "41", False), ("1234", "1,234", True), ("3/4", "0.75", True),
     ("3/4", "3/4", True), ("-37", "37", False), ("1/3", "0.333", False),
     (r"\frac{1}{2}", "0.5", True)],
)  # fmt: skip
def test_values_are_equal_or_not(grader: Grader, gold: str, answer: str, right: bool) -> None:
    (key,) = grader.parse_keys([answer])
    assert grader.equal(NUMBER, gold, [key]) == [right]


def test_two_unreadable_answers_are_never_equal(grader: Grader) -> None:
    assert grader.parse_keys(["no idea", "none"]) == [None, None]
    assert not grader.contains(NUMBER, "None", "no idea")
    assert grader.equal(LETTER, "A", ["B", "A"]) == [False, True]


def test_agreement_with_the_data_sets_own_grader(grader: Grader) -> None:
    """reasoning_gym's score_answer on 500 answers, half of them right."""
    data = reasoning_gym.create_dataset("chain_sum", size=250, seed=5)
    disagreed = []
    for index, entry in enumerate(data):
        gold = str(entry["answer"])
        for answer in (gold, str(int(gold) + 1 + index % 3)):
            theirs = data.score_answer(answer=answer, entry=entry) == 1.0
            (key,) = grader.parse_keys([answer])
            if grader.equal(NUMBER, gold, [key])[0] != theirs:
                disagreed.append((gold, answer))
    assert disagreed == []


def test_a_stuck_worker_is_killed_counted_and_replaced() -> None:
    with Grader(timeout_s=0.5) as grader:
        assert grader.parse_keys(["It is 7."]) == ["7"]
        worker = grader._worker
        os.kill(worker.pid, signal.SIGSTOP)
        assert grader.parse_keys(["It is 8."]) == [None]
        assert grader.timeouts == 1
        assert worker.poll() is not None
        assert grader.parse_keys(["It is 9."]) == ["9"]
    assert grader._worker is None


def test_a_tower_of_powers_ends() -> None:
    with Grader(timeout_s=3) as own:
        tower, seven = own.parse_keys(["It is $9^{9^{9^{9}}}$.", "It is 7."])
        assert seven == "7"
        assert tower is None or own.equal(NUMBER, "7", [tower]) == [False]
        assert own.parse_keys(["It is 8."]) == ["8"]
