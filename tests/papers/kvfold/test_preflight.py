"""Profile paper says what it lacks before it starts."""

import os
import subprocess
import sys

from replicata.papers.kvfold import preflight
from replicata.workflow.layout import repo_root
from replicata.workflow.params import load_params


def test_everything_missing_is_named(monkeypatch):
    monkeypatch.setattr(preflight, "DISK_GIB", 1e9)
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    params = load_params("kvfold", "paper").model_copy(update={"device": "cuda:97"})
    text = " ".join(preflight.preflight(params))
    for part in ("cuda:97", "disk:", "quality", "longhealth", "head budgets", "vLLM"):
        assert part in text


def test_a_run_at_profile_paper_prints_its_cost_and_stops(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "replicata",
            "run",
            "kvfold",
            "--profile",
            "paper",
            "--root",
            str(tmp_path),
        ],
        cwd=repo_root(),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "GPU-hours" in done.stdout
    assert "LongHealth" in done.stderr or "longhealth" in done.stderr
