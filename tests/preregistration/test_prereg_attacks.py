"""Attacks on a registered study by its owner, each of which once passed the audit or a command."""

import shutil
import zipfile

import pytest
import typer
from forging import edit_results, forge_records, read, write_with_digest
from toy_repository import commit, forget, git, to_stamped
from typer.testing import CliRunner

from replicata.errors import VerificationError
from replicata.preregistration import cli
from replicata.preregistration.analysis import analyze
from replicata.preregistration.archive import archive_bytes
from replicata.preregistration.audit import audit
from replicata.preregistration.canonical import canonical
from replicata.preregistration.collect import collect
from replicata.preregistration.deviations import Deviation, deviate
from replicata.preregistration.freeze import freeze
from replicata.preregistration.records import pack
from replicata.preregistration.registration import load_registration
from replicata.preregistration.seal import seal
from replicata.preregistration.timestamp import stamp_file

STUDY = "code/toy_study/study.py"


def failed(places):
    return [i.id for i in audit(places, replay_share=1.0).items if i.status == "FAIL"]


def declare(places, *files):
    deviate(places, Deviation("a comment", "later study", "after", True, (), files))


def amendment(places, **values):
    r = load_registration(places)
    f = read(places.frozen)
    base = {
        "changes": {},
        "commit": f["commit"],
        "manifest": f["manifest"],
        "number": 1,
        "parent": r.head,
        "planned": f["planned"],
        "reason": "r",
        "records": 0,
        "schema": 1,
        "seen": "s",
    }
    return canonical({**base, **values})


def collected(places):
    to_stamped(places)
    collect(places)
    seal(places)


def test_attack_code_changed_before_analysis_declared_after(places):
    collected(places)
    p = places.root / STUDY
    p.write_text(p.read_text().replace('"c1": {"rate": rate', '"c1": {"rate": rate / 9'))
    forget()
    analyze(places)
    edit_results(places, label="CONFIRMATORY")
    declare(places, STUDY)
    assert failed(places)


def test_attack_count_set_back(places):
    collected(places)
    p = places.root / STUDY
    p.write_text(p.read_text().replace('"c1": {"rate": rate', '"c1": {"rate": rate / 9'))
    forget()
    start = {"count": 0, "head": read(places.seal)["deviations"]["head"]}
    declare(places, STUDY)
    analyze(places)
    edit_results(places, label="CONFIRMATORY", deviations=start)
    assert failed(places)


def test_attack_archive_copies(analysed):
    with zipfile.ZipFile(analysed.archive) as z:
        files = {n: z.read(n) for n in z.namelist()}
    files[STUDY] = files[STUDY].replace(b"2 * rate", b"3 * rate")
    write_with_digest(analysed.archive, archive_bytes(files))
    assert "A3" in failed(analysed)


def test_attack_archive_lacks_code(analysed):
    with zipfile.ZipFile(analysed.archive) as z:
        files = {n: z.read(n) for n in z.namelist() if not n.endswith(".py")}
    write_with_digest(analysed.archive, archive_bytes(files))
    assert "A3" in failed(analysed)


def late_rule(places, **kw):
    hyp = read(places.frozen)["protocol"]["hypotheses"]
    hyp[0]["rule"] = {"supported": "rate <= 1", "contradicted": None}
    write_with_digest(places.amendment(1), amendment(places, changes={"hypotheses": hyp}, **kw))
    stamp_file(load_registration(places), places.amendment(1))


def test_attack_late_amendment_that_says_no_records(places):
    to_stamped(places)
    collect(places)
    late_rule(places, records=0)
    seal(places)
    analyze(places)
    assert failed(places) or "NOT" in read(places.results_json)["label"]


def test_attack_amendment_after_analysis(analysed):
    late_rule(analysed, records=0)
    analysed.results_json.unlink()
    with pytest.raises(VerificationError, match="amended after the seal"):
        analyze(analysed)
    assert failed(analysed)


def test_attack_amendment_changes_fixed_key(places):
    to_stamped(places)
    write_with_digest(places.amendment(1), amendment(places, changes={"profile": "cpu"}))
    stamp_file(load_registration(places), places.amendment(1))
    assert "A2" in failed(places)


