"""A second client: a paired permutation test costs one protocol and one function."""

import itertools
from fractions import Fraction

import pytest
import yaml
from toy_repository import TOY, commit, to_stamped

from replicata.errors import UsageError
from replicata.preregistration.analysis import analyze
from replicata.preregistration.audit import audit
from replicata.preregistration.collect import collect
from replicata.preregistration.places import Places
from replicata.preregistration.registration import load_registration
from replicata.preregistration.seal import seal

CLIENT = """
from replicata.preregistration.paired import paired_study
from replicata.preregistration.study import Answer


def answer(registration, cell, request):
    passed = int(request["seed"]) % 10 < BAR[cell.params["arm"]]
    return Answer({"pass": passed}, "synthetic:toy-1")


def again(registration, cell, request):
    return answer(registration, cell, request).response


BAR = {"base": 3, "new": 8}
STUDY = paired_study(answer, lambda response: response["pass"], replay=again)
"""


@pytest.fixture
def client(places):
    """The toy's repository with another study in it."""
    root = places.root
    (root / "code" / "toy_study" / "client.py").write_text(CLIENT)
    values = yaml.safe_load((TOY / "draft.yaml").read_text())
    rule = {"supported": "p_adjusted <= 0.05", "contradicted": "upper < 0.1"}
    hypothesis = {**values["hypotheses"][0], "rule": rule}
    units = {f"task{n}": f"tool{n // 2}" for n in range(12)}
    values.update(
        study="client",
        hypotheses=[hypothesis],
        sample={"rule": "all", "units": 12, "planned_cells": 48},
        analysis={"entry_point": "toy_study.client:STUDY"},
        settings={
            "arms": {"base": "control", "new": "control"},
            "units": units,
            "repeats": 2,
            "shards": 3,
            "compare": {"c1": {"new": "new", "base": "base"}},
        },
    )
    (root / "protocols" / "client").mkdir()
    (root / "protocols" / "client" / "draft.yaml").write_text(
        yaml.safe_dump(values, sort_keys=False)
    )
    commit(root)
    return Places(root, "client", "smoke")


def test_the_second_client_end_to_end(client):
    to_stamped(client)
    assert collect(client) == 48
    seal(client)
    results = analyze(client)
    found = results["results"]["c1"]

    registration = load_registration(client)
    sums = {}
    for unit, tool in registration.protocol.settings["units"].items():
        digit = registration.seed(unit) % 10
        sums[tool] = sums.get(tool, 0) + Fraction((digit < 8) - (digit < 3))
    observed = sum(sums.values())
    flips = [
        sum(sign * value for sign, value in zip(signs, sums.values(), strict=True))
        for signs in itertools.product((1, -1), repeat=len(sums))
    ]
    assert found["p_value"] == sum(value >= observed for value in flips) / len(flips)
    assert found["mean"] == pytest.approx(float(observed / 12))
    assert found["n"] == 6
    result = audit(client, replay_share=1.0)
    assert not result.failed, result
    assert result.status("A20") == "PASS"


def test_settings_that_do_not_fit_are_refused(client):
    text = client.draft.read_text()
    client.draft.write_text(text.replace("base: base", "base: bass"))
    commit(client.root)
    with pytest.raises(UsageError, match=r"settings\.compare\.c1 names no hypothesis or no arm"):
        to_stamped(client)
