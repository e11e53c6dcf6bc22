"""A frozen study in a repository that lives on: declared changes, packed records, batches, jobs."""

import gzip
import json

import pytest
from toy_repository import commit, forget, to_stamped
from typer.testing import CliRunner

from replicata.errors import UsageError
from replicata.preregistration import cli
from replicata.preregistration.analysis import analyze
from replicata.preregistration.audit import audit
from replicata.preregistration.collect import collect, collect_in_parallel, next_batch
from replicata.preregistration.deviations import Deviation, deviate
from replicata.preregistration.records import pack
from replicata.preregistration.registration import load_registration
from replicata.preregistration.seal import seal
from replicata.preregistration.study import PlannedCell, load_study

SCORES = "code/toy_study/scores.py"


def edit(places, text="\n# A comment for a later study.\n"):
    path = places.root / SCORES
    path.write_text(path.read_text() + text)
    forget()


def declare(places, *files):
    return deviate(places, Deviation("comment added", "a later study", "after", True, (), files))


def failed(places):
    return [item.id for item in audit(places).items if item.status == "FAIL"]


def test_a_change_after_the_analysis_fails_until_it_is_declared(analysed):
    edit(analysed)
    assert failed(analysed) == ["A3", "A19"]
    declare(analysed, SCORES)
    items = {item.id: item for item in audit(analysed).items}
    assert items["A3"].status == items["A15"].status == items["A19"].status == "PASS"
    assert SCORES in items["A3"].detail
    edit(analysed, "\n# One more.\n")
    assert failed(analysed) == ["A3", "A19"]


def test_a_declared_change_of_the_numbers_still_fails(analysed):
    path = analysed.root / "code/toy_study/study.py"
    path.write_text(path.read_text().replace("2 * rate", "3 * rate"))
    forget()
    declare(analysed, "code/toy_study/study.py")
    assert failed(analysed) == ["A15"]


def test_a_change_declared_before_the_analysis_leaves_it_unconfirmatory(places):
    to_stamped(places)
    collect(places)
    seal(places)
    edit(places)
    declare(places, SCORES)
    results = analyze(places)
    assert results["label"] == f"NOT CONFIRMATORY: code differs from freeze: {SCORES}"
    results["label"] = "CONFIRMATORY"
    places.results_json.write_text(json.dumps(results))
    assert failed(places) == ["A19"]


def test_collecting_takes_no_declared_change(places):
    to_stamped(places)
    edit(places)
    declare(places, SCORES)
    with pytest.raises(Exception, match="other than in the frozen manifest"):
        collect(places)


def test_a_deviation_names_files_of_the_manifest_only(analysed):
    with pytest.raises(UsageError, match="not in the frozen manifest"):
        declare(analysed, "pyproject.toml")


def test_too_many_exclusions_are_no_confirmation(places, monkeypatch):
    to_stamped(places)
    monkeypatch.setenv("TOY_FAIL", "w1.choice")
    collect(places)
    seal(places)
    results = analyze(places)
    assert results["exclusions"] == {"w1": "the line is down"}
    assert results["label"] == "NOT CONFIRMATORY: 1 of 6 units excluded, more than 5%"
    assert failed(places) == []
    results["label"] = "CONFIRMATORY"
    places.results_json.write_text(json.dumps(results))
    assert failed(places) == ["A19"]


def test_packed_records_are_audited_as_they_are(analysed):
    for path in analysed.record_files():
        pack(path)
    assert all(path.suffix == ".gz" for path in analysed.record_files())
    assert failed(analysed) == []
    # Compression depends on the content alone: a second clone packs the same bytes.
    for path in analysed.record_files():
        data = path.read_bytes()
        assert gzip.compress(gzip.decompress(data), mtime=0) == data


def test_the_pack_command_waits_for_the_seal(places):
    to_stamped(places)
    collect(places)
    result = CliRunner().invoke(cli.app, ["pack", "toy"])
    assert isinstance(result.exception, UsageError)
    assert "pack refuses" in str(result.exception)
    seal(places)
    assert "packed 2 shards" in CliRunner().invoke(cli.app, ["pack", "toy"]).stdout


def test_shards_collected_in_parallel_are_those_of_one_process(places, monkeypatch):
    to_stamped(places)
    monkeypatch.setenv("PYTHONPATH", str(places.root / "code"), prepend=":")
    assert collect_in_parallel(places, 2) == 12
    seal(places)
    analyze(places)
    commit(places.root)
    assert failed(places) == []


class Known:
    """A shard with some answers."""

    def __init__(self, *done):
        self.responses = {key: {} for key in done}


def cell(name, *needs, endpoint="e"):
    return PlannedCell(name, "s", "u", endpoint, needs)


def test_a_batch_ends_where_its_own_answers_are_needed(places):
    study = load_study(load_registration_of(places).protocol.analysis.entry_point)
    batched = type(study)(**{**vars(study), "answer_batch": lambda *_: []})
    waiting = [cell("a"), cell("b"), cell("c", "a"), cell("d")]
    assert [c.id for c in next_batch(batched, Known(), waiting)] == ["a", "b"]
    assert [c.id for c in next_batch(batched, Known("a", "b"), waiting[2:])] == ["c", "d"]
    other = [cell("a"), cell("b", endpoint="f")]
    assert [c.id for c in next_batch(batched, Known(), other)] == ["a"]
    assert [c.id for c in next_batch(study, Known(), waiting)] == ["a"]


def load_registration_of(places):
    to_stamped(places)
    return load_registration(places)
