"""What an executed notebook tells about the machine: nothing, and its results stay untouched."""

import base64
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from replicata.workflow import sanitize
from replicata.workflow.notebooks import _as_json
from replicata.workflow.sanitize import Redaction, clean_notebook

SECRET = "hf_0123456789"
REDACTION = Redaction(
    prefixes={
        "/home/ada": "~",
        "/home/ada/replicata": ".",
        "~/replicata": ".",
        "/home/ada/replicata/.venv": "[venv]",
        "/app": "[app]",
        "/tmp": "[tmp]",
    },
    names={"ada": "[user]", "analytical-engine": "[host]"},
    secrets=frozenset({SECRET, SECRET + "-long"}),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/replicata/lib/x.py:3", "./lib/x.py:3"),
        ("in /home/ada/replicata.", "in .."),
        ("File ~/replicata/lib/x.py", "File ./lib/x.py"),
        ("'/home/ada/replicata/.venv/lib/y.py'", "'[venv]/lib/y.py'"),
        ("/home/ada/.cache/z", "~/.cache/z"),
        ("\x1b[32m/home/ada/z\x1b[39m", "\x1b[32m~/z\x1b[39m"),
        ("file:///home/ada/z", "file://~/z"),
        ("<a href='/home/ada/z'>/home/ada/z</a>", "<a href='~/z'>~/z</a>"),
        ("/home/ada/replicata-old/x", "~/replicata-old/x"),
        ("/home/adam/x", "[path]/x"),
        ("/home/adam", "[path]/adam"),
        ("/mnt/big disk", "[path]/big disk"),
        ("open('/mnt/models/llm/model.bin')", "open('[path]/model.bin')"),
        ("/tmp/ipykernel_123/456.py:1: UserWarning", "[cell]:1: UserWarning"),
        ("/tmp/x", "[tmp]/x"),
        ("ada@analytical-engine:~$", "[user]@[host]:~$"),
        ("adagrad, ada-boost and ada_x", "adagrad, ada-boost and ada_x"),
        (f"token={SECRET}-long!", "token=[secret]!"),
        (f"x{SECRET}x", "x[secret]x"),
        ("<f at 0x7f1200ab34cd>", "<f at 0x0>"),
    ],
)
def test_text_is_redacted(text, expected):
    assert REDACTION.text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "and/or 1/2 a/b/c",
        "https://example.org/home/eve",
        "https://example.org/tmp/x",
        "lib/tmp/x and ../tmp/x",
        "</tmp></home/x>",
        "$\\frac{a}{b}/c$",
        "accuracy 0.5 at 0x1f",
        "[a]/app/x",
        "data:image/png;base64,AAAA/home/ada/BBBB/tmp/xx==",
    ],
)
def test_other_text_stays(text):
    assert REDACTION.text(text).replace("[a][app]", "[a]/app") == text


def test_image_data_stays_and_what_follows_it_does_not():
    lines = "\n".join(["/tmp/" + "A" * 71] * 3 + ["/tmp/AA=="])
    svg = f'<image xlink:href="data:image/png;base64,\n{lines}" id="/tmp/x"/>'
    assert REDACTION.text(svg) == svg.replace('"/tmp/x"', '"[tmp]/x"')
    page = '<img src="data:image/png;base64,/home/ada/AA=="> /home/ada/x'
    assert REDACTION.text(page) == '<img src="data:image/png;base64,/home/ada/AA=="> ~/x'


@given(st.text(), st.text())
def test_no_secret_or_home_survives_anywhere(before, after):
    text = REDACTION.text(f"{before}{SECRET}{after} /home/ada/replicata/x {SECRET}")
    assert SECRET not in text
    assert "/home/ada" not in text.removeprefix(REDACTION.text(before))


@given(st.text())
def test_redacting_twice_changes_nothing_more(text):
    once = REDACTION.text(text)
    assert REDACTION.text(once) == once


def test_json_is_redacted_inside_and_has_no_nan():
    value = {"/tmp/k": ["/tmp/x", 1, 1.5, True, None, math.nan], "i": (math.inf, -math.inf)}
    expected = {"[tmp]/k": ["[tmp]/x", 1, 1.5, True, None, "nan"], "i": ["inf", "-inf"]}
    assert REDACTION.value(value) == expected


