"""The results as the frozen code gives them, where the repository's code has changed since.

A deviation that names a changed file says that the change came after the analysis. That is its
author's word; computing again with the archived files is the check of it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from replicata.errors import VerificationError
from replicata.preregistration.places import Places
from replicata.preregistration.registration import Registration

_PROGRAM = """
import json, sys
from pathlib import Path
from replicata.preregistration.frozen_code import compute_here
from replicata.preregistration.places import Places

print(json.dumps(compute_here(Places(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))))
"""


def computed_as_frozen(registration: Registration) -> dict[str, Any]:
    """Return what `compute` gives with the archived files in the place of today's.

    Raises
    ------
    VerificationError
        If the frozen code does not run here any more.
    """
    places = registration.places
    root = places.root.resolve()
    with tempfile.TemporaryDirectory(prefix="frozen-") as place:
        copy = Path(place).resolve()
        for top in {Path(path).parts[0] for path in registration.manifest["modules"].values()}:
            shutil.copytree(root / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (places.protocol_dir, places.results_dir):
            shutil.copytree(path, copy / path.relative_to(places.root), dirs_exist_ok=True)
        with zipfile.ZipFile(places.archive) as bundle:
            bundle.extractall(copy)
        paths = [
            str(copy / Path(entry).resolve().relative_to(root))
            if entry and Path(entry).resolve().is_relative_to(root)
            else entry
            for entry in sys.path
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "REPLICATA_ROOT": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-c", _PROGRAM, str(copy), places.study, places.profile]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise VerificationError(f"archive.zip: the frozen code does not run here: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def compute_here(places: Places) -> dict[str, Any]:
    """Return what the code that is imported here makes of the records."""
    from replicata.preregistration.analysis import compute, observations
    from replicata.preregistration.collect import planned_cells
    from replicata.preregistration.registration import load_registration
    from replicata.preregistration.seal import read_shards
    from replicata.preregistration.study import load_study

    registration = load_registration(places)
    study = load_study(registration.protocol.analysis.entry_point)
    observed = observations(planned_cells(registration), read_shards(registration))
    return compute(study, registration, observed)
