"""Runs that are killed or interrupted: nothing left behind, and the same command goes on."""

import random
import signal
import time
from contextlib import suppress

import psutil
import pytest

from tests.conftest import build_house
from tests.workflow.test_pipeline import outputs

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(180)]


@pytest.fixture
def house(tmp_path):
    house = build_house(tmp_path / "house", "toy")
    yield house
    for process in processes_in(house):
        with suppress(psutil.Error):
            process.kill()


def processes_in(house):
    """Return the command lines of all processes that run the house's code, by process."""
    found = {}
    for process in psutil.process_iter():
        try:
            if str(house.root) in process.environ().get("PYTHONPATH", ""):
                found[process] = " ".join(process.cmdline())
        except psutil.Error:
            continue  # gone, or nobody's any more
    return found


def wait_until(condition, seconds=30.0):
    """Return what the condition gave when it held: asked again, a process may be changing over."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def child_named(house, word):
    return next((p for p, line in processes_in(house).items() if word in line), None)


# What survives its parent would go on for an hour, so that it cannot end by itself unseen.
@pytest.mark.parametrize(
    ("victim", "job", "longer"),
    [
        ("replicata run", "cell", {"seconds": 3600}),
        ("snakemake", "notebook", {"notebook_seconds": 3600}),
    ],
)
def test_kill_9_and_the_same_command_again(house, finished, victim, job, longer):
    command = ("replicata", "run", "--profile", "smoke", "--root", "results")
    first = house.start(*command, **longer)
    assert wait_until(lambda: child_named(house, f"job {job}"))
    time.sleep(random.Random().uniform(0, 2))
    found = wait_until(lambda: child_named(house, victim))
    assert found
    found.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    assert first.returncode != 0
    assert wait_until(lambda: not processes_in(house)), processes_in(house)
    again = house.call(*command)
    assert again.returncode == 0, again.stdout + again.stderr
    assert outputs(house, "results") == outputs(finished[0], "results")
    assert not list(house.results().rglob(".*.parquet"))


def test_a_job_that_is_killed_is_named_and_the_others_go_on(house):
    run = house.start("replicata", "run", "--profile", "smoke", "--root", "rerun", seconds=1)
    engine = wait_until(lambda: child_named(house, "--cell engine"))
    assert engine
    engine.send_signal(signal.SIGKILL)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 4
    assert "FAILED toy cells/engine: it was killed" in said
    assert (house.results("rerun") / "cells/coin-0.parquet").exists()
    assert not (house.results("rerun") / "claims.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_one_sentence_and_keeps_what_is_done(house, number):
    command = ("replicata", "run", "--profile", "smoke", "--root", "rerun", "--cores", "1")
    run = house.start(*command, seconds=1)
    assert wait_until(lambda: (house.results("rerun") / "receipts/cells/engine.json").exists())
    run.send_signal(number)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert said.splitlines()[-1] == "replicata: error: interrupted; what was finished is kept"
    assert wait_until(lambda: not processes_in(house))
    assert (house.results("rerun") / "cells/engine.parquet").exists()
