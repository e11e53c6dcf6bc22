"""Questions: balanced letters, answers that a placebo cannot copy, benchmarks from files."""

import json
import re
from collections import Counter

import pandas as pd
import pytest

from replicata.errors import ResourceError, UsageError
from replicata.papers.cacc.benchmarks import benchmark_questions
from replicata.papers.cacc.tasks import generated_questions


@pytest.mark.parametrize(
    ("source", "n", "m"), [("gsm_symbolic_mcq4", 12, 4), ("chain_sum_mcq10", 20, 10)]
)
def test_letters_are_balanced_and_right(source, n, m):
    questions = generated_questions(source, "x", n, 3)
    golds = [question.gold for question in questions]
    assert set(Counter(golds).values()) == {n // m}
    assert golds != sorted(golds)
    for question in questions:
        options = [int(option) for option in question.asked.options]
        assert len(set(options)) == m
        value = options[ord(question.gold) - ord("A")]
        assert all(0 < abs(option - value) <= 10 for option in options if option != value)
    if source == "chain_sum_mcq10":
        # An oracle of its own: Python computes what the question asks.
        for question in questions:
            expression = question.asked.text.split(": ")[1]
            assert re.fullmatch(r"[\d +-]+", expression)
            assert question.asked.options[ord(question.gold) - ord("A")] == str(eval(expression))


def test_unbalanced_number_of_questions_is_refused():
    with pytest.raises(UsageError, match="multiple of 4"):
        generated_questions("gsm_symbolic_mcq4", "x", 10, 3)


@pytest.mark.parametrize("source", ["chain_sum", "products"])
def test_answers_are_no_numbers_of_the_question(source):
    questions = generated_questions(source, "x", 30, 5)
    assert len({q.asked.text for q in questions}) == 30
    for question in questions:
        assert question.gold not in re.findall(r"\d+", question.asked.text)


def test_products_are_right_and_small():
    for question in generated_questions("products", "x", 20, 7):
        left, right = map(int, re.findall(r"\d+", question.asked.text))
        assert left * right == int(question.gold)
        assert 2 <= min(left, right) <= max(left, right) <= 12


def test_seed_decides():
    first = generated_questions("chain_sum_mcq10", "x", 10, 1)
    assert first == generated_questions("chain_sum_mcq10", "x", 10, 1)
    assert first != generated_questions("chain_sum_mcq10", "x", 10, 2)


ROWS = {
    "gsm8k": [{"question": "2 and 3?", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"}] * 3,
    "math": [{"problem": "Half of 3?", "solution": r"so \boxed{\frac{3}{2}}."}] * 3,
    "gpqa_diamond": [
        {"Question": f"q{i}", "Correct Answer": "right", "Incorrect Answer 1": "w1",
         "Incorrect Answer 2": "w2", "Incorrect Answer 3": "w3"} for i in range(40)
    ],
    "mmlu_pro": [
        {"question": f"q{i}", "options": [*"abcdefghi", "right"], "answer_index": 9}
        for i in range(40)
    ],
}  # fmt: skip


@pytest.mark.parametrize("source", ROWS)
def test_benchmarks_from_files(source, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[source]))
    questions = benchmark_questions(source, "x", str(path), None, 1)
    assert len(questions) == len(ROWS[source])
    if source == "gsm8k":
        assert questions[0].gold == "5"
        assert questions[0].asked.mode == "number"
    elif source == "math":
        assert questions[0].gold == r"$\frac{3}{2}$"
    else:
        for question in questions:
            assert question.asked.options[ord(question.gold) - ord("A")] == "right"
        assert len({question.gold for question in questions}) > 1  # the order is shuffled
    assert questions == benchmark_questions(source, "x", str(path), None, 1)


def test_benchmark_from_parquet_and_sample(tmp_path):
    path = tmp_path / "test.parquet"
    pd.DataFrame(ROWS["mmlu_pro"]).to_parquet(path)
    questions = benchmark_questions("mmlu_pro", "x", str(path), 5, 1)
    assert len({question.asked.id for question in questions}) == 5


def test_benchmark_faults(tmp_path):
    with pytest.raises(ResourceError, match="missing"):
        benchmark_questions("gsm8k", "x", str(tmp_path / "none.jsonl"), None, 1)
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"question": "?", "answer": "no mark"}) + "\n")
    with pytest.raises(UsageError, match="row 1"):
        benchmark_questions("gsm8k", "x", str(path), None, 1)
    with pytest.raises(UsageError, match="expected at least 9"):
        benchmark_questions("gsm8k", "x", str(path), 9, 1)
    with pytest.raises(UsageError, match="unknown"):
        benchmark_questions("gsm9k", "x", str(path), None, 1)
