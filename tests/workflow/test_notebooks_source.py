"""What is refused before a kernel starts: the notebook's source and its parameters."""

import enum
import json
import math
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from papermill.translators import PythonTranslator

from replicata.errors import UsageError
from replicata.workflow import notebooks
from replicata.workflow.notebook_source import checked_parameters, read_source
from tests.workflow.notebook_files import code, write

DEFAULTS = """\
# what a reader may change
seed = 1
rate: float = 0.5
name = "a"
fast = False
sizes = [1, 2]
options = {"a": 1}
limit = None
"""


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Run a notebook of these cells up to the point where a kernel would start."""
    started = []

    def no_kernel(notebook, values, *_):
        started.append(values)
        return notebook, None

    monkeypatch.setattr(notebooks, "_execute", no_kernel)

    def run(*cells, parameters=None, **fields):
        source = write(tmp_path / "a.ipynb", *cells, **fields)
        before = source.read_bytes()
        try:
            notebooks.execute_notebook(
                source, tmp_path / "out.ipynb", parameters or {}, root=tmp_path
            )
        finally:
            assert source.read_bytes() == before
            if not started:
                assert [path.name for path in tmp_path.iterdir()] == ["a.ipynb"]
        return started[0]

    return run


def refused(execute, *cells, **options):
    with pytest.raises(UsageError) as caught:
        execute(*cells, **options)
    sentence = str(caught.value)
    assert sentence.startswith("a.ipynb")
    assert "\n" not in sentence
    return sentence


def test_a_misspelt_parameter_names_the_nearest_known_one(execute):
    sentence = refused(execute, code(DEFAULTS, "parameters"), parameters={"sead": 2})
    assert "'sead' (did you mean 'seed'?)" in sentence
    assert "known: seed, rate, name, fast, sizes, options, limit" in sentence


@pytest.mark.parametrize(
    ("cells", "count"),
    [
        ([code("seed = 1")], 0),
        ([code("seed = 1", "parameters"), code("seed = 2", "parameters")], 2),
        (
            [{"cell_type": "markdown", "source": "seed = 1", "metadata": {"tags": ["parameters"]}}],
            1,
        ),
    ],
)
def test_there_has_to_be_one_code_cell_of_parameters(execute, cells, count):
    sentence = refused(execute, *cells, parameters={"seed": 2})
    assert f"{count} cells with the tag 'parameters', expected exactly one" in sentence


@pytest.mark.parametrize(
    "parameters",
    [
        {"rate": math.nan},
        {"rate": math.inf},
        {"options": {"a": [1.0, -math.inf]}},
        {"sizes": (1, 2)},
        {"sizes": [(1, 2)]},
        {"options": {1: 2}},
        {"options": OrderedDict(a=1)},
        {"limit": {1, 2}},
        {"limit": Path("a")},
        {"limit": b"a"},
        {"limit": np.float64(0.5)},
        {"limit": np.int64(5)},
        {"limit": enum.IntEnum("E", "A").A},
        {"limit": 1j},
    ],
)
def test_a_value_that_json_changes_is_refused_by_name(execute, parameters):
    (name,) = parameters
    sentence = refused(execute, code(DEFAULTS, "parameters"), parameters=parameters)
    assert f"parameter {name} is" in sentence
    assert "expected a value that JSON keeps" in sentence


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"seed": "1"}, "a whole number like its default 1"),
        ({"seed": 1.0}, "a whole number"),
        ({"seed": True}, "a whole number"),
        ({"seed": None}, "a whole number"),
        ({"rate": "1e-4"}, "a number like its default 0.5"),
        ({"rate": True}, "a number"),
        ({"rate": 2**53 + 1}, "a number"),
        ({"name": 7}, "text like its default 'a'"),
        ({"fast": 1}, "True or False like its default False"),
        ({"sizes": {"a": 1}}, "a list"),
        ({"options": [1]}, "a mapping"),
    ],
)
def test_a_value_of_another_type_than_its_default_is_refused(execute, parameters, expected):
    (name,) = parameters
    sentence = refused(execute, code(DEFAULTS, "parameters"), parameters=parameters)
    assert f"parameter {name} is {parameters[name]!r}, expected {expected}" in sentence


def test_values_reach_the_notebook_with_their_types(execute):
    given_values = {
        "seed": 7,
        "rate": 2,
        "name": "007",
        "fast": True,
        "sizes": [],
        "options": {"b": [None, 1e-4]},
        "limit": "anything",
    }
    values = execute(code(DEFAULTS, "parameters"), parameters=given_values)
    assert values == given_values
    assert type(values["rate"]) is float


@pytest.mark.parametrize(
    "line",
    [
        "double = 2 * seed",
        "double = seed",
        "stamp = time()",
        'name = f"{seed}"',
        "sizes = [seed]",
        "sizes[0] = 1",
        "a = b = 1",
        "a, b = 1, 2",
        "seed += 1",
        "a: int",
        "import os",
        "print(1)",
        "if True: a = 1",
        "a = (1, 2)",
        "a = {1, 2}",
        "a = {1: 2}",
        "a = b'x'",
        "a = 1e999",
        "a = 1j",
        "%matplotlib inline",
        "seed = 2",
    ],
)
def test_the_parameters_cell_holds_only_literals(execute, line):
    sentence = refused(execute, code("import x"), code(f"seed = 1\n{line}", "parameters"))
    assert "a.ipynb, cell 2, line 2" in sentence


def test_a_source_with_outputs_is_refused(execute):
    stream = {"output_type": "stream", "name": "stdout", "text": "1"}
    sentence = refused(execute, code("", "parameters"), code("print(1)", outputs=[stream]))
    assert "cell 2 carries outputs" in sentence
    assert "cell 1 carries outputs" in refused(execute, code("", "parameters", execution_count=3))


def test_a_source_that_papermill_wrote_is_refused(execute):
    sentence = refused(execute, code("", "parameters"), code("seed = 2", "injected-parameters"))
    assert "cell 2 has the tag 'injected-parameters'" in sentence


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "{'cells': []}",
        '{"cells": 3, "nbformat": 4, "metadata": {}}',
        '{"cells": [3], "nbformat": 4, "metadata": {}}',
        '{"cells": [{"cell_type": "code"}], "nbformat": 4, "metadata": {}}',
        '{"cells": [], "nbformat": 4, "metadata": {"a": NaN}}',
        "\ufeff",
    ],
)
def test_a_file_that_is_no_notebook_is_refused(tmp_path, text):
    source = tmp_path / "a.ipynb"
    source.write_text(text)
    with pytest.raises(UsageError, match=r"^a\.ipynb is no valid notebook of format 4: .+"):
        read_source(source, "a.ipynb")


def test_a_missing_notebook_and_one_written_onto_itself_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"a\.ipynb is missing"):
        notebooks.execute_notebook(tmp_path / "a.ipynb", tmp_path / "b", {}, root=tmp_path)
    source = write(tmp_path / "a.ipynb", code("", "parameters"))
    with pytest.raises(UsageError, match="source and output at once"):
        notebooks.execute_notebook(source, tmp_path / "." / "a.ipynb", {}, root=tmp_path)


def test_cells_without_ids_get_the_same_ones_each_time(tmp_path):
    cells = [code("", "parameters"), code("1")]
    for minor in (4, 5):
        path = tmp_path / "a.ipynb"
        document = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": minor}
        path.write_text(json.dumps(document))
        assert [cell.id for cell in read_source(path, "a").cells] == ["cell-1", "cell-2"]


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        (["x=007"], "'007' is no JSON value"),
        (["x=abc"], "'abc' is no JSON value"),
        (["x"], "expected NAME=JSON"),
        (["x=1", "x=2"], "each name once"),
    ],
)
def test_the_command_line_takes_json_only(pairs, found):
    with pytest.raises(UsageError, match=found):
        notebooks._from_command_line(pairs)


def test_the_command_line_keeps_types():
    pairs = ["a=1e-4", 'b="007"', "c=1", "d=[1, 2.0]", "e=null", 'f="a=b"']
    values = notebooks._from_command_line(pairs)
    assert values == {"a": 1e-4, "b": "007", "c": 1, "d": [1, 2.0], "e": None, "f": "a=b"}
    assert type(values["a"]) is float


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(JSON)
def test_every_accepted_value_survives_papermill(value):
    from nbformat.v4 import new_code_cell, new_notebook

    cell = new_code_cell("x = None", metadata={"tags": ["parameters"]})
    values = checked_parameters({"x": value}, new_notebook(cells=[cell]), "a.ipynb")
    scope: dict = {}
    exec(PythonTranslator.codify(values), scope)
    assert repr(scope["x"]) == repr(value)  # tells 1 from 1.0 and from True, all the way down