def test_this_machine_is_known(tmp_path, monkeypatch):
    root = tmp_path / "repository"
    venv = root / ".venv"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "lovelace")
    monkeypatch.setattr(sanitize.sys, "prefix", str(venv))
    monkeypatch.setattr(sanitize.sys, "base_prefix", "/opt/python")
    monkeypatch.setattr(sanitize.tempfile, "gettempdir", lambda: "/scratch/tmp")
    monkeypatch.setattr(sanitize.socket, "gethostname", lambda: "engine.example.org")
    environ = {
        "HF_TOKEN": "hf_abcdefgh",
        "my_api_key": "k-12345678",
        "DB_PASSWORD": "hunter2hunter2",
        "SECRET": "short",
        "PATH": "/usr/bin:/bin",
    }
    found = Redaction.of_this_machine(root, environ)
    assert found.secrets == {"hf_abcdefgh", "k-12345678", "hunter2hunter2"}
    assert found.names["lovelace"] == "[user]"
    text = f"{root}/a {venv}/b {tmp_path}/c ~/repository/d /opt/python/e /scratch/tmp/f"
    assert found.text(text) == "./a [venv]/b ~/c ./d [python]/e [tmp]/f"
    assert found.text("engine.example.org engine lovelace") == "[host] [host] [user]"


def test_names_that_many_machines_share_hide_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", "root")
    monkeypatch.setenv("HOME", "/home/max")
    monkeypatch.setattr(sanitize.socket, "gethostname", lambda: "localhost")
    text = "root mean square, max on localhost"
    assert Redaction.of_this_machine(tmp_path, {}).text(text) == text


PNG = base64.b64encode(b"\x89PN").decode() + "/home/ada/AAAA/tmp/"


@pytest.fixture
def executed():
    """A notebook as papermill leaves it."""
    bundle = {
        "image/png": PNG,
        "text/html": f"<img src='data:image/png;base64,{PNG}'> /tmp/x",
        "text/plain": "/tmp/x",
        "application/json": {"a": math.nan},
        "application/javascript": "alert(1)",
        "application/x-pickle": "gASV",
    }
    about = {"image/png": {"width": 3}, "application/x-pickle": {}, "isolated": True}
    injected = new_code_cell("x = '/home/ada/y'", metadata={"tags": ["injected-parameters"]})
    timed = {"papermill": {"start_time": "2026"}, "execution": {}, "tags": [], "scrolled": True}
    results = [
        new_output("stream", name="stderr", text="/tmp/x"),
        new_output("display_data", data=bundle, metadata=about),
        new_output("display_data", data={"application/x-pickle": "gASV"}),
        new_output("display_data", data={sanitize._WIDGET: {"model_id": "1"}, "text/plain": "0%"}),
        new_output("error", ename="E", evalue="/tmp/x", traceback=["File /tmp/x"]),
    ]
    author = new_code_cell("open('/tmp/x')", metadata=timed, outputs=results, execution_count=1)
    text = new_markdown_cell("in /tmp/x", metadata={"papermill": {}, "tags": ["keep"]})
    metadata = {
        "kernelspec": {"name": "ada-env", "display_name": "Ada's", "language": "python"},
        "language_info": {"name": "python", "version": "3.11.7"},
        "papermill": {"input_path": "/home/ada/x", "parameters": {}, "duration": 1.5},
        "widgets": {"application/vnd.jupyter.widget-state+json": {}},
        "vscode": {},
    }
    notebook = new_notebook(cells=[text, injected, author], metadata=metadata)
    return json.loads(_as_json(clean_notebook(notebook, REDACTION)), parse_constant=pytest.fail)


def test_only_what_names_no_machine_is_left_of_the_metadata(executed):
    assert executed["metadata"] == {
        "kernelspec": {
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python", "version": "3.11.7"},
    }
    assert [cell["metadata"] for cell in executed["cells"]] == [
        {"tags": ["keep"]},
        {"tags": ["injected-parameters"]},
        {},
    ]


def test_what_was_computed_is_redacted_and_what_was_written_stays(executed):
    text, injected, author = executed["cells"]
    assert text["source"] == ["in /tmp/x"]
    assert author["source"] == ["open('/tmp/x')"]
    assert injected["source"] == ["x = '~/y'"]
    assert injected["id"] == "injected-parameters"
    stream, _, error = author["outputs"]
    assert stream["text"] == ["[tmp]/x"]
    assert (error["evalue"], error["traceback"]) == ("[tmp]/x", ["File [tmp]/x"])


def test_outputs_hold_known_kinds_only_and_images_byte_for_byte(executed):
    display = executed["cells"][2]["outputs"][1]
    assert display["data"] == {
        "image/png": PNG,
        "text/html": [f"<img src='data:image/png;base64,{PNG}'> [tmp]/x"],
        "text/plain": ["[tmp]/x"],
        "application/json": {"a": "nan"},
    }
    assert display["metadata"] == {"image/png": {"width": 3}}
    assert "gASV" not in json.dumps(executed)


def test_a_nan_is_never_written_as_such():
    with pytest.raises(ValueError, match="JSON compliant"):
        _as_json(new_notebook(metadata={"x": math.nan}))


def test_the_repository_of_these_tests_is_no_part_of_their_text():
    root = Path(__file__).resolve().parents[2]
    assert str(root) not in Redaction.of_this_machine(root).text(f"at {root}/lib and {root}")
