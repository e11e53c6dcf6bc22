"""Every command refuses where it must; a killed run resumes; changed code costs the label."""

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
import yaml
from forging import bodies, lines, read
from toy_repository import commit, forget, git, to_stamped

from replicata.errors import RunError, UsageError, VerificationError
from replicata.preregistration.amendments import amend
from replicata.preregistration.analysis import analyze
from replicata.preregistration.anchor import record_anchor
from replicata.preregistration.archive import archive_bytes, write_archive
from replicata.preregistration.audit import audit
from replicata.preregistration.collect import collect, planned_cells
from replicata.preregistration.deviations import Deviation, deviate
from replicata.preregistration.freeze import freeze
from replicata.preregistration.places import Places, State, state_of
from replicata.preregistration.records import Shard, pack
from replicata.preregistration.registration import load_registration
from replicata.preregistration.seal import seal
from replicata.preregistration.stamping import stamp_all


def edit_draft(places, edit, committed=True):
    values = yaml.safe_load(places.draft.read_text())
    edit(values)
    places.draft.write_text(yaml.safe_dump(values))
    if committed:
        commit(places.root)


def test_every_command_refuses_in_a_wrong_state(places):
    commands = {
        "archive": lambda: stamp_all(places),
        "run": lambda: collect(places),
        "seal": lambda: seal(places),
        "analyze": lambda: analyze(places),
        "deviate": lambda: deviate(places, Deviation("a", "b", "c", False, ())),
        "amend": lambda: amend(places, {}, "a", "b"),
    }
    assert state_of(places) is State.DRAFT
    for command in commands.values():
        with pytest.raises((UsageError, VerificationError)):
            command()
    freeze(places)
    assert state_of(places) is State.FROZEN
    with pytest.raises(UsageError, match="freeze refuses: study toy is FROZEN, expected DRAFT"):
        freeze(places)
    with pytest.raises(UsageError, match="run refuses: study toy is FROZEN"):
        collect(places)
    write_archive(load_registration(places))
    with pytest.raises(UsageError, match="run refuses: study toy is ARCHIVED, expected STAMPED"):
        collect(places)
    stamp_all(places)
    assert state_of(places) is State.STAMPED
    with pytest.raises(UsageError, match="seal refuses: study toy is STAMPED"):
        seal(places)
    collect(places, ["s0"])
    assert state_of(places) is State.COLLECTING
    with pytest.raises(UsageError, match="analyze refuses: study toy is COLLECTING"):
        analyze(places)
    with pytest.raises(UsageError, match="shard s1 has no records"):
        seal(places)
    collect(places)
    seal(places)
    with pytest.raises(UsageError, match="run refuses: study toy is SEALED"):
        collect(places)
    with pytest.raises(UsageError, match="amend refuses: study toy is SEALED"):
        amend(places, {}, "a", "b")
    analyze(places)
    assert state_of(places) is State.ANALYSED
    assert UsageError.exit_code == 2


