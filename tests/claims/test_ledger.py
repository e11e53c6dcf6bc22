"""Bad ledgers end in one sentence each, which names the file, the claim and the key."""

import copy

import pytest
import yaml

from replicata.claims.ledger import load_ledger
from replicata.errors import UsageError

GOOD = {
    "schema": 1,
    "paper": {
        "slug": "demo",
        "title": "T",
        "authors": "A. Author",
        "reference": "R",
        "summary": "S",
    },
    "claims": [
        {
            "id": "demo.c1",
            "statement": "B is below one.",
            "source": "stated",
            "paper_value": "bound",
            "kind": "theorem",
            "groups": ["bound"],
            "test": "We look.",
            "shows": "That it holds here.",
            "rule": {"supported": "ratio <= 1", "contradicted": "ratio > 1"},
            "headline": "ratio",
        },
        {
            "id": "demo.c2a",
            "statement": "It scales to 70B.",
            "source": "reconstructed",
            "paper_value": "yes",
            "kind": "numeric",
            "not_testable": "needs eight GPUs",
        },
    ],
}

CLAIM = ("claims", 0)
REMOVED = object()


def changed(path, value):
    ledger = copy.deepcopy(GOOD)
    place = ledger
    for part in path[:-1]:
        place = place[part]
    if value is REMOVED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return ledger


@pytest.fixture
def load(tmp_path):
    def write_and_load(ledger):
        path = tmp_path / "claims.yaml"
        text = ledger if isinstance(ledger, str) else yaml.safe_dump(ledger, sort_keys=False)
        path.write_text(text, encoding="utf-8")
        return load_ledger(path)

    return write_and_load


def test_a_good_ledger(load):
    ledger = load(GOOD)
    assert ledger.schema_version == 1
    first, second = ledger.claims
    assert (first.suffix, second.suffix) == ("c1", "c2a")
    assert first.rule.names == {"ratio"}
    assert first.rule.otherwise == "inconclusive"
    assert (second.rule, second.groups, second.not_testable) == (None, [], "needs eight GPUs")


