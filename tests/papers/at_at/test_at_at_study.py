"""Study S1, its registration, the language-model optimiser, traces and the command line."""

import json
import sys
from types import SimpleNamespace

import mcp.client.stdio  # noqa: F401  (binds stderr, before a test replaces it)
import numpy as np
import pandas as pd
import pytest
from test_at_at_method import Words
from typer.testing import CliRunner

from replicata.errors import NotRun, UsageError
from replicata.papers.at_at import registration
from replicata.papers.at_at.analysis import compare
from replicata.papers.at_at.bfcl import Pool, load_pool, subset
from replicata.papers.at_at.cli import app, edited_source
from replicata.papers.at_at.coder import apply_diff, code
from replicata.papers.at_at.edits import Policy, apply_edit, unified_diff
from replicata.papers.at_at.encoder import Encoder
from replicata.papers.at_at.experiment import Params, cells, run
from replicata.papers.at_at.routing_study import ARMS, RoutingBench
from replicata.papers.at_at.tau2 import read_simulations, to_traces
from replicata.papers.at_at.tools import Tool, tools_sha256
from replicata.papers.at_at.traces import Trace, check_traces, read_traces, write_traces
from replicata.workflow.cells import Cell
from replicata.workflow.layout import repo_root
from replicata.workflow.params import load_params

EXAMPLE = repo_root() / "docs" / "examples" / "at_at"


@pytest.fixture(scope="module")
def encoder():
    return Encoder()


@pytest.fixture(scope="module")
def bench():
    return RoutingBench(subset(load_pool(), 48, 30), Words(), 3)


def test_the_data_are_what_the_protocol_says():
    pool = load_pool()
    golds = [request.gold for request in pool.requests]
    frequent = [g for g in set(golds) if golds.count(g) >= 6]
    assert (len(pool.requests), len(pool.tools), len(set(golds))) == (1053, 457, 206)
    assert (len(frequent), sum(golds.count(g) for g in frequent)) == (33, 741)


def test_an_embedding_is_a_unit_vector_and_depends_on_the_text_alone(encoder):
    before = encoder.weights_sha256()
    texts = ["a red car", "The quick brown fox jumps.", "a red automobile"]
    together, alone = encoder.encode(texts), Encoder(cache=False).encode(texts[::-1])[::-1]
    # Rounding of float32 alone may differ: on some processors the same call twice does.
    assert together == pytest.approx(alone, abs=1e-6)
    assert np.linalg.norm(together, axis=1) == pytest.approx(1, abs=1e-6)
    assert together[0] @ together[2] > 0.7 > together[0] @ together[1]
    assert encoder.weights_sha256() == before


def test_every_request_is_held_out_once_per_halving(bench):
    masks = [bench.train_mask(0, direction) for direction in (0, 1)]
    assert (masks[0] != masks[1]).all()
    for tool in np.unique(bench.gold):
        members = masks[0][bench.gold == tool]
        assert abs(2 * members.sum() - len(members)) <= 1


def test_an_optimiser_never_sees_a_held_out_request(bench):
    train = bench.train_mask(0, 0)
    seen = {trace.task_id for trace in bench.train_traces(train)}
    held = {r.id for r, t in zip(bench.pool.requests, train, strict=True) if not t}
    assert not seen & held
    for arm in ARMS:
        optimised = bench.run(arm, 0, 0).optimised
        for entry in optimised.log if optimised else ():
            assert set(entry.edit.evidence) <= seen


def test_arms_leave_the_agent_and_the_names_alone(bench):
    names = [tool.name for tool in bench.pool.tools]
    for arm in ARMS:
        outcome = bench.run(arm, 0, 1)
        assert [tool.name for tool in outcome.tools] == names
        scores = bench.scores(outcome.tools, outcome.prefix)
        assert (outcome.routed == scores.argmax(axis=1)).mean() > 0.99
    assert bench.run("examples", 0, 0).rollouts == 0


