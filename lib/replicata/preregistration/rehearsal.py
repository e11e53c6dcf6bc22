"""A dress rehearsal: the whole life cycle of a draft, in a throw-away copy of the repository.

Freeze, archive, stamp by a local authority, collect, seal, analyse, audit; then one outcome in the
records is altered, and the audit runs again. It proves that the code path works and says nothing
about the world: for smoke runs, and for trying out a draft before it is frozen.

``python -m replicata.preregistration.rehearsal STUDY OUT`` is what runs inside the copy.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicata.errors import RunError
from replicata.preregistration.analysis import analyze, observations
from replicata.preregistration.archive import write_archive
from replicata.preregistration.audit import audit
from replicata.preregistration.collect import collect, planned_cells
from replicata.preregistration.freeze import freeze
from replicata.preregistration.places import Places
from replicata.preregistration.protocol import load_draft
from replicata.preregistration.registration import load_registration
from replicata.preregistration.seal import read_shards, seal
from replicata.preregistration.stamping import stamp_all
from replicata.preregistration.study import Observation, PlannedCell

COPIED = ("lib", "pyproject.toml", "Snakefile")
IDENTITY = ("-c", "user.name=rehearsal", "-c", "user.email=rehearsal@example.org")


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal came to.

    Attributes
    ----------
    observed
        Every planned cell with what was recorded of it.
    results
        The content of results.json.
    audit, tampered
        Status by audit item, before and after the alteration.
    """

    observed: Sequence[Observation]
    results: Mapping[str, Any]
    audit: Mapping[str, str]
    tampered: Mapping[str, str]


def rehearse(root: Path, study: str) -> Rehearsal:
    """Go through the life cycle of ``protocols/<study>/draft.yaml``.

    Parameters
    ----------
    root
        The repository; nothing is written there.
    study
        Directory of the draft.

    Raises
    ------
    RunError
        If a step fails, or git is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as place:
        copy = Path(place) / "repository"
        _copy(root, copy, study)
        out = Path(place) / "out.json"
        # A process of its own: the manifest is of the modules that are loaded from the copy.
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy / "lib"),
            "REPLICATA_ROOT": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        _run([sys.executable, "-m", __name__, study, str(out)], copy, environment)
        found = json.loads(out.read_text(encoding="utf-8"))
    observed = [
        Observation(_cell(cell), response, outcome, missing)
        for cell, response, outcome, missing in found["observed"]
    ]
    return Rehearsal(observed, found["results"], found["audit"], found["tampered"])


def _copy(root: Path, copy: Path, study: str) -> None:
    copy.mkdir()
    for name in COPIED:
        if (root / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(root / name, copy / name, ignore=ignore)
        else:
            shutil.copy(root / name, copy / name)
    draft = Path("protocols") / study / "draft.yaml"
    (copy / draft).parent.mkdir(parents=True)
    shutil.copy(root / draft, copy / draft)
    for name in load_draft(root / draft).analysis.files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, copy / name)
    (copy / ".gitattributes").write_text("* -text\n")
    (copy / ".gitignore").write_text("__pycache__/\nresults/\n")
    _run(["git", "init", "-q"], copy)
    _commit(copy)


def _commit(copy: Path) -> None:
    _run(["git", "add", "-A"], copy)
    _run(["git", *IDENTITY, "-c", "commit.gpgsign=false", "commit", "-qm", "rehearsal"], copy)


def _run(command: list[str], copy: Path, environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    except FileNotFoundError:
        raise RunError(f"a rehearsal needs {command[0]}, which is not installed") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise RunError(f"the rehearsal failed at {' '.join(command[:4])}: {last}")


def _cell(values: Sequence[Any]) -> PlannedCell:
    cell_id, shard, unit, endpoint, needs, params = values
    return PlannedCell(cell_id, shard, unit, endpoint, tuple(needs), params)


def _main(study: str, out: Path) -> None:
    copy = Path.cwd()
    places = Places(copy, study, load_draft(copy / "protocols" / study / "draft.yaml").profile)
    freeze(places)
    write_archive(load_registration(places))
    _commit(copy)
    stamp_all(places)
    collect(places)
    seal(places)
    results = analyze(places)
    registration = load_registration(places)
    observed = observations(planned_cells(registration), read_shards(registration))
    clean = audit(places)
    _alter(places.record_files()[0])
    found = {
        "observed": [[o.cell.to_json(), o.response, o.outcome, o.missing] for o in observed],
        "results": results,
        "audit": {item.id: item.status for item in clean.items},
        "tampered": {item.id: item.status for item in audit(places).items},
    }
    out.write_text(json.dumps(found), encoding="utf-8")


def _alter(path: Path) -> None:
    """Alter one character of an answer in the middle of a records file."""
    lines = path.read_bytes().splitlines(keepends=True)
    middle = len(lines) // 2
    record = lines[middle]
    lines[middle] = record.replace(b'"kind":"answer"', b'"kind":"Answer"', 1)
    if lines[middle] == record:
        raise RunError(f"{path.name}: no answer in the middle to alter")
    path.write_bytes(b"".join(lines))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
