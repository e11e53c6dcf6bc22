"""Verdicts: every way a rule can end, every evidence that must not become a verdict."""

import hashlib
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from replicata.claims.evidence import Evidence
from replicata.claims.ledger import Claim, Ledger, Paper, Rule
from replicata.claims.verdicts import Decision, decide, ledger_document, load_claims
from replicata.errors import RunError, VerificationError


def claim(**changes) -> Claim:
    fields = {
        "id": "demo.c1",
        "statement": "A is better than B.",
        "source": "stated",
        "paper_value": "12/12",
        "kind": "comparative",
        "groups": ["main"],
        "test": "We compare.",
        "shows": "Which is better.",
        "rule": Rule(supported="high < 0", contradicted="low > 0"),
        "headline": "difference",
    }
    return Claim(**{**fields, **changes})


def evidence(low=-0.3, high=-0.1, **changes) -> Evidence:
    fields = {
        "quantities": {"difference": (low + high) / 2, "low": low, "high": high},
        "estimate_unit": "nats",
        "interval": (low, high),
        "interval_kind": "95 % cluster bootstrap over 34 contexts",
        "p_value": 0.03,
        "smallest_p": 2.0**-12,
        "test": "exact sign-flip test, less",
        "n": 34,
        "n_unit": "contexts",
        "notes": ["A note."],
    }
    return Evidence(**{**fields, **changes})


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.3, -0.1, "supported"),
        (0.1, 0.3, "contradicted"),
        (-0.1, 0.3, "inconclusive"),
        (-0.1, 0.0, "inconclusive"),  # the ends of the rules are strict
    ],
)
def test_the_rule_decides(low, high, verdict):
    decision = decide(claim(), evidence(low, high, mde=0.2))
    assert decision.verdict == verdict
    assert decision.estimate == (low + high) / 2
    assert (decision.n, decision.n_unit, decision.notes) == (34, "contexts", ["A note."])
    assert (decision.how_tested, decision.test) == ("We compare.", "exact sign-flip test, less")
    assert decision.reason is None


def test_without_a_contradiction_there_is_none():
    rule = Rule(supported="high < 0")
    assert decide(claim(rule=rule), evidence(0.1, 0.3, mde=0.2)).verdict == "inconclusive"


def test_supported_and_contradicted_at_once():
    rule = Rule(supported="low < 0", contradicted="high < 0")
    with pytest.raises(RunError, match=r"demo\.c1 is supported and contradicted at once"):
        decide(claim(rule=rule), evidence())


@pytest.mark.parametrize("kind", ["numeric", "comparative"])
def test_inconclusive_without_a_detectable_effect(kind):
    with pytest.raises(RunError, match=r"demo\.c1 .* minimal detectable effect is missing"):
        decide(claim(kind=kind), evidence(-0.1, 0.3))
    with_reason = decide(claim(kind=kind), evidence(-0.1, 0.3, no_mde="4 contexts"))
    assert (with_reason.verdict, with_reason.no_mde) == ("inconclusive", "4 contexts")


@pytest.mark.parametrize("kind", ["theorem", "descriptive", "procedural"])
def test_other_kinds_may_be_inconclusive_without_one(kind):
    assert decide(claim(kind=kind), evidence(-0.1, 0.3)).verdict == "inconclusive"


def test_not_testable_comes_first():
    untested = claim(not_testable="needs GPUs", groups=[], rule=None, headline=None)
    decision = decide(untested, None, not_run="no vLLM")
    assert (decision.verdict, decision.reason) == ("not testable at this scale", "needs GPUs")
    assert (decision.rule_sha256, decision.estimate, decision.n) == (None, None, None)


def test_not_run_names_its_reason_on_one_line():
    decision = decide(claim(), None, not_run="no vLLM:\n  it is not\tinstalled ")
    assert decision.verdict == "not run: no vLLM: it is not installed"
    assert decision.reason == "no vLLM: it is not installed"
    assert decision.quantities == {}


@pytest.mark.parametrize(
    ("found", "reason"), [(None, None), (None, ""), (None, " \n"), (evidence(), "no vLLM")]
)
def test_neither_evidence_nor_reason_or_both(found, reason):
    with pytest.raises(RunError, match=r"demo\.c1"):
        decide(claim(), found, not_run=reason)


def quantities(**changes):
    return {"quantities": {"difference": -0.2, "low": -0.3, "high": -0.1, **changes}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantities": {"difference": 0.1, "low": 0.0, "hihg": 1.0}}, "high is missing.*'hihg'"),
        ({"quantities": {"low": -0.3, "high": -0.1}}, "difference is missing"),
        (quantities(low=math.nan), "low is nan"),
        (quantities(unused=math.inf), "unused is inf"),
        (quantities(unused=10**400), "unused is 1000.*expected a finite"),
        (quantities(high=True), "rule.supported takes high as a number"),
        ({"estimate": 0.7}, "estimate is 0.7, but its headline difference is -0.2"),
        ({"estimate": math.nan}, "estimate is nan"),
        ({"p_value": math.nan}, "p_value is nan"),
        ({"p_value": 1.01}, "p_value is 1.01"),
        ({"smallest_p": -0.1}, "smallest_p is -0.1"),
        ({"test": None}, "expected test"),
        ({"interval": (0.3, 0.1)}, r"interval is \[0.3, 0.1\]"),
        ({"interval": (0.3, math.inf)}, "interval"),
        ({"interval_kind": ""}, "interval_kind"),
        ({"mde": -0.1}, "mde must be"),
        ({"mde": 0.1, "no_mde": "none"}, "mde must"),
        ({"mde": math.nan}, "mde is nan"),
        ({"n": 0}, "n is 0"),
        ({"n_unit": ""}, "of something"),
    ],
)
def test_evidence_that_must_not_become_a_verdict(changes, words):
    with pytest.raises(RunError, match=rf"claim demo\.c1.*{words}"):
        decide(claim(), evidence(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"quantities": {"low": "0.1"}},
        {"p_value": "0.03"},
        {"p_value": True},
        {"n": 3.0},
        {"interval": (0.1,)},
        {"intervall": (0.1, 0.2)},
        {"notes": "one"},
    ],
)
def test_evidence_of_another_type(changes):
    with pytest.raises(ValidationError):
        evidence(**changes)