def test_an_orthogonal_tool_changes_no_other_choice(bench):
    pool = Pool(bench.pool.requests, (*bench.pool.tools, Tool("zzqx", "zzqxzz zzqyzz")))
    wider = RoutingBench(pool, Words(), 3)
    assert (wider.run("base", 0, 0).routed == bench.run("base", 0, 0).routed).all()


def test_the_registered_answer_is_the_studys(monkeypatch, bench):
    monkeypatch.setattr(registration, "_bench", lambda requests, seed: bench)
    fake = SimpleNamespace(weights_sha256=lambda: "w", encode=Words().encode)
    monkeypatch.setattr(bench, "encoder", fake)
    units = {r.id: r.gold for r in bench.pool.requests}
    settings = SimpleNamespace(units=units)
    monkeypatch.setattr(registration, "settings_of", lambda protocol: settings)
    registration._outcome.cache_clear()
    protocol = SimpleNamespace(seeds=SimpleNamespace(global_seed=3))
    registered = SimpleNamespace(protocol=protocol)
    for i, request in enumerate(bench.pool.requests[:12]):
        cell = SimpleNamespace(unit=request.id, params={"arm": "examples", "repeat": 0})
        answer = registration.answer(registered, cell, None)
        direction = 0 if not bench.train_mask(0, 0)[i] else 1
        outcome = bench.run("examples", 0, direction)
        assert answer.response["tool"] == outcome.tools[outcome.routed[i]].name
        assert registration.score(answer.response) == (outcome.routed[i] == bench.gold[i])
        assert answer.model == "sha256:w"
    registration._outcome.cache_clear()


def test_the_comparison_clusters_by_tool():
    rows = [
        {"arm": arm, "unit": unit, "metric": "correct", "value": float(value), "task": f"{unit}{i}"}
        for unit, new in (("a", [1, 1, 1]), ("b", [1, 0, 0]))
        for i, value_new in enumerate(new)
        for arm, value in (("new", value_new), ("base", 0))
    ]
    found = compare(pd.DataFrame(rows), "correct", "new", "base", ["task"], 0)
    assert found.test.p_value == 1 / 4
    assert found.test.estimate == pytest.approx(4 / 6)
    assert found.scaled.mean() == pytest.approx(4 / 6)
    assert found.by_tool.tolist() == pytest.approx([1, 1 / 3])


# ---------------------------------------------------------------------------------------------
# The language-model optimiser

TOOLS = (
    Tool("alpha", "Handles the request.", {"properties": {"p": {"description": "x"}}}),
    Tool("beta", "Weather."),
)


def say(called, /, **arguments):
    return {"id": called, "name": called, "arguments": json.dumps(arguments)}


def scripted(*turns):
    left = list(turns)

    def chat(messages, tools, seed):
        assert {t["function"]["name"] for t in tools} >= {"list_traces", "propose_edit"}
        return {"content": "", "tool_calls": left.pop(0) if left else []}

    return chat


def one_trace():
    return Trace.model_validate(
        {
            "trace_id": "t1",
            "server": "x",
            "tools_sha256": tools_sha256(TOOLS),
            "task_id": "t1",
            "request": "where is it",
            "steps": [{"i": 0, "tool": "beta"}],
            "eval": {"pass": False},
        }
    )


def diff_of(text):
    from replicata.papers.at_at.edits import Edit

    edit = Edit(kind="note", tool="alpha", text=text, evidence=("t1",))
    return unified_diff(TOOLS[:1], apply_edit(edit, TOOLS[:1]))


