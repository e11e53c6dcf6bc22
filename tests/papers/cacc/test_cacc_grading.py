"""Grading in a process of its own: math-verify as it is, and what happens when it hangs."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import reasoning_gym
from math_verify import parse, verify

from replicata.papers.cacc.grading import Grader
from replicata.papers.cacc.pool import Asked

NUMBER = Asked("n", "What is 30 + 7?", "number")
LETTER = Asked("m", "Which?", "letter", ("1", "2"))


@pytest.fixture(scope="module")
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


LATEX = Asked("l", "Compute.", "latex")


@pytest.mark.parametrize(
    ("gold", "answers"),
    [
        (r"2\sqrt{3}", [r"\sqrt{12}", r"2\sqrt{3}"]),
        (r"1+\sqrt{2}", [r"\sqrt{2}+1"]),  # a sum that cannot be carried out is a value
        (r"\frac{1+\sqrt{5}}{2}", [r"\frac{1}{2}+\frac{\sqrt{5}}{2}"]),
        ("x^2+2x+1", ["(x+1)^2", "1+2x+x^2"]),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", [r"\begin{pmatrix}1\\2\end{pmatrix}"]),
        (r"50\%", ["50", r"50\%"]),
        ("10^{-3}", [r"\frac{1}{1000}", "0.001"]),
    ],
)
def test_latex_of_competition_mathematics(grader: Grader, gold: str, answers: list[str]) -> None:
    """Gold answers come bare, as in the data sets; equal answers have one key, so votes add up."""
    keys = grader.parse_keys([rf"It is $\boxed{{{answer}}}$." for answer in answers])
    assert len(set(keys)) == 1
    assert grader.equal(LATEX, gold, keys) == [True] * len(keys)
    assert grader.equal(LATEX, "77", keys) == [False] * len(keys)


def test_a_sum_that_can_be_carried_out_is_no_value(grader: Grader) -> None:
    texts = [r"$\boxed{6 \cdot 7}$", "$2^{10}-1$", "The final answer is 16 - 29.", "It is 8 + 36."]
    assert grader.parse_keys(texts) == [None] * 4


def test_a_new_worker_grades_what_an_old_one_read(grader: Grader) -> None:
    """verify needs the expression, which the killed worker took with it."""
    (key,) = grader.parse_keys([r"$\boxed{(3,\infty)}$"])
    grader.close()
    assert grader.equal(LATEX, "x>3", [key]) == [True]
    assert grader.equal(LATEX, "x>4", [key]) == [False]


def test_a_worker_that_ends_costs_one_text() -> None:
    with Grader() as grader:
        assert grader.parse_keys(["It is 7."]) == ["7"]
        os.kill(grader._worker.pid, signal.SIGKILL)
        grader._worker.wait()
        assert grader.parse_keys(["It is 8."]) == ["8"]
        assert grader.timeouts == 0
        os.kill(grader._worker.pid, signal.SIGSTOP)
        killed = threading.Timer(0.2, os.kill, (grader._worker.pid, signal.SIGKILL))
        killed.start()
        assert grader.parse_keys(["It is 9.", "It is 10."]) == [None, "10"]
        killed.join()
        assert grader.timeouts == 1
