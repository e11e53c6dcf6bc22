"""The README's table: counts that add up, links that lead somewhere, and only the table changes."""

import json
import re
from pathlib import Path

import pytest

from replicata.claims.ledger import load_ledger
from replicata.errors import UsageError
from replicata.workflow.readme import BEGIN, END, update_readme, verdict_table
from tests.conftest import REPOSITORY
from tests.workflow import report_data as data

README = f"# replicata\n\nBefore.\n{BEGIN}\nold\n{END}\nAfter, with CRLF\r\n"


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Three made-up papers, two of them with results."""
    import replicata.papers

    for name in ("pyproject.toml", "Snakefile"):
        (tmp_path / name).touch()
    monkeypatch.setenv("REPLICATA_ROOT", str(tmp_path))
    monkeypatch.setattr(replicata.papers, "__path__", [str(tmp_path / "rooms")])
    folding = data.write_room(tmp_path / "rooms", data.FOLDING)
    data.write_results(tmp_path / "results", "cpu", folding, data.EVIDENCE, {"c4": "no vLLM"})
    again = data.write_room(tmp_path / "rooms", data.other("again", "A | pipe [and] *stars*"))
    data.write_results(tmp_path / "results", "cpu", again, {"c1": data.EVIDENCE["c1"]})
    data.write_room(tmp_path / "rooms", data.other("later", "Not run yet"))
    return tmp_path


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_the_table_counts_each_claim_under_its_verdict(house):
    head, rule, again, folding = map(cells, verdict_table(Path("results"), "cpu").splitlines())
    assert head == [
        "paper",
        "supported",
        "contradicted",
        "inconclusive",
        "not testable at this scale",
        "not run",
        "read",
    ]
    assert set(rule) == {"---"}
    assert again[0] == r"A \| pipe \[and\] \*stars\* (`again`)"
    assert again[1:6] == ["1 (c1)", "0", "0", "1 (c2)", "0"]
    assert folding[1:6] == ["2 (c1, c2)", "1 (c5)", "1 (c3)", "1 (c6)", "1 (c4)"]


def test_its_links_lead_to_the_results(house):
    table = verdict_table(house / "results", "cpu")
    links = re.findall(r"\]\(([^)]*)\)", table)
    assert len(links) == 4
    assert all((house / link).is_file() for link in links), links


def test_without_results_it_is_a_sentence(house):
    assert verdict_table(Path("results"), "smoke") == (
        "No paper has results at profile smoke yet.\n"
    )
    with pytest.raises(UsageError, match="no profile is called 'gpu'"):
        verdict_table(Path("results"), "gpu")


def test_only_what_is_between_the_markers_changes(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_bytes(README.encode())
    assert update_readme(readme, "| new |\n")
    assert readme.read_bytes().decode() == README.replace("old", "| new |")
    before = readme.stat().st_mtime_ns
    assert not update_readme(readme, "| new |\n")
    assert readme.stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", f"README.md has {BEGIN} 0 times, expected it once"),
        (BEGIN, f"README.md has {END} 0 times"),
        (f"{BEGIN}{BEGIN}{END}", f"README.md has {BEGIN} 2 times"),
        (f"{END}{BEGIN}", f"README.md has {END} before {BEGIN}"),
    ],
)
def test_a_readme_without_its_markers_is_refused_and_kept(tmp_path, text, sentence):
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(UsageError, match=re.escape(sentence)):
        update_readme(readme, "table")
    assert readme.read_text() == text


def test_a_missing_readme_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"README.md is missing"):
        update_readme(tmp_path / "README.md", "table")


def test_the_repositorys_readme_says_what_its_results_say():
    """Count in claims.json, without the table's code: what a reader of both would compare."""
    readme, results = REPOSITORY / "README.md", REPOSITORY / "results/cpu"
    if not (
        readme.is_file() and BEGIN in readme.read_text() and any(results.glob("*/claims.json"))
    ):
        pytest.skip("README.md or results/cpu is not there yet")
    table = readme.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [cells(line) for line in table.strip().splitlines()[2:]]
    found = {}
    for row in rows:
        found[re.search(r"\(`(\w+)`\)$", row[0])[1]] = [int(cell.split()[0]) for cell in row[1:6]]
    expected = {}
    for path in results.glob("*/claims.json"):
        verdicts = [
            claim["verdict"].split(":")[0] for claim in json.loads(path.read_text())["claims"]
        ]
        expected[path.parent.name] = [
            verdicts.count(word)
            for word in (
                "supported",
                "contradicted",
                "inconclusive",
                "not testable at this scale",
                "not run",
            )
        ]
        ledger = load_ledger(REPOSITORY / f"lib/replicata/papers/{path.parent.name}/claims.yaml")
        assert len(ledger.claims) == len(verdicts)
    assert found == expected
    assert table.strip() == verdict_table(results.parent, "cpu").strip()