def test_numpy_scalars_become_pythons():
    found = evidence(
        quantities={
            "difference": np.float64(-0.2),
            "low": np.float32(-0.5),
            "high": np.int64(-1),
            "flag": np.bool_(True),
        },
        interval=(np.float64(-0.5), np.float64(0.25)),
        n=np.int64(34),
    )
    kinds = {name: type(value) for name, value in found.quantities.items()}
    assert kinds == {"difference": float, "low": float, "high": int, "flag": bool}
    assert (type(found.n), type(found.interval[0])) == (int, float)


def test_a_headline_that_is_true_or_false():
    rule = Rule(supported="same", contradicted="not same")
    flagged = claim(rule=rule, headline="same", kind="descriptive")
    found = Evidence(quantities={"same": True}, n=3, n_unit="runs")
    decision = decide(flagged, found)
    assert (decision.verdict, decision.estimate) == ("supported", None)
    assert decision.quantities["same"] is True


def test_the_rule_digest_is_that_of_its_canonical_json():
    text = '{"contradicted":"low > 0","otherwise":"inconclusive","supported":"high < 0"}'
    assert decide(claim(), evidence()).rule_sha256 == hashlib.sha256(text.encode()).hexdigest()


finite = st.floats(-1e300, 1e300)


@given(
    values=st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.one_of(finite, st.booleans(), st.integers(-(2**70), 2**70)),
    ),
    low=st.floats(-10, -0.1),
)
def test_a_decision_survives_json(values, low):
    found = evidence(low, 0.25, mde=0.2)
    found = found.model_copy(update={"quantities": {**values, **found.quantities}})
    decision = decide(claim(), found)
    read = Decision.model_validate_json(decision.model_dump_json())
    assert read == decision
    for name, value in decision.quantities.items():
        assert type(read.quantities[name]) is type(value)


LEDGER = Ledger(
    schema=1,
    paper=Paper(slug="demo", title="T", authors="A", reference="R", summary="S"),
    claims=[
        claim(),
        claim(id="demo.c2", not_testable="needs GPUs", groups=[], rule=None, headline=None),
        claim(id="demo.c3"),
    ],
)


def document(**changes):
    first, second, third = LEDGER.claims
    decisions = [decide(first, evidence()), decide(second, None), decide(third, None, "no vLLM")]
    return ledger_document(
        LEDGER,
        "cpu",
        changes.get("decisions", decisions),
        ledger_sha256="a" * 64,
        params_sha256="b" * 64,
    )


def test_the_document_is_the_same_every_time_and_can_be_read_back(tmp_path):
    assert json.dumps(document(), allow_nan=False) == json.dumps(document(), allow_nan=False)
    assert (document()["paper"], document()["profile"]) == ("demo", "cpu")
    path = tmp_path / "claims.json"
    path.write_text(json.dumps(document(), indent=2))
    read = load_claims(path)
    assert read.model_dump(mode="json") == document()
    assert [decision.verdict for decision in read.claims] == [
        "supported",
        "not testable at this scale",
        "not run: no vLLM",
    ]


def test_the_document_has_one_decision_per_claim():
    with pytest.raises(RunError, match=r"decisions are for demo\.c1, expected demo\.c1, demo\.c2"):
        document(decisions=[decide(claim(), evidence())])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"supported": "high < 0"', '"supported": "high < 9"', "rule_sha256 of demo.c1"),
        ('"verdict": "supported"', '"verdict": "proven"', "verdict"),
        ('"verdict": "supported"', '"verdict": "inconclusive"', "recorded with it gives 'supp"),
        ('"verdict": "supported"', '"verdict": "not run: x"', "recorded with it gives 'supported'"),
        ('"verdict": "not run: no vLLM"', '"verdict": "supported"', "gives 'not run: no vLLM'"),
        ('"high": -0.1', '"high": 0.1', "demo.c1 is 'supported', but .* gives 'inconclusive'"),
        ('"high": -0.1', '"hihg": -0.1', "uses high"),
        ('"p_value": 0.03', '"p_value": NaN', "NaN is no JSON number"),
        ('"p_value": 0.03', '"p_valeu": 0.03', "p_valeu"),
        ('"p_value": 0.03', '"p_value": "0.03"', "p_value"),
        ('"paper": "demo"', '"paper": "demo"]', "no JSON"),
        ("a" * 64, "a" * 63, "ledger_sha256"),
    ],
)
def test_an_edited_document_is_refused(tmp_path, old, new, words):
    text = json.dumps(document())
    assert old in text
    path = tmp_path / "claims.json"
    path.write_text(text.replace(old, new))
    with pytest.raises(VerificationError, match=rf"^claims\.json.*{words}"):
        load_claims(path)


def test_a_missing_document(tmp_path):
    with pytest.raises(VerificationError, match=r"claims\.json is missing"):
        load_claims(tmp_path / "claims.json")