def test_a_valid_diff_becomes_an_edit_with_its_evidence():
    good = say("propose_edit", name="alpha", diff=diff_of("Tracks parcels."), evidence=["t1"])
    chat = scripted([say("list_traces"), say("read_tool", name="alpha")], [good])
    coded = code(chat, [one_trace()], TOOLS, Policy(), 1)
    assert coded.ended == "done"
    assert [e.kind for e in coded.edits] == ["rewrite"]
    assert coded.edits[0].text == "Handles the request. Tracks parcels."


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"diff": "nonsense"}, "no hunk"),
        ({"evidence": ["t9"]}, "names no trace"),
        ({"evidence": []}, "names no trace"),
        ({"name": "gamma"}, "no tool 'gamma'"),
        (
            {"diff": '@@ -1 +1 @@\n-    "name": "alpha",\n+    "name": "omega",\n'},
            "changes nothing, or more",
        ),
    ],
)
def test_invalid_edits_are_logged_and_three_in_a_row_stop(change, reason):
    given = {"name": "alpha", "diff": diff_of("x"), "evidence": ["t1"], **change}
    bad = say("propose_edit", **given)
    coded = code(scripted([bad], [bad], [bad], [bad]), [one_trace()], TOOLS, Policy(), 1)
    assert coded.edits == []
    assert len(coded.invalid) == 3
    assert reason in coded.invalid[0]
    assert "in a row" in coded.ended


def test_nothing_but_the_four_tools_can_be_reached():
    seen = []

    def chat(messages, tools, seed):
        seen.extend(m["content"] for m in messages if m["role"] == "tool")
        return {"content": "", "tool_calls": [] if seen else [say("read_file", path="/etc/hosts")]}

    code(chat, [one_trace()], TOOLS, Policy(), 1)
    assert seen == ["error: there is no 'read_file'"]


def test_a_diff_does_not_need_right_line_numbers():
    assert apply_diff("a\nb\nc\n", "@@ -9,9 +7 @@\n b\n-c\n+d\n") == "a\nb\nd\n"
    with pytest.raises(ValueError, match="not there"):
        apply_diff("a\n", "@@ -1 +1 @@\n-z\n")


def test_an_openai_compatible_endpoint_drives_it():
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from replicata.papers.at_at.coder import Endpoint

    good = say("propose_edit", name="alpha", diff=diff_of("Tracks parcels."), evidence=["t1"])
    calls = [
        [
            {
                "id": "1",
                "type": "function",
                "function": {"name": good["name"], "arguments": good["arguments"]},
            }
        ],
        None,
    ]
    asked = []

    class Recorded(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            message = {"role": "assistant", "content": "", "tool_calls": calls.pop(0)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = json.dumps(
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 0,
                    "model": "m",
                    "choices": [choice],
                }
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Recorded)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        chat = Endpoint.open(url, "m", None, 0.2)
        coded = code(chat, [one_trace()], TOOLS, Policy(), 7)
    finally:
        server.shutdown()
        server.server_close()
    assert [e.tool for e in coded.edits] == ["alpha"]
    assert (asked[0]["seed"], asked[0]["temperature"], len(asked)) == (7, 0.2, 2)


# ---------------------------------------------------------------------------------------------
# Traces, files and the command line


def test_traces_survive_a_round_trip(tmp_path):
    write_traces(tmp_path / "t.jsonl", [one_trace()])
    assert read_traces(tmp_path / "t.jsonl") == [one_trace()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eval": None}, "trace t1 has no evaluation; AT-AT needs pass/fail"),
        ({"steps": [{"i": 0, "tool": "gone"}]}, "calls tool 'gone', which the server lacks"),
        ({"tools_sha256": "f" * 64}, "--allow-drift"),
    ],
)
def test_bad_traces_end_in_a_sentence(change, message):
    values = {**one_trace().to_json(), **change}
    with pytest.raises(UsageError, match=message):
        check_traces([Trace.model_validate(values)], TOOLS)


def test_no_traces_and_broken_lines_end_in_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="no traces"):
        check_traces([], TOOLS)
    path = tmp_path / "t.jsonl"
    path.write_text('{"trace_id": 1}\n')
    with pytest.raises(UsageError, match=r"t\.jsonl, line 1: "):
        read_traces(path)
    with pytest.raises(UsageError, match="no such file"):
        read_traces(tmp_path / "none.jsonl")


