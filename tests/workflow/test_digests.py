"""Code digests: they change with what runs, and with nothing else."""

import json

import pytest

from replicata.errors import RunError
from replicata.workflow.digests import (
    code_digest,
    find_source,
    imports_of_notebook,
    notebook_digest,
)
from replicata.workflow.files import canonical_json
from replicata.workflow.seeds import derive_seed
from tests.conftest import add_paper

NAME = "replicata.papers.toy.experiment"


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_words_and_layout_do_not_count(toy_house):
    before = code_digest(NAME)
    change(toy_house.room() / "method.py", "# One number each.", "# One for each throw.\n\n")
    change(toy_house.room() / "method.py", '"""Return n throws, 1.0 for heads."""', '"""Other."""')
    change(toy_house.room() / "experiment.py", "import time\n", "\n\nimport time\n")
    change(
        toy_house.room() / "helper.py",
        "return values.astype(float)",
        "return (values.astype(float))",
    )
    assert code_digest(NAME) == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("experiment.py", "priority=5", "priority=6"),
        ("method.py", "rng.random(n) < bias", "rng.random(n) <= bias"),
        ("helper.py", "astype(float)", "astype('float32')"),
        ("__init__.py", '"""A toy paper."""', "import this"),
    ],
)
def test_code_counts_in_the_whole_closure(toy_house, file, old, new):
    before = code_digest(NAME)
    change(toy_house.room() / file, old, new)
    assert code_digest(NAME) != before


def test_an_import_inside_a_function_counts(toy_house):
    extra = toy_house.room() / "extra.py"
    extra.write_text("VALUE = 1\n")
    change(
        toy_house.room() / "method.py",
        "    # One number each.",
        "    from . import extra\n    from .extra import VALUE",
    )
    before = code_digest(NAME)
    extra.write_text("VALUE = 2\n")
    assert code_digest(NAME) != before


def test_another_paper_and_a_module_not_imported_do_not_count(toy_house):
    before = code_digest(NAME)
    add_paper(toy_house.root, "other")
    change(toy_house.room() / "figures.py", "bar(", "barh(")
    assert code_digest(NAME) == before


def test_what_is_imported_is_found_without_importing(toy_house):
    import sys

    assert find_source("replicata.papers.toy.helper") == toy_house.room() / "helper.py"
    assert "replicata.papers.toy.helper" not in sys.modules
    assert find_source("replicata.papers.toy.nothing") is None
    assert find_source("replicata.papers.toy.helper.as_float") is None
    assert find_source("numpy") is None


def test_a_missing_or_broken_module_is_named(toy_house):
    with pytest.raises(RunError, match=r"replicata\.papers\.toy\.nothing"):
        code_digest("replicata.papers.toy.nothing")
    (toy_house.room() / "helper.py").write_text("def f(:\n")
    with pytest.raises(RunError, match=r"helper\.py, line 1"):
        code_digest(NAME)


def test_a_notebook_counts_by_its_cells(toy_house):
    source = (toy_house.root / "notebooks/toy.ipynb").read_text()
    notebook = json.loads(source)
    assert imports_of_notebook(source) == [
        "replicata.papers.toy",
        "replicata.papers.toy.helper",
    ]
    before = notebook_digest(source)
    notebook["cells"][1]["execution_count"] = 7
    notebook["cells"][1]["metadata"]["collapsed"] = True
    assert notebook_digest(json.dumps(notebook)) == before
    notebook["cells"][0]["source"] = ["# A ", "toy"]
    assert notebook_digest(json.dumps(notebook)) == before
    notebook["cells"][0]["source"] = ["# Another toy"]
    assert notebook_digest(json.dumps(notebook)) != before
    notebook["cells"][2]["source"] = "%matplotlib inline\nimport replicata.papers.toy.figures"
    assert "replicata.papers.toy.figures" in imports_of_notebook(json.dumps(notebook))
    notebook["cells"][2]["source"] = "def f(:"
    with pytest.raises(RunError, match="cannot be read"):
        imports_of_notebook(json.dumps(notebook))


def test_canonical_json_has_one_text_per_value():
    assert canonical_json({"b": [1, 2.5], "a": "ü"}) == '{"a":"ü","b":[1,2.5]}'
    with pytest.raises(RunError, match="canonical JSON"):
        canonical_json({"a": float("nan")})


def test_seeds_depend_on_every_part():
    seeds = {
        derive_seed(seed, paper, arm, replicate)
        for seed in range(3)
        for paper in ("toy", "other")
        for arm in ("a", "b")
        for replicate in range(100)
    }
    assert len(seeds) == 1200
    assert all(0 <= seed < 2**32 for seed in seeds)
    # printf '[0, "toy", "a", 1]' | sha256sum | cut -c1-8; another value changes every result.
    assert derive_seed(0, "toy", "a", 1) == 0x2E4DD507
