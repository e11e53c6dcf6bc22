"""Honest runs raise no alarm; the command line says what the audit says."""

import json
import shutil

import typer
import yaml
from opentimestamps.core.notary import BitcoinBlockHeaderAttestation, PendingAttestation
from opentimestamps.core.op import OpSHA256
from opentimestamps.core.serialize import BytesSerializationContext
from opentimestamps.core.timestamp import DetachedTimestampFile
from toy_repository import commit, whole_life
from typer.testing import CliRunner

from replicata.preregistration import cli
from replicata.preregistration.audit import audit
from replicata.preregistration.places import Places
from replicata.preregistration.protocol import load_draft

EXPECTED = {f"A{n}": "PASS" for n in range(1, 21)} | {"A4": "NOT INDEPENDENT", "A6": "SKIP"}


def statuses(result):
    return {item.id: item.status for item in result.items}


def test_an_honest_run_passes(analysed):
    assert statuses(audit(analysed)) == EXPECTED


def test_a_hundred_honest_runs_raise_no_alarm(blank, tmp_path, at):
    """Other luck, other sizes, the same repository: each study lives through everything."""
    root = tmp_path / "repo"
    shutil.copytree(blank, root)
    at(root)
    draft = yaml.safe_load((root / "protocols" / "toy" / "draft.yaml").read_text())
    names = [f"toy{number}" for number in range(100)]
    for number, name in enumerate(names):
        worlds = 2 + number % 3
        draft.update(study=name, settings={"worlds": worlds, "luck": number})
        draft["sample"] = {"rule": "all", "units": worlds, "planned_cells": 2 * worlds}
        (root / "protocols" / name).mkdir()
        (root / "protocols" / name / "draft.yaml").write_text(yaml.safe_dump(draft))
    commit(root)
    for name in names:
        places = Places(root, name, "smoke")
        whole_life(places)
        commit(root)
        assert statuses(audit(places)) == EXPECTED, name


def proof_of(path, *attestations):
    with path.open("rb") as stream:
        detached = DetachedTimestampFile.from_fd(OpSHA256(), stream)
    detached.timestamp.attestations.update(attestations)
    context = BytesSerializationContext()
    detached.serialize(context)
    path.with_name(path.name + ".ots").write_bytes(context.getbytes())
    return detached.file_digest


def test_a_pending_proof_is_pending_and_a_block_is_checked(analysed):
    digest = proof_of(analysed.frozen, PendingAttestation("https://calendar.example.org"))
    assert audit(analysed).status("A6") == "PENDING"
    digest = proof_of(analysed.frozen, BitcoinBlockHeaderAttestation(800_000))
    assert audit(analysed).status("A6") == "PENDING"
    header = (b"\1" * 36 + digest + b"\2" * 12).hex()
    assert audit(analysed, block_headers={800_000: header}).status("A6") == "PASS"
    other = (b"\1" * 36 + bytes(32) + b"\2" * 12).hex()
    assert audit(analysed, block_headers={800_000: other}).status("A6") == "FAIL"
    assert audit(analysed, block_headers={800_000: "00"}).status("A6") == "FAIL"
    proof_of(analysed.draft, BitcoinBlockHeaderAttestation(800_000))
    shutil.move(f"{analysed.draft}.ots", f"{analysed.frozen}.ots")
    assert audit(analysed).status("A6") == "FAIL"


def command_line():
    app = typer.Typer()
    app.add_typer(cli.app, name="prereg")
    app.command("audit")(cli.audit_command)
    return app


def invoke(*arguments):
    return CliRunner().invoke(command_line(), list(arguments))


def test_the_whole_life_on_the_command_line(places):
    for step in ("freeze", "archive", "stamp", "run", "seal", "analyze", "status"):
        done = invoke("prereg", step, "toy")
        assert done.exit_code == 0, (step, done.output, done.exception)
    assert "ANALYSED" in done.output
    commit(places.root)
    done = invoke("audit", "toy")
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) == 21
    assert "LOCAL TEST TSA - NOT INDEPENDENT" in done.output
    items = json.loads(invoke("audit", "--all", "--json").output)[0]["items"]
    assert [item["id"] for item in items] == [f"A{n}" for n in range(1, 21)]

    options = ["--what", "w", "--why", "y", "--noticed", "n", "--data-seen", "--affects", "c1"]
    assert invoke("prereg", "deviate", "toy", *options).exit_code == 0
    refused = invoke("prereg", "run", "toy")
    assert refused.exception.exit_code == 2
    assert str(refused.exception) == (
        "run refuses: study toy is ANALYSED, expected STAMPED, COLLECTING"
    )
    places.results_json.write_text(places.results_json.read_text().replace('"CONFIRMATORY"', '"X"'))
    failed = invoke("audit", "toy")
    assert failed.exception.exit_code == 5
    assert invoke("audit", "toi").exception.exit_code == 2
    assert invoke("audit").exception.exit_code == 2
    assert invoke("audit", "toy", "--block-header", "x").exception.exit_code == 2


def test_draft_writes_a_protocol_to_fill_in(places):
    done = invoke("prereg", "draft", "another", "--profile", "smoke")
    assert done.exit_code == 0, done.output
    draft = Places(places.root, "another", "smoke").draft
    assert yaml.safe_load(draft.read_text())["study"] == "another"
    assert load_draft(draft).study == "another"
    assert invoke("prereg", "draft", "another").exception.exit_code == 2