def test_freeze_refuses_a_dirty_tree_and_records(places):
    (places.root / "new.txt").write_text("x")
    with pytest.raises(UsageError, match=r"freeze refuses: new\.txt is not committed"):
        freeze(places)
    (places.root / "new.txt").unlink()
    places.records_dir.mkdir(parents=True)
    (places.records_dir / "s0.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="freeze refuses"):
        freeze(places)


def test_freeze_refuses_files_that_a_checkout_would_convert(places):
    (places.root / ".gitattributes").write_text("*.txt text\n")
    commit(places.root)
    with pytest.raises(UsageError, match=r"\.gitattributes leaves .* to line-end conversion"):
        freeze(places)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda v: v.update(stoping="x"), r"unknown key stoping \(did you mean 'stopping'\?\)"),
        (lambda v: v.pop("stopping"), "key stopping is missing"),
        (lambda v: v["hypotheses"][0].pop("alpha"), "c1 needs an alpha and a rule"),
        (lambda v: v["hypotheses"][0].update(alpha="0.05"), 'key hypotheses.0.alpha is "0.05"'),
        (lambda v: v["hypotheses"][0]["rule"].update(supported="x.y > 1"), "a decision rule"),
        (lambda v: v["hypotheses"].append(v["hypotheses"][0]), "hypothesis c1 is there twice"),
        (
            lambda v: v["sample"].update(planned_cells=13),
            "is 13, but .* generates 12",
        ),
        (lambda v: v["sample"].update(units=5), "units is 5, but the study generates 6"),
        (lambda v: v["pilot"].update(units=["w1"]), "uses the pilot unit 'w1'"),
        (lambda v: v["analysis"].update(entry_point="toy_study.study:NONE"), "cannot be loaded"),
        (lambda v: v["analysis"].update(entry_point="toy_study.scores:mean"), "is no Study"),
        (lambda v: v["analysis"].update(files=["no.txt"]), "no.txt is named by the protocol but"),
        (lambda v: v["analysis"].update(modules=["no_module"]), "names 'no_module'"),
        (
            lambda v: v["endpoints"]["control"].update(decoding={"temperature": 0.7}),
            "temperature above 0 needs a seed",
        ),
        (lambda v: v["timestamp"].update(authority="https://x.example/"), "needs roots"),
        (lambda v: v.update(families=["other"]), r"families lists \['other'\]"),
        (lambda v: v.update(profile="cpu"), "draft.yaml is of study toy, profile cpu"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_in_one_sentence(places, edit, message):
    edit_draft(places, edit)
    with pytest.raises(UsageError, match=message):
        freeze(places)
    assert not places.frozen.exists()


def test_run_refuses_after_any_change(places):
    to_stamped(places)
    scores = places.root / "code" / "toy_study" / "scores.py"
    kept = scores.read_text()
    scores.write_text(kept + "\n")
    with pytest.raises(VerificationError, match=r"code/toy_study/scores\.py: other than in"):
        collect(places)
    scores.write_text(kept)
    data = places.frozen.read_bytes()
    places.frozen.write_bytes(data.replace(b"A toy", b"A Toy"))
    with pytest.raises(VerificationError, match=r"frozen\.json, line 1: its SHA-256 is"):
        collect(places)
    places.frozen.write_bytes(data)
    assert not places.record_files()
    assert collect(places) == 12


def test_run_refuses_a_token_of_another_protocol(places, finished):
    to_stamped(places)
    for suffix in (".tsr", ".tsq"):
        name = places.frozen.name + suffix
        shutil.copy(finished / "protocols" / "toy" / name, places.protocol_dir / name)
    with pytest.raises(VerificationError, match="does not verify"):
        collect(places)


def test_run_refuses_another_model_and_another_plan(places, monkeypatch):
    to_stamped(places)
    monkeypatch.setenv("TOY_MODEL", "synthetic:toy-2")
    with pytest.raises(VerificationError, match="endpoint control: model synthetic:toy-2 differs"):
        collect(places)
    with pytest.raises(UsageError, match="there is no shard 's7'"):
        collect(places, ["s7"])


def test_a_clock_before_the_stamp_is_refused(places):
    to_stamped(places)
    with pytest.raises(RunError, match="which is not after the protocol's stamp"):
        collect(places, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC))


def test_retries_are_recorded_and_then_the_cell_is_missing(places, monkeypatch):
    to_stamped(places)
    monkeypatch.setenv("TOY_FAIL", "w1.lesson")
    collect(places)
    kinds = [(r["kind"], r.get("cell")) for r in bodies(places.shard_path("s0"))]
    assert kinds.count(("attempt", "w1.lesson")) == 1
    assert ("missing", "w1.lesson") in kinds
    assert ("missing", "w1.choice") in kinds
    seal(places)
    results = analyze(places)
    assert results["missing"] == 2
    assert results["exclusions"] == {"w1": "needs w1.lesson, which is missing"}
    result = audit(places)
    assert not result.failed, result
    assert "2 declared missing" in next(i.detail for i in result.items if i.id == "A10")


