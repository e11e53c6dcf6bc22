"""Executing notebooks for real. Few kernels are started; each answers many questions."""

import base64
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from replicata.errors import RunError
from replicata.workflow import sanitize
from replicata.workflow.notebooks import execute_notebook, main
from tests.workflow.notebook_files import code, outputs, printed, write

SECRET = "hf_abcdefgh12345"
USER = "lovelace"
PIXEL = base64.b64encode(b"\x89PN").decode() + "/tmp/home"

CELLS = (
    {"cell_type": "markdown", "source": "# A story", "metadata": {}},
    code("seed = 1\nrate = 0.5\nname = 'a'\nsizes = []\nplace = ''", "parameters"),
    code("print(seed, type(rate).__name__, rate, repr(name), sizes)"),
    code(
        "import builtins, getpass, os, socket, sys, tempfile, traceback\n"
        "print(os.getcwd(), sys.executable, sys.base_prefix, os.path.expanduser('~/x'))\n"
        "print(tempfile.gettempdir() + '/x', getpass.getuser(), socket.gethostname())\n"
        "print(os.environ['SOME_API_KEY'], hasattr(builtins, 'from_profile'), 'started' in dir())\n"
        "import statistics\n"
        "try:\n    statistics.mean([])\nexcept Exception:\n    traceback.print_exc()\n"
        "import warnings; warnings.warn('careful')"
    ),
    code("print({'a', 'b', 'c', 'd', 'e', 'f'}, object())"),
    code(
        "import time\n"
        "for i in range(3):\n"
        "    print(i, flush=True); print(-i, file=sys.stderr, flush=True); time.sleep(0.02)"
    ),
    code(
        "from IPython.display import JSON, display\n"
        f"display({{'image/png': {PIXEL!r}, 'application/x-pickle': 'gASV'}}, raw=True)\n"
        "display(JSON({'x': float('nan')}))\n"
        "from tqdm.auto import tqdm\n"
        "for _ in tqdm(range(2)): pass"
    ),
    code("import replicata; print(os.path.dirname(replicata.__file__))"),
)
PARAMETERS = {"seed": 7, "rate": 2, "name": "007", "sizes": [1e-4]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same notebook executed twice, on a machine with much to tell."""
    root = tmp_path_factory.mktemp("repository")
    startup = root / "profile/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("import builtins; builtins.from_profile = True")
    (root / "startup.py").write_text("started = True")
    metadata = {
        "kernelspec": {"name": "no-such-kernel", "display_name": "Mine", "language": "python"},
        "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
    }
    source = write(root / "a.ipynb", *CELLS, metadata=metadata)
    before = source.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_API_KEY", SECRET)
        patch.setenv("LOGNAME", USER)
        patch.setenv("IPYTHONDIR", str(root / "profile"))
        patch.setenv("PYTHONSTARTUP", str(root / "startup.py"))
        patch.delenv("PYTHONHASHSEED", raising=False)
        patch.chdir(root)
        for name in ("one.ipynb", "two.ipynb"):
            values = PARAMETERS | {"place": str(root / "results")}
            execute_notebook(source, root / name, values, root=root)
    assert source.read_bytes() == before
    return root


@pytest.fixture(scope="module")
def executed(runs):
    return runs / "one.ipynb"


def test_two_executions_write_the_same_bytes(runs, executed):
    assert executed.read_bytes() == (runs / "two.ipynb").read_bytes()


def test_nothing_but_the_output_is_left(runs):
    assert {path.name for path in runs.iterdir()} == {
        "a.ipynb",
        "one.ipynb",
        "two.ipynb",
        "profile",
        "startup.py",
    }
    assert not list((runs / "profile").rglob("*.sqlite"))


def test_parameters_arrive_with_value_and_type(executed):
    assert printed(executed).startswith("7 float 2.0 '007' [0.0001]\n")


def test_the_output_names_no_machine(runs, executed):
    text = executed.read_text()
    for secret in (
        str(runs),
        f"{Path.home()}/",
        sys.prefix,
        sys.base_prefix,
        f"{tempfile.gettempdir()}/x",
        SECRET,
        USER,
    ):
        assert secret not in text
    for name in sanitize.Redaction.of_this_machine(runs).names:
        assert name not in text
    said = printed(executed)
    assert ". [venv]/bin/python [python] ~/x\n[tmp]/x [user] " in said
    assert "[secret] " in said
    assert "[python]/lib/python3.11/statistics.py" in said
    assert "[cell]:10: UserWarning: careful" in said
    assert r"place = \"./results\"" in text


def test_the_users_own_start_up_files_do_not_take_part(executed):
    assert "[secret] False False" in printed(executed)


def test_no_run_leaves_traces_of_its_time(executed):
    document = json.loads(executed.read_text(), parse_constant=pytest.fail)
    assert set(document["metadata"]) == {"kernelspec", "language_info"}
    assert document["metadata"]["kernelspec"]["name"] == "python3"
    assert {key for cell in document["cells"] for key in cell["metadata"]} == {"tags"}
    assert "papermill" not in executed.read_text()


def test_streams_do_not_show_when_they_were_flushed(executed):
    flushed = outputs(executed)[5]
    assert [(output["name"], "".join(output["text"])) for output in flushed] == [
        ("stdout", "0\n1\n2\n"),
        ("stderr", "0\n-1\n-2\n"),
    ]


def test_images_stay_and_pickles_and_progress_bars_go(executed):
    image, number, *_ = outputs(executed)[6]
    assert image["data"] == {"image/png": PIXEL}
    assert number["data"]["application/json"] == {"x": "nan"}
    assert "it/s" not in executed.read_text()


def test_the_kernel_runs_the_code_of_its_runner(executed):
    import replicata

    package = os.path.dirname(replicata.__file__)
    repository = Path(package).parents[1]
    assert not str(repository).startswith(str(executed.parent))
    assert (
        printed(executed)
        .rstrip()
        .endswith(sanitize.Redaction.of_this_machine(executed.parent).text(package))
    )


PARAMETERS_CELL = code("mode = 'fail'", "parameters")
MODES = code(
    "import os, sys, time\n"
    "print('so far', flush=True)\n"
    "if mode == 'fail': raise ValueError('first line\\nsecond line ' + os.getcwd())\n"
    "if mode == 'killed': time.sleep(0.5); os.kill(os.getpid(), 9)\n"
    "if mode == 'exit': sys.exit()\n"
    "if mode == 'slow': time.sleep(600)"
)


@pytest.fixture
def attempt(tmp_path):
    """Execute a notebook that can fail in each way; return the sentence and the failed notebook."""
    source = write(tmp_path / "a.ipynb", PARAMETERS_CELL, MODES, code("print('the end')"))
    output = tmp_path / "out.ipynb"

    def execute(mode, **options):
        output.write_text("an earlier result")
        with pytest.raises(RunError) as caught:
            execute_notebook(source, output, {"mode": mode}, cwd=tmp_path, root=tmp_path, **options)
        assert output.read_text() == "an earlier result"
        sentence = str(caught.value)
        assert "\n" not in sentence
        return sentence

    execute.source, execute.output = source, output
    execute.failed = tmp_path / "out.failed.ipynb"
    return execute


def test_a_failing_cell_is_named_and_the_next_success_removes_its_notebook(attempt, tmp_path):
    sentence = attempt("fail")
    assert sentence == (
        "a.ipynb, cell 2: ValueError: first line second line .; "
        "the traceback is in out.failed.ipynb"
    )
    text = attempt.failed.read_text()
    assert "so far" in text
    assert "ValueError" in text
    assert str(tmp_path) not in text
    execute_notebook(attempt.source, attempt.output, {"mode": "none"}, root=tmp_path)
    assert "the end" in attempt.output.read_text()
    assert not attempt.failed.exists()


def test_a_killed_kernel_is_reported_as_that(attempt):
    sentence = attempt("killed")
    assert "a.ipynb, cell 2: the kernel was killed (SIGKILL), probably because memory" in sentence
    *_, running, after = outputs(attempt.failed)
    assert [output["output_type"] for output in running] == ["stream", "error"]
    assert after == []


def test_a_notebook_that_exits_has_not_succeeded(attempt, tmp_path):
    kept = tmp_path / "logs" / "a.failed.ipynb"
    sentence = attempt("exit", failed=kept)
    assert "a.ipynb, cell 2: SystemExit" in sentence
    assert "logs/a.failed.ipynb" in sentence
    assert kept.is_file()
    assert not attempt.failed.exists()


def test_a_cell_can_have_a_time_limit(attempt):
    assert "a.ipynb, cell 2: the cell took longer than 1 seconds" in attempt("slow", timeout=1)
    assert "took longer" in attempt.failed.read_text()


def test_a_cell_that_was_left_out_is_a_failure(tmp_path):
    cells = (code("", "parameters"), code("print(1)", "skip-execution"))
    source = write(tmp_path / "a.ipynb", *cells)
    with pytest.raises(RunError, match="cell 2: the cell was not executed"):
        execute_notebook(source, tmp_path / "out.ipynb", {}, root=tmp_path)


def test_a_kernel_that_does_not_start_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "ipykernel").mkdir()
    (tmp_path / "ipykernel/__init__.py").write_text("raise ImportError('broken')")
    monkeypatch.setattr("replicata.workflow.notebooks._START_SECONDS", 30)
    source = write(tmp_path / "a.ipynb", code("", "parameters"))
    with pytest.raises(RunError, match=r"a\.ipynb: the kernel did not start"):
        execute_notebook(source, tmp_path / "out.ipynb", {}, root=tmp_path)
    assert not list(tmp_path.glob("out*"))


def test_the_command_line_says_one_sentence_and_gives_the_exit_code(tmp_path, monkeypatch, capsys):
    previous = signal.getsignal(signal.SIGTERM)
    try:
        source = write(tmp_path / "a.ipynb", code("seed = 1", "parameters"))
        assert main([str(source), str(tmp_path / "out.ipynb"), "-p", "sed=2"]) == 2
    finally:
        signal.signal(signal.SIGTERM, previous)
    said = capsys.readouterr()
    assert said.err.startswith("error: a.ipynb has no parameter 'sed'")
    assert said.out == ""
