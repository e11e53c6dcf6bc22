"""The language of decision rules: what it means, and everything it refuses.

The oracle is Python's own ``eval``, of which the language is a part.
"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicata.claims.rules import RuleError, evaluate_rule, rule_names

NUMBERS = ("a", "b", "c2")
FLAGS = ("ok", "done")


def numbers() -> st.SearchStrategy[str]:
    leaves = st.sampled_from([*NUMBERS, "0", "1", "0.25", "3e-2", "1_000"])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({' '.join(t)})"),
            inner.map(lambda x: f"-{x}"),
            inner.map(lambda x: f"abs({x})"),
            st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
                lambda t: f"{t[0]}({t[1]}, {t[2]})"
            ),
        ),
        max_leaves=4,
    )


def conditions() -> st.SearchStrategy[str]:
    operators = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    compared = st.tuples(numbers(), operators, numbers()).map(" ".join)
    chained = st.tuples(numbers(), operators, numbers(), operators, numbers()).map(" ".join)
    return st.recursive(
        st.one_of(compared, chained, st.sampled_from(FLAGS)),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
                lambda t: f"({' '.join(t)})"
            ),
            inner.map(lambda x: f"(not {x})"),
        ),
        max_leaves=4,
    )


@settings(max_examples=200, deadline=None)
@given(
    rule=conditions(),
    values=st.tuples(*[st.sampled_from([-2.5, -1, 0, 0.25, 1, 1000, 3e-2])] * 3),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_a_rule_means_what_python_means(rule, values, flags):
    quantities = {**dict(zip(NUMBERS, values, strict=True)), **dict(zip(FLAGS, flags, strict=True))}
    builtins = {"abs": abs, "min": min, "max": max}
    assert evaluate_rule(rule, quantities) is eval(rule, {"__builtins__": builtins}, quantities)


def test_names():
    assert rule_names("a <= 1.0001") == {"a"}
    assert rule_names("abs(x - y) < min(z, 3)\n  and not flag or  x/2 == 1") == {
        "x",
        "y",
        "z",
        "flag",
    }


def test_names_that_are_not_reached_are_still_needed():
    with pytest.raises(RuleError, match="uses b, which the evidence does not have"):
        evaluate_rule("a < 1 or b < 1", {"a": 0.0})


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "   ",
        "a <",
        "a < 1; b < 2",
        "a < 1\nimport os",
        "3",
        "True",
        "None",
        "'a' < b",
        "a + b",
        "a and 3",
        "not 3",
        "a < True",
        "a < 1j",
        "a < 1e999",
        "a ** 9 < 1",
        "a // 2 < 1",
        "a % 2 < 1",
        "a << 2 < 1",
        "~a < 1",
        "a @ b < 1",
        "a in b",
        "a is b",
        "a if b else c",
        "(a < 1, b)",
        "[a < 1]",
        "{'a': 1}",
        "a[0] < 1",
        "a.b < 1",
        "a.b",
        "().__class__",
        "__import__('os').system('true')",
        "open('x') < 1",
        "f(a) < 1",
        "pow(a, b) < 1",
        "abs(a)",
        "abs",
        "abs < 1",
        "abs(a, b) < 1",
        "abs() < 1",
        "min(a) < 1",
        "min(*a) < 1",
        "min(a, b, key=c) < 1",
        "abs(abs)(a) < 1",
        "(lambda: 1) < 2",
        "(a := 1) < 2",
        "f'{a}' < 1",
        "[x for x in a] < 1",
        "(yield a) < 1",
        "ε < 1",
        "a < 1 " + "and a < 1 " * 200,
        "(" * 300 + "a" + ")" * 300 + " < 1",
    ],
)
def test_what_is_not_in_the_language(rule):
    with pytest.raises(RuleError):
        rule_names(rule)
    with pytest.raises(RuleError):
        evaluate_rule(rule, {"a": 1.0, "b": 1.0, "c": 1.0})


def test_deep_nesting_ends_in_a_sentence():
    with pytest.raises(RuleError, match="nested too deeply"):
        evaluate_rule("-" * 950 + "a < 2", {"a": 1.0})


@pytest.mark.parametrize(
    ("rule", "value", "words"),
    [
        ("a < 1", math.nan, "a, which is nan"),
        ("not a < 1", math.inf, "a, which is inf"),
        ("a < 1", 10**400, "expected a finite number"),
        ("a < 1", True, "takes a as a number"),
        ("a", 1, "takes a as true or false"),
        ("a or a > 0", 1.0, "takes a as true or false"),
        ("1 / (a - a) < 1", 1.0, "cannot be computed: float division by zero"),
        ("a * 1e308 < 1", 1e10, "cannot be computed"),
        # 1e308*10 - 1e308*10 would be NaN, and NaN < 1 false: inconclusive without a reason.
        ("a * 10 - a * 10 < 1", 1e308, "not finite"),
    ],
)
def test_what_cannot_be_evaluated(rule, value, words):
    with pytest.raises(RuleError, match=words.replace("(", r"\(")):
        evaluate_rule(rule, {"a": value})
