"""The method on small cases, with a bag-of-words encoder that shares no code with MiniLM."""

import json
import re
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import binomtest

from replicata.papers.at_at import baselines
from replicata.papers.at_at.edits import Edit, Policy, apply_edit, incompatible, unified_diff
from replicata.papers.at_at.masking import mask_entities
from replicata.papers.at_at.method import atat, example_edits, misrouting
from replicata.papers.at_at.routing_study import best, routing_trace
from replicata.papers.at_at.tools import Tool, tools_sha256
from replicata.statistics.exact import sign_flip_exact


class Words:
    """Unit vectors of word counts, hashed."""

    def encode(self, texts):
        rows = []
        for text in texts:
            vector = np.full(512, 1e-6)
            for word in re.findall(r"\w+", text.lower()):
                vector[zlib.crc32(word.encode()) % 512] += 1
            rows.append(vector / np.linalg.norm(vector))
        return np.array(rows)


TOOLS = (Tool("alpha", "Handles the request."), Tool("beta", "weather in a city today"))


def trace(key, request, gold, called):
    return routing_trace(key, request, gold, [(called, 0.5), (gold, 0.4)], tools_sha256(TOOLS))


MISSED = [trace(k, f"parcel of order {n}", "alpha", "beta") for k, n in (("a", 1), ("b", 2))]


def routed(tools, request):
    vectors = Words().encode([tool.routing_text for tool in tools])
    return tools[best(vectors @ Words().encode([request])[0], 1)[0]].name


def test_two_misses_give_an_edit_with_its_evidence_and_one_gives_none():
    (edit,) = example_edits(MISSED, TOOLS, Words())
    assert (edit.kind, edit.tool, set(edit.evidence)) == ("examples", "alpha", {"a", "b"})
    assert example_edits(MISSED[:1], TOOLS, Words()) == []
    right = [trace(t.trace_id, t.request, "alpha", "alpha") for t in MISSED]
    assert example_edits(right, TOOLS, Words()) == []


def test_the_edit_changes_the_route_of_a_new_request():
    result = atat(TOOLS, example_edits(MISSED, TOOLS, Words()), Policy())
    request = "order number of parcel city"
    assert routed(TOOLS, request) == "beta"
    assert routed(result.tools, request) == "alpha"


def test_swapped_descriptions_swap_the_choice():
    a, b = Tool("x", "red apples"), Tool("x2", "blue boats")
    assert routed((a, b), "blue boats please") == "x2"
    assert routed((Tool("x", "blue boats"), Tool("x2", "red apples")), "blue boats please") == "x"


@given(st.permutations(range(4)))
def test_order_of_tools_does_not_matter_without_ties(order):
    tools = [Tool(f"t{i}", text) for i, text in enumerate(["cat dog", "sun", "red ink", "sea"])]
    assert routed(tuple(tools[i] for i in order), "red ink and paper") == "t2"


def test_passfail_uses_own_successes_only():
    passed = [trace(f"p{i}", f"parcel {i}", "alpha", "alpha").at_level("passfail") for i in (1, 2)]
    failed = [t.at_level("passfail") for t in MISSED]
    assert all(t.expected_call is None for t in failed)
    found = misrouting([*passed, *failed])["alpha"]
    assert {t.trace_id for t in found.positives} == {"p1", "p2"}
    assert {t.trace_id for t in found.misses} == {"a", "b"}


def test_an_edit_without_evidence_cannot_exist():
    with pytest.raises(ValidationError):
        Edit(kind="note", tool="alpha", text="x", evidence=())


SCHEMA = {
    "properties": {"a": {"type": "string", "enum": ["x", "y"]}, "b": {"type": "string"}},
    "required": ["a"],
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: Tool("other", t.description, t.schema), "gone or renamed"),
        (lambda t: Tool(t.name, "", {**SCHEMA, "required": ["a", "b"]}), "b became required"),
        (lambda t: Tool(t.name, "", {"properties": {}, "required": []}), "parameter a is gone"),
        (
            lambda t: Tool(
                t.name,
                "",
                {
                    **SCHEMA,
                    "properties": {**SCHEMA["properties"], "a": {"type": "string", "enum": ["x"]}},
                },
            ),
            "enum is narrower",
        ),
    ],
)
def test_narrowing_is_refused_with_the_reason(change, reason):
    tool = Tool("t", "d", SCHEMA)
    assert reason in incompatible([tool], [change(tool)])


def test_widening_is_allowed():
    wide = {"properties": {**SCHEMA["properties"], "c": {"type": "string"}}, "required": []}
    assert incompatible([Tool("t", "d", SCHEMA)], [Tool("t", "d", wide)]) is None


@pytest.mark.parametrize(
    ("edit", "policy", "reason"),
    [
        ({"kind": "note", "text": "x" * 2000}, Policy(), "expected at most 1200"),
        ({"kind": "note", "text": "x"}, Policy(protected=("alpha",)), "protected"),
        ({"kind": "mark_error", "text": "x"}, Policy(), "descriptions only"),
        ({"kind": "shape", "text": "x", "param": "nope"}, Policy(), "no parameter 'nope'"),
        ({"kind": "note", "text": "x"}, Policy(max_edits=0), "budget"),
    ],
)
def test_gates_refuse_with_the_reason(edit, policy, reason):
    proposed = Edit(tool="alpha", evidence=("a",), **edit)
    result = atat(TOOLS, [proposed], policy)
    assert result.tools == TOOLS
    assert reason in result.log[0].reason


def test_the_same_traces_give_the_same_log():
    logs = [
        [
            e.edit.model_dump_json()
            for e in atat(TOOLS, example_edits(t, TOOLS, Words()), Policy()).log
        ]
        for t in (MISSED, MISSED, MISSED[::-1])
    ]
    assert logs[0] == logs[1]
    assert json.loads(logs[0][0])["text"]


def test_the_diff_names_what_changed():
    edit = Edit(kind="note", tool="alpha", text="Once is enough.", evidence=("a",))
    diff = unified_diff(TOOLS, apply_edit(edit, TOOLS))
    assert '+    "description": "Handles the request. Once is enough.",' in diff
    assert unified_diff(TOOLS, TOOLS) == ""


def test_sign_flips_equal_the_exact_mcnemar_test():
    flips = sign_flip_exact([1] * 33 + [-1] * 16 + [0] * 100, "greater")
    assert flips.p_value == pytest.approx(binomtest(33, 49, 0.5, alternative="greater").pvalue)
    assert flips.p_value == pytest.approx(0.0106, abs=5e-5)


def test_masking_leaves_no_entity():
    masked = mask_entities("Please book 'Blue Van' for Mara Voss on March 3rd, ref AB-1042.")
    assert not re.search(r"\d|Mara|Voss|Blue|March", masked)
    assert masked.startswith("Please book")


@given(st.text(max_size=200))
def test_masking_takes_any_text_and_leaves_no_digit(text):
    ascii_text = text.encode("ascii", "ignore").decode()
    assert not re.search(r"(?<!\w)\d+(?!\w)", mask_entities(ascii_text))


def test_controls_keep_their_numbers():
    labels = baselines.shuffled([*MISSED, trace("c", "sun", "beta", "beta")], 3)
    assert sorted(t.expected_call["tool"] for t in labels) == ["alpha", "alpha", "beta"]
    (edit,) = example_edits(MISSED, TOOLS, Words())
    (moved,) = baselines.placebo([edit], TOOLS, 1)
    assert (moved.tool, moved.text) == ("beta", edit.text)
    (words,) = baselines.keyword_edits(MISSED, TOOLS)
    assert "parcel" in words.text
