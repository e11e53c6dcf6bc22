"""Decisions as text, against what a careful reader would write by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_verdicts import claim, document, evidence

from replicata.claims.ledger import Rule
from replicata.claims.table import (
    format_estimate,
    format_note,
    format_number,
    format_p,
    verdict_rows,
)
from replicata.claims.verdicts import decide


def decided(value, interval=None, unit="nats", **changes):
    rule = Rule(supported="x == 1e9")
    found = {
        "quantities": {"x": value},
        "interval": interval,
        "estimate_unit": unit,
        "mde": 0.1234,
        **changes,
    }
    if isinstance(value, bool):
        rule = Rule(supported="x")
    return decide(claim(rule=rule, headline="x"), evidence(**found))


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (0.53, (0.51, 0.55), "0.53 [0.51, 0.55] nats"),
        (0.5312, (0.5114, 0.5549), "0.53 [0.51, 0.55] nats"),
        (0.5312, (0.5212, 0.5449), "0.531 [0.521, 0.545] nats"),  # half-width .012: two digits
        (-0.5, (-1.9, 0.8), "-0.5 [-1.9, 0.8] nats"),
        (0.2, (0.00041, 0.55), "0.2 [0.0004, 0.6] nats"),  # does not cover 0, nor seem to
        (0.0, (-0.2, 0.2), "0.0 [-0.2, 0.2] nats"),
        (-0.0, (-0.2, 0.2), "0.0 [-0.2, 0.2] nats"),
        (51.3, (31.0, 71.0), "51 [31, 71] nats"),
        (1234.0, (1000.0, 1500.0), "1234 [1000, 1500] nats"),
        (1.234e-6, (1.1e-6, 1.36e-6), "1.23e-06 [1.10e-06, 1.36e-06] nats"),
        (0.5, (0.5, 0.5), "0.5 [0.5, 0.5] nats"),
        (0.0, (0.0, 0.0), "0 [0, 0] nats"),
        (0.123456, None, "0.123 nats"),
        (51, None, "51 nats"),
        (51.0, None, "51 nats"),
        (12345.678, None, "12346 nats"),
        (4.2e-7, None, "4.20e-07 nats"),
        (True, None, "yes"),
        (False, None, "no"),
    ],
)
def test_estimates(value, interval, text):
    assert format_estimate(decided(value, interval)) == text


def test_an_estimate_without_a_unit():
    assert format_estimate(decided(0.98, None, unit="")) == "0.98"


numbers = st.floats(-1e9, 1e9).filter(lambda x: x == 0 or abs(x) > 1e-12)


@given(numbers, st.tuples(numbers, numbers).map(sorted))
def test_what_is_printed_is_within_the_width_and_keeps_its_sign(value, ends):
    text = format_estimate(decided(value, tuple(ends), unit=""))
    printed = [
        float(part) for part in text.replace("[", "").replace("]", "").split(", ")[0].split()
    ]
    printed.append(float(text.rstrip("]").split(", ")[1]))
    for shown, true in zip(printed, (value, *ends), strict=True):
        slack = max(0.26 * (ends[1] - ends[0]), 5.1e-3 * abs(true))
        assert abs(shown - true) <= slack
        assert math.copysign(1, shown) == math.copysign(1, true) or true == 0
        assert (shown == 0) == (true == 0)


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (None, "—"),
        (0.03271484375, "p = 0.033"),
        (2**-12, "p = 0.00024"),
        (2**-16, "p < 0.0001"),
        (0.0, "p < 0.0001"),
        (0.04996, "p = 0.04996"),  # not .05
        (0.05, "p = 0.05"),
        (0.05004, "p = 0.05"),
        (0.5, "p = 0.5"),
        (0.25, "p = 0.25"),
        (0.999, "p > 0.99"),
        (1.0, "p = 1"),
    ],
)
def test_p_values(p, text):
    assert format_p(p) == text


@given(st.floats(0, 1))
def test_a_printed_p_is_on_its_side_of_05(p):
    text = format_p(p)
    shown = 0.0 if "<" in text else 1.0 if ">" in text else float(text.split(" = ")[1])
    assert (shown < 0.05) == (p < 0.05)


def test_notes():
    assert format_note(decided(0.5, None)) == "smallest detectable effect 0.123 nats"
    assert format_note(decided(0.5, None, mde=None, no_mde="4 contexts")) == "4 contexts"
    assert format_note(decide(claim(), evidence())) == "—"


def test_rows():
    rows = verdict_rows(document())
    assert rows[0] == {
        "id": "demo.c1",
        "statement": "A is better than B.",
        "source": "stated",
        "kind": "comparative",
        "paper": "12/12",
        "ours": "-0.20 [-0.30, -0.10] nats",
        "p": "p = 0.03",
        "n": "34 contexts",
        "verdict": "supported",
        "note": "—",
    }
    assert [rows[1][key] for key in ("ours", "p", "n", "note")] == ["—", "—", "—", "needs GPUs"]
    assert (rows[2]["verdict"], rows[2]["note"]) == ("not run: no vLLM", "no vLLM")


def test_whole_numbers_and_truth_values():
    assert [format_number(x) for x in (0, 999_999, 1e6, -2.0, True)] == [
        "0",
        "999999",
        "1.00e+06",
        "-2",
        "yes",
    ]