def test_diagnose_prints_a_diff_and_writes_only_when_told(tmp_path):
    source = tmp_path / "server.py"
    source.write_text((EXAMPLE / "server.py").read_text())
    command = [
        "diagnose",
        str(EXAMPLE / "traces.jsonl"),
        "--server",
        f"{sys.executable} {source}",
        "--source",
        str(source),
        "--start-timeout",
        "60",
    ]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "parcel: 0 calls, errors: none, 2 misroutes" in shown.output
    assert "traces t1, t2" in shown.output
    assert '+    """Handle the request. Example requests:' in shown.output
    assert "Smith" not in shown.output
    assert source.read_text() == (EXAMPLE / "server.py").read_text()
    written = CliRunner().invoke(app, [*command, "--apply"])
    assert "wrote server.py" in written.output
    compile(source.read_text(), "server.py", "exec")
    assert "Example requests:" in source.read_text()
    protected = CliRunner().invoke(app, [*command, "--allow-drift", "--protect", "parcel"])
    assert "refused (tool parcel is protected)" in protected.output


def test_a_text_that_is_not_in_the_source_once_is_refused():
    after = (TOOLS[0].with_description("Handles the request. More."),)
    with pytest.raises(UsageError, match="there 2 times"):
        edited_source('"Handles the request." "Handles the request."', TOOLS[:1], after, "s.py")


def test_tau2_files_are_read_and_converted(tmp_path, monkeypatch):
    run_ = {
        "task_id": 3,
        "trial": 0,
        "reward_info": {"reward": 1.0},
        "messages": [
            {"role": "user", "content": "cancel it"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "name": "cancel", "arguments": {"id": "x"}}],
            },
            {"role": "tool", "id": "c", "content": "ok", "error": False},
        ],
    }
    path = tmp_path / "airline-base.json"
    path.write_text(json.dumps({"simulations": [run_]}))
    (trace,) = to_traces(path, "0")
    assert (trace.request, trace.passed, trace.steps[0].tool) == ("cancel it", True, "cancel")
    monkeypatch.setattr("replicata.papers.at_at.tau2.repo_root", lambda: tmp_path)
    values = load_params("at_at", "paper").model_dump()
    values["tau2"] = {"domains": ["airline"], "results": ".", "arms": ["base"]}
    params = Params.model_validate(values)
    (cell,) = [c for c in cells(params) if c.group == "tau2"]
    table = run(params, cell)
    assert table[["unit", "value"]].to_numpy().tolist() == [["3", 1.0]]
    (tmp_path / "airline-base.json").unlink()
    with pytest.raises(NotRun, match="run tau2-bench"):
        run(params, cell)
    path.write_text("{}")
    with pytest.raises(UsageError, match="no tau2-bench simulation file"):
        read_simulations(path)


def test_cells_of_all_profiles_are_planned():
    for profile, count in (("smoke", 2), ("cpu", 8), ("paper", 10)):
        planned = cells(load_params("at_at", profile))
        assert len(planned) == count
        assert all(isinstance(cell, Cell) for cell in planned)


@pytest.mark.parametrize(("texts", "expected"), [("name", 0.625), ("own", 0.899)])
def test_the_router_reaches_the_accuracy_of_an_independent_pilot(encoder, texts, expected):
    pool = load_pool()
    names = [tool.name for tool in pool.tools]
    queries = encoder.encode([r.text for r in pool.requests])
    scores = queries @ encoder.encode([t.routing_text for t in pool.tools]).T
    if texts == "name":
        chosen = [names[j] for j in scores.argmax(axis=1)]
    else:
        chosen = [
            max(r.candidates, key=lambda name, i=i: scores[i, names.index(name)])
            for i, r in enumerate(pool.requests)
        ]
    right = np.mean([c == r.gold for c, r in zip(chosen, pool.requests, strict=True)])
    assert right == pytest.approx(expected, abs=0.01)
