"""Building a cached directory: atomic, once, and never trusted when damaged."""

import json
import multiprocessing
import os
import time

import pytest

from replicata.errors import ResourceError
from replicata.models import cache

# Forked, so that the children need not import torch again.
fork = multiprocessing.get_context("fork")


def build_slowly(log, pause):
    def build(target):
        with log.open("a") as file:
            file.write("started\n")
        (target / "config.json").write_text("{}")
        (target / "model.safetensors").write_bytes(b"half of it")
        time.sleep(pause)
        (target / "model.safetensors").write_bytes(b"all of it, which is longer")

    cache.cached_directory("thing", build)


def start(log, pause):
    process = fork.Process(target=build_slowly, args=(log, pause))
    process.start()
    return process


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("REPLICATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def build(target):
    (target / "config.json").write_text("{}")
    (target / "model.safetensors").write_bytes(b"weights")


def fail(target):
    raise AssertionError("built although intact")


def test_a_killed_builder_leaves_nothing_that_counts(models, tmp_path):
    log = tmp_path / "log"
    process = start(log, 600)
    wait_for(log.exists)
    process.kill()
    process.join()
    leftovers = [path.name for path in models.iterdir() if path.is_dir()]
    assert leftovers
    assert "thing" not in leftovers

    second = start(log, 0)
    second.join()
    assert second.exitcode == 0
    assert (models / "thing" / "model.safetensors").read_bytes() == b"all of it, which is longer"
    assert [path.name for path in models.iterdir() if path.is_dir()] == ["thing"]


def test_two_processes_at_once_build_once(models, tmp_path):
    log = tmp_path / "log"
    processes = [start(log, 0.5), start(log, 0.5)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert cache.is_intact(models / "thing")
    assert log.read_text() == "started\n"


def test_an_intact_directory_is_not_built_again(models):
    directory = cache.cached_directory("thing", build)
    assert cache.cached_directory("thing", fail) == directory
    # As copied from another machine: other times, same content.
    os.utime(directory / "model.safetensors", ns=(1, 1))
    assert cache.cached_directory("thing", fail) == directory


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: (d / "model.safetensors").write_bytes(b"weigh"),
        lambda d: (d / "model.safetensors").write_bytes(b"WEIGHTS"),
        lambda d: (d / "model.safetensors").unlink(),
        lambda d: (d / cache.RECORD).unlink(),
        lambda d: (d / cache.RECORD).write_text('{"files"'),
        lambda d: (d / cache.RECORD).write_text("[]"),
        lambda d: (d / cache.RECORD).write_text('{"files": {}, "fingerprint": ""}'),
    ],
    ids=["truncated", "same size", "missing", "no record", "half a record", "list", "old record"],
)
def test_a_damaged_directory_is_built_again(models, damage):
    directory = cache.cached_directory("thing", build)
    damage(directory)
    cache.cached_directory("thing", build)
    assert (directory / "model.safetensors").read_bytes() == b"weights"
    assert cache.is_intact(directory)


def test_a_failing_builder_leaves_nothing(models):
    def broken(target):
        build(target)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.cached_directory("thing", broken)
    assert [path for path in models.iterdir() if path.is_dir()] == []


def test_a_cache_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REPLICATA_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match="set REPLICATA_CACHE to a directory"):
        cache.cached_directory("thing", build)


def test_the_fingerprint_covers_config_and_weights_only(models):
    directory = cache.cached_directory("thing", build)
    before = cache.hash_model(directory)
    assert cache.fingerprint(directory) == before
    assert json.loads((directory / cache.RECORD).read_text())["fingerprint"] == before
    (directory / "tokenizer.json").write_text("{}")
    assert cache.hash_model(directory) == before
    (directory / "config.json").write_text('{"a": 1}')
    assert cache.hash_model(directory) != before


def test_the_default_cache_is_below_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("REPLICATA_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_dir() == tmp_path / ".cache" / "replicata"
