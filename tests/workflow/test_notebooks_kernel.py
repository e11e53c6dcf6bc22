"""A killed runner takes its kernel along, and the kernel what the notebook started."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from replicata.workflow.kernel import manager_class
from tests.workflow.notebook_files import code, write

# The pattern never ends and holds the interpreter's lock, so that nothing in Python can stop it:
# neither a signal handler nor the thread in which ipykernel looks after its parent.
BUSY = """\
import os, re, subprocess, tempfile
worker = subprocess.Popen(["sleep", "600"])
directory = os.path.dirname(os.environ["IPYTHONDIR"])
with open("draft", "w") as stream:
    print(os.getpid(), worker.pid, directory, file=stream)
os.replace("draft", "started")
re.match(r"(a+)+$", "a" * 64 + "b")
"""


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl")
def test_kill_9_leaves_no_kernel_no_worker_and_no_file(tmp_path):
    source = write(tmp_path / "a.ipynb", code("", "parameters"), code(BUSY))
    runner = subprocess.Popen(
        [sys.executable, "-m", "replicata.workflow.notebooks", source, tmp_path / "out.ipynb"],
        cwd=tmp_path,
    )
    started = tmp_path / "started"
    try:
        wait_for(lambda: started.exists() or runner.poll() is not None)
        kernel, worker, directory = started.read_text().split()
    finally:
        runner.kill()
        runner.wait()
    wait_for(lambda: is_gone(int(kernel)) and is_gone(int(worker)), seconds=10)
    wait_for(lambda: not Path(directory).exists(), seconds=10)
    assert not list(tmp_path.glob("out*"))


def test_a_kernel_whose_runner_went_meanwhile_does_not_start(tmp_path):
    for environment in ({}, {"JPY_PARENT_PID": "1"}):
        ended = subprocess.run(
            [sys.executable, "-m", "replicata.workflow.kernel", "-f", tmp_path / "c.json"],
            env={"PYTHONPATH": ":".join(filter(None, sys.path))} | environment,
            timeout=60,
        )
        assert ended.returncode == 1
    assert not list(tmp_path.iterdir())


def test_a_temporary_directory_with_a_long_name_is_no_obstacle(tmp_path):
    short = manager_class(Path("/tmp/replicata-12345678"), [])()
    assert (short.transport, short.ip) == ("ipc", "/tmp/replicata-12345678/socket")
    assert manager_class(Path("/tmp") / ("x" * 90), [])().transport == "tcp"