def test_attack_damaged_gz_does_not_crash(analysed):
    for p in analysed.record_files():
        pack(p)
    p = analysed.record_files()[0]
    d = bytearray(p.read_bytes())
    d[len(d) // 2] ^= 0x55
    d[12] ^= 0xFF
    p.write_bytes(bytes(d))
    assert failed(analysed)


@pytest.mark.parametrize("text", ["def x(:\n", "raise RuntimeError('x')\n", "assert False\n"])
def test_attack_study_that_does_not_import(analysed, text):
    p = analysed.root / STUDY
    p.write_text(text + p.read_text())
    forget()
    assert "A3" in failed(analysed)


def test_attack_directory_for_a_file(analysed):
    analysed.frozen.unlink()
    analysed.frozen.mkdir()
    assert failed(analysed)


def test_attack_deep_zip(analysed):
    analysed.seal.unlink()
    analysed.seal.symlink_to("seal.json")
    assert failed(analysed)


def test_attack_frozen_removed_hides_from_all(analysed):
    commit(analysed.root)
    analysed.frozen.unlink()
    app = typer.Typer()
    app.command("audit")(cli.audit_command)
    app.command("x")(lambda: None)
    done = CliRunner().invoke(app, ["audit", "--all"])
    assert done.exit_code != 0 or done.exception, done.output


def test_attack_ignored_manifest_file(places):
    (places.root / ".gitignore").write_text("__pycache__/\nresults/\ndata.txt\n")
    git(places.root, "rm", "--cached", "-q", "data.txt")
    commit(places.root)
    with pytest.raises(Exception, match=r"data\.txt"):
        freeze(places)


def test_attack_assume_unchanged(places):
    git(places.root, "update-index", "--assume-unchanged", STUDY)
    p = places.root / STUDY
    p.write_text(p.read_text() + "\n# x\n")
    forget()
    with pytest.raises(Exception, match=r"study\.py"):
        freeze(places)


def test_attack_extra_key_in_results(analysed):
    edit_results(analysed, headline="A great effect, p < 0.001")
    assert failed(analysed)


def test_attack_study_name_in_results(analysed):
    edit_results(analysed, study="another")
    assert failed(analysed)


def test_attack_record_files_elsewhere(analysed):
    shutil.copy(analysed.shard_path("s0"), analysed.records_dir / "s0.jsonl.bak")
    assert failed(analysed)


def test_attack_record_dir(analysed):
    (analysed.records_dir / "old").mkdir()
    shutil.copy(analysed.shard_path("s0"), analysed.records_dir / "old/s0.jsonl")
    assert failed(analysed)


def test_attack_unknown_kind(analysed):
    forge_records(analysed, "s1", lambda rs: [*rs, {**rs[-1], "kind": "discarded"}])
    edit_results(analysed)
    assert failed(analysed)


def test_attack_private_host_is_not_independent(tmp_path):
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from replicata.preregistration import authority as au
    from replicata.preregistration.authority import is_independent

    k = ec.generate_private_key(ec.SECP256R1())
    n = au._name("Honest Root")
    pem = (
        au._builder(n, n, k.public_key())
        .sign(k, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    for h in [
        "0.0.0.0",
        "192.168.0.3",
        "localhost.",
        "[::ffff:127.0.0.1]",
        "LOCALHOST",
        "10.1.2.3",
        "127.1",
        "0x7f000001",
    ]:
        assert not is_independent(f"http://{h}/tsr", pem), h


def test_honest_honest(analysed):
    assert not failed(analysed)


def test_honest_h1_without_the_trick(places):
    collected(places)
    p = places.root / STUDY
    p.write_text(p.read_text().replace('"c1": {"rate": rate', '"c1": {"rate": rate / 9'))
    forget()
    analyze(places)
    assert failed(places)


def test_honest_h1_numbers_really_changed(places):
    collected(places)
    a = analyze(places)["results"]["c1"]["rate"]
    p = places.root / STUDY
    p.write_text(p.read_text().replace('"c1": {"rate": rate', '"c1": {"rate": rate / 9'))
    forget()
    b = analyze(places)["results"]["c1"]["rate"]
    assert a == 0 or a != b


def test_honest_late_amendment_declared(places):
    to_stamped(places)
    collect(places)
    late_rule(places, records=12)
    seal(places)
    r = analyze(places)
    assert "NOT" in r["label"]
    assert not failed(places)


def test_honest_data_txt_edit_fails(analysed):
    (analysed.root / "data.txt").write_text("x")
    assert "A3" in failed(analysed)