def test_a_rule_may_have_no_contradiction_and_be_folded(load):
    rule = {"supported": "ratio <= 1\nand wins == 3"}
    claim = load(changed((*CLAIM, "rule"), rule)).claims[0]
    assert claim.rule.contradicted is None
    assert claim.rule.names == {"ratio", "wins"}


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("schema",), 2, "claims.yaml: schema is 2, expected 1"),
        (("schema",), REMOVED, "claims.yaml: key schema is missing"),
        (("shema",), 1, "claims.yaml: unknown key shema (did you mean 'schema'?)"),
        (("clams",), [], "claims.yaml: unknown key clams (did you mean 'claims'?)"),
        (("claims",), [], "claims.yaml: claims is [], expected at least one claim"),
        (("claims",), {"a": 1}, 'claims.yaml: claims is {"a": 1}, expected a list'),
        (("claims", 0), "x", 'claims.yaml: claim number 1: the claim is "x", expected a mapping'),
        (("paper",), "demo", 'claims.yaml: paper is "demo", expected a mapping'),
        (
            ("paper", "autors"),
            "x",
            "claims.yaml: unknown key paper.autors (did you mean 'authors'?)",
        ),
        (("paper", "title"), 3, "claims.yaml: paper.title is 3, expected text"),
        (
            ("paper", "title"),
            "  ",
            'claims.yaml: paper.title is "  ", expected text that is not empty',
        ),
        (
            (*CLAIM, "grops"),
            ["x"],
            "claims.yaml: claim demo.c1: unknown key grops (did you mean 'groups'?)",
        ),
        ((*CLAIM, "kind"), REMOVED, "claims.yaml: claim demo.c1: key kind is missing"),
        (
            (*CLAIM, "kind"),
            "theory",
            "claims.yaml: claim demo.c1: kind is \"theory\", expected 'theorem', 'numeric', "
            "'comparative', 'descriptive' or 'procedural'",
        ),
        (
            (*CLAIM, "paper_value"),
            0.5,
            "claims.yaml: claim demo.c1: paper_value is 0.5, expected text",
        ),
        ((*CLAIM, "id"), REMOVED, "claims.yaml: claim number 1: key id is missing"),
        (
            (*CLAIM, "id"),
            "demo.c2a",
            "claims.yaml: id demo.c2a is there twice, expected it once",
        ),
        (
            (*CLAIM, "id"),
            "other.c1",
            "claims.yaml: id other.c1 does not begin with the paper's slug, expected demo.c1",
        ),
        (
            (*CLAIM, "groups"),
            [],
            "claims.yaml: claim demo.c1: groups is missing, "
            "expected it in a claim without not_testable",
        ),
        (
            (*CLAIM, "rule"),
            REMOVED,
            "claims.yaml: claim demo.c1: rule is missing, "
            "expected it in a claim without not_testable",
        ),
        (
            (*CLAIM, "headline"),
            None,
            "claims.yaml: claim demo.c1: headline is missing, "
            "expected it in a claim without not_testable",
        ),
        (
            (*CLAIM, "groups"),
            ["a", "a"],
            "claims.yaml: claim demo.c1: groups ['a', 'a'] names a group twice",
        ),
        (
            (*CLAIM, "rule", "suported"),
            "ratio < 2",
            "claims.yaml: claim demo.c1: unknown key rule.suported (did you mean 'supported'?)",
        ),
        (
            (*CLAIM, "rule", "supported"),
            REMOVED,
            "claims.yaml: claim demo.c1: key rule.supported is missing",
        ),
        (
            (*CLAIM, "rule", "otherwise"),
            "supported",
            "claims.yaml: claim demo.c1: rule.otherwise is \"supported\", expected 'inconclusive'",
        ),
        (
            (*CLAIM, "rule", "supported"),
            True,
            "claims.yaml: claim demo.c1: rule.supported is true, expected text",
        ),
        (
            (*CLAIM, "rule", "supported"),
            "1 < 2",
            "claims.yaml: claim demo.c1: rule.supported uses no quantity, "
            "so no evidence can change it (the rule: '1 < 2')",
        ),
        (
            (*CLAIM, "rule", "contradicted"),
            "ratio >",
            "claims.yaml: claim demo.c1: rule.contradicted is not a condition: invalid syntax "
            "(the rule: 'ratio >')",
        ),
        (
            ("claims", 1, "groups"),
            ["bound"],
            "claims.yaml: claim demo.c2a: groups is given, "
            "but not_testable says that nothing is run",
        ),
        (
            ("claims", 1, "rule"),
            {"supported": "ratio < 1"},
            "claims.yaml: claim demo.c2a: rule is given, but not_testable says that nothing is run",
        ),
        (
            ("claims", 1, "not_testable"),
            "",
            'claims.yaml: claim demo.c2a: not_testable is "", expected text that is not empty',
        ),
    ],
)
def test_a_bad_ledger_ends_in_a_sentence(load, path, value, sentence):
    with pytest.raises(UsageError) as caught:
        load(changed(path, value))
    assert str(caught.value) == sentence


def test_a_misspelt_key_is_named_before_the_key_it_leaves_missing(load):
    ledger = changed((*CLAIM, "statement"), REMOVED)
    ledger["claims"][0]["statment"] = "x"
    with pytest.raises(UsageError, match=r"unknown key statment \(did you mean 'statement'\?\)"):
        load(ledger)


def test_duplicate_keys_are_fatal(load):
    text = yaml.safe_dump(GOOD, sort_keys=False).replace(
        "supported: ratio <= 1\n", "supported: ratio <= 1\n    supported: ratio <= 2\n"
    )
    with pytest.raises(UsageError, match=r"claims.yaml, line \d+: key .*supported.* once"):
        load(text)


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n", "a: !!python/object:os.x {}\n"])
def test_what_is_no_ledger_at_all(load, text):
    with pytest.raises(UsageError, match=r"^claims.yaml"):
        load(text)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match=r"claims\.yaml is missing"):
        load_ledger(tmp_path / "claims.yaml")