def test_a_finished_cell_takes_no_second_answer(places):
    to_stamped(places)
    collect(places)
    registration = load_registration(places)
    cells = {cell.id: cell for cell in planned_cells(registration)}
    with Shard(registration, "s0") as shard:
        with pytest.raises(RunError, match="a second answer is refused"):
            shard.answer(cells["w0.lesson"], "q", {"text": "x"}, None)
        with pytest.raises(RunError, match="planned for shard 's1'"):
            shard.answer(cells["w5.lesson"], "q", {"text": "x"}, None)
        with pytest.raises(RunError, match="being written by another process"):
            Shard(registration, "s0").__enter__()
    assert collect(places) == 0


def in_subprocess(places, **environment):
    command = (
        "from pathlib import Path\n"
        "from replicata.preregistration.places import Places\n"
        "from replicata.preregistration.collect import collect\n"
        f"collect(Places(Path({str(places.root)!r}), 'toy', 'smoke'))"
    )
    path = os.pathsep.join([str(places.root / "code"), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONPATH": path, **environment},
        check=False,
    )


def without_time(path):
    dropped = ("t_utc", "prev", "i")
    return [
        {k: v for k, v in record.items() if k not in dropped}
        for record in bodies(path)
        if record["kind"] != "recovered"
    ]


def test_kill_9_in_the_middle_of_a_shard_and_resume(places):
    to_stamped(places)
    twin = places.root.parent / "twin"
    shutil.copytree(places.root, twin)
    path = places.shard_path("s0")

    killed = in_subprocess(places, TOY_KILL="w1.choice")
    assert killed.returncode == -signal.SIGKILL
    assert [r["cell"] for r in bodies(path)] == ["w0.lesson", "w0.choice", "w1.lesson"]
    torn = b'{"attempt":1,"cell":"w1.choice","engine":'
    with path.open("ab") as stream:
        stream.write(torn)

    assert in_subprocess(places).returncode == 0
    assert path.with_suffix(".torn").read_bytes() == torn + b"\n"
    records = bodies(path)
    recovered = [record for record in records if record["kind"] == "recovered"]
    assert len(recovered) == 1
    assert recovered[0]["bytes"] == len(torn)
    cells = [record["cell"] for record in records if record["kind"] == "answer"]
    assert len(cells) == len(set(cells)) == 6

    collect(Places(twin, "toy", "smoke"))
    for shard in ("s0", "s1"):
        twin_path = Places(twin, "toy", "smoke").shard_path(shard)
        assert without_time(places.shard_path(shard)) == without_time(twin_path)
    seal(places)
    analyze(places)
    assert not audit(places).failed


def test_shards_may_be_packed(analysed):
    for shard in ("s0", "s1"):
        pack(analysed.shard_path(shard))
    assert analysed.shard_path("s0").suffix == ".gz"
    result = audit(analysed)
    assert not result.failed, result


def test_edited_code_runs_but_is_not_confirmatory(places):
    to_stamped(places)
    collect(places)
    seal(places)
    study = places.root / "code" / "toy_study" / "study.py"
    study.write_text(study.read_text().replace("2 * rate", "3 * rate"))
    forget()
    results = analyze(places)
    assert results["label"] == (
        "NOT CONFIRMATORY: code differs from freeze: code/toy_study/study.py"
    )
    assert audit(places).status("A3") == "FAIL"


def test_unfrozen_code_is_noticed_too(places):
    to_stamped(places)
    collect(places)
    seal(places)
    code = places.root / "code" / "toy_study"
    (code / "late.py").write_text("")
    scores = code / "scores.py"
    text = scores.read_text()
    scores.write_text(text + "import toy_study.late\n")
    forget()
    label = analyze(places)["label"]
    assert "code/toy_study/late.py (not frozen)" in label
    assert "code/toy_study/scores.py" in label


def test_amendments_name_their_parent_and_what_existed(places):
    to_stamped(places)
    first = load_registration(places).head
    frozen = places.frozen.read_bytes()
    commit(places.root)
    with pytest.raises(UsageError, match="reason is empty"):
        amend(places, {}, " ", "x")
    with pytest.raises(UsageError, match="profile cannot change"):
        amend(places, {"profile": "cpu"}, "a", "b")
    with pytest.raises(UsageError, match=r"amendment_1\.json: key retries is -1"):
        amend(places, {"retries": -1}, "a", "b")
    amend(places, {"retries": 0}, "fewer retries", "nothing")
    amendment = read(places.amendment(1))
    assert amendment["parent"] == first
    assert amendment["records"] == 0
    assert places.frozen.read_bytes() == frozen
    with pytest.raises(UsageError, match=r"amendment_1\.json is not stamped"):
        collect(places)
    stamp_all(places)
    assert load_registration(places).protocol.retries == 0
    collect(places, ["s0"])
    assert {r["protocol"] for r in bodies(places.shard_path("s0"))} == {
        load_registration(places).head
    }
    commit(places.root)

    amend(places, {"access": "half"}, "seen", "one shard")
    stamp_all(places)
    assert read(places.amendment(2))["records"] == 6
    collect(places)
    seal(places)
    label = analyze(places)["label"]
    assert label == "NOT CONFIRMATORY: amended after data were recorded: amendment_2.json"
    assert not audit(places).failed


def test_an_unstamped_run_is_possible_where_the_protocol_says_so_and_labelled(places):
    edit_draft(
        places, lambda v: v.update(allow_unstamped=True, seeds={**v["seeds"], "rule": "fixed"})
    )
    freeze(places)
    write_archive(load_registration(places))
    collect(places)
    seal(places)
    assert analyze(places)["label"] == "NOT CONFIRMATORY: UNSTAMPED"
    result = audit(places)
    assert not result.failed, result
    assert result.status("A4") == "SKIP"


def test_late_bound_seeds_do_not_exist_before_the_stamp(places):
    freeze(places)
    with pytest.raises(VerificationError, match="no token yet"):
        load_registration(places).seed("w0")
    write_archive(load_registration(places))
    stamp_all(places)
    registration = load_registration(places)
    assert registration.seed("w0") == registration.seed("w0") != registration.seed("w1")


def test_deviations_are_listed_and_referenced(places):
    to_stamped(places)
    with pytest.raises(UsageError, match="affects 'c7'"):
        deviate(places, Deviation("a", "b", "c", True, ("c7",)))
    deviate(places, Deviation("other order", "mistake", "today", False, ("c1",)))
    collect(places)
    seal(places)
    assert analyze(places)["deviations"]["count"] == 1
    deviate(places, Deviation("noticed later", "x", "now", True, ()))
    result = audit(places)
    assert not result.failed, result
    assert "2 deviations" in next(item.detail for item in result.items if item.id == "A17")


def test_digests_survive_a_checkout_that_converts_line_ends(analysed, tmp_path, at):
    (analysed.root / ".gitignore").write_text("__pycache__/\n*.lock\n")
    commit(analysed.root)
    clone = tmp_path / "clone"
    git(tmp_path, "-c", "core.autocrlf=true", "clone", "-q", str(analysed.root), str(clone))
    (clone / "protocols/toy/.authority").mkdir(exist_ok=True)
    assert not audit(at(clone)).failed


def test_archives_are_the_same_bytes_every_time(analysed):
    before = analysed.archive.read_bytes()
    analysed.archive.unlink()
    write_archive(load_registration(analysed))
    assert analysed.archive.read_bytes() == before
    assert archive_bytes({"b": b"1", "a": b"2"}) == archive_bytes({"a": b"2", "b": b"1"})


def test_an_audit_in_the_middle_skips_and_does_not_fail(places):
    assert audit(places).status("A1") == "FAIL"  # not frozen is never a pass
    freeze(places)
    write_archive(load_registration(places))
    commit(places.root)
    assert record_anchor(places)
    assert audit(places).status("A4") == "FAIL"
    stamp_all(places)
    result = audit(places)
    assert not result.failed, result
    assert result.status("A8") == "SKIP"
    collect(places, ["s0"])
    assert [line for line in lines(places.shard_path("s0")) if json.loads(line)]
