"""Params: what a person may type wrong, and what they are told."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from replicata.errors import UsageError
from replicata.workflow import params as module
from replicata.workflow.cells import StrictParams
from replicata.workflow.params import load_params, read_yaml


class Optimizer(StrictParams):
    rate: float
    betas: tuple[float, float] = (0.9, 0.99)


class Schema(StrictParams):
    name: str = "x"
    count: int = 1
    flag: bool = False
    ratio: float = 0.5
    sizes: list[int] = Field(default_factory=list)
    optimizer: Optimizer | None = None


def check(tmp_path, text):
    path = tmp_path / "params" / "toy" / "smoke.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return module._validate(Schema, read_yaml(path), "params/toy/smoke.yaml")


def refusal(tmp_path, text):
    with pytest.raises(UsageError) as caught:
        check(tmp_path, text)
    sentence = str(caught.value)
    assert sentence.startswith("params/toy/smoke.yaml")
    assert "\n" not in sentence
    return sentence


def test_values_arrive_as_written(tmp_path):
    text = "name: yes\ncount: -7\nflag: true\nratio: 1.0e-4\noptimizer: {rate: 3, betas: [0.1, 0]}"
    loaded = check(tmp_path, text)
    assert loaded.name == "yes"
    assert loaded.count == -7
    assert loaded.flag is True
    assert loaded.ratio == 1e-4
    assert loaded.optimizer == Optimizer(rate=3.0, betas=(0.1, 0.0))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ratio: 1e-4", ["ratio", '"1e-4"', "read as text", "number with a point"]),
        ("count: 007", ["count", '"007"', "whole number"]),
        ("count: 1_000", ["count", '"1_000"', "whole number"]),
        ("count: 1:30", ["count", '"1:30"', "whole number"]),
        ("count: 0x10", ["count", '"0x10"', "whole number"]),
        ("count: 2.0", ["count", "2.0", "whole number"]),
        ("count: true", ["count", "true", "whole number"]),
        ("flag: yes", ["flag", '"yes"', "true or false"]),
        ("flag: 1", ["flag", "1", "true or false"]),
        ("ratio: .inf", ["ratio", '".inf"', "number"]),
        ("ratio: '0.5'", ["ratio", '"0.5"', "number"]),
        ("name: 5", ["name", "5", "text"]),
        ("name: null", ["name", "null", "text"]),
        ("sizes: 3", ["sizes", "3", "a list"]),
        ("sizes: [1, no]", ["sizes.1", '"no"', "whole number"]),
        ("optimizer: 3", ["optimizer", "3", "mapping"]),
        ("optimizer: {}", ["optimizer.rate", "missing"]),
        ("optimizer: {rate: 1.0, beta: 2}", ["optimizer.beta", "unknown key", "'betas'"]),
        ("cuont: 3", ["unknown key cuont", "did you mean 'count'"]),
        ("count: 1\ncount: 2", ["line 2", "count", "line 1", "once"]),
        ("optimizer: {rate: 1.0, rate: 2.0}", ["optimizer.rate", "once"]),
        ("count: [1", ["line", "not valid YAML"]),
        ("- 1", ["no mapping"]),
        ("", ["no mapping"]),
        ("name: !!python/object:os.system x", ["not valid YAML"]),
    ],
)
def test_a_slip_is_one_sentence(tmp_path, line, words):
    sentence = refusal(tmp_path, line)
    for word in words:
        assert word in sentence


@given(
    st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False), st.booleans()
)
def test_what_python_prints_is_read_back_or_refused(count, ratio, flag):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as directory:
        text = f"count: {count}\nratio: {ratio!r}\nflag: {str(flag).lower()}"
        if re.fullmatch(
            r"-?\d+e-?\d+", repr(ratio)
        ):  # YAML 1.1 wants 1.0e-05 and takes 1e-05 as text
            with pytest.raises(UsageError, match="ratio"):
                check(Path(directory), text)
            return
        loaded = check(Path(directory), text)
        assert (loaded.count, loaded.ratio, loaded.flag) == (count, ratio, flag)


def test_unknown_paper_profile_and_missing_file(toy_house):
    assert load_params("toy", "smoke").throws == 50
    with pytest.raises(UsageError, match=r"'toys'.*did you mean 'toy'"):
        load_params("toys", "smoke")
    with pytest.raises(UsageError, match=r"'smok'.*did you mean 'smoke'"):
        load_params("toy", "smok")
    with pytest.raises(UsageError, match=r"params/toy/cpu.yaml is missing"):
        load_params("toy", "cpu")
