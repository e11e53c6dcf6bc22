"""Servers, agent, miner and wrappers over real MCP calls."""

import ast
import sys
from pathlib import Path

import anyio
import pytest
from mcp import Client
from test_at_at_method import Words

import replicata.errors
from replicata.errors import ResourceError
from replicata.papers.at_at import catalogue, servers_study
from replicata.papers.at_at.agent import Router
from replicata.papers.at_at.edits import Edit
from replicata.papers.at_at.miner import (
    diagnose,
    error_edits,
    limit_edits,
    note_edits,
    shape_edits,
    trim_edits,
)
from replicata.papers.at_at.servers import Database, Variant, listed_tools
from replicata.papers.at_at.serving import SERVERS, build_server, connect, list_tools
from replicata.papers.at_at.shapes import read_shape, shape_text, to_shape
from replicata.papers.at_at.tasks import make_tasks
from replicata.papers.at_at.tools import Tool, Wrapper, tools_sha256
from replicata.papers.at_at.traces import Trace

SPEC = SERVERS["orders"]
ROOM = "replicata.papers.at_at"
LIB = str(Path(replicata.errors.__file__).parents[1])


def call(variant, name, args, wrappers=()):
    database = Database(SPEC, variant)
    tools = [
        t if t.name != name else Tool(t.name, t.description, t.schema, tuple(wrappers))
        for t in listed_tools(SPEC, variant)
    ]

    async def run():
        async with Client(build_server(SPEC, variant, database, tools)) as client:
            result = await client.call_tool(name, args)
            return result.is_error, result.content[0].text, database.changes()

    return anyio.run(run)


CRASH = Variant(errors={"track_parcel": "crash"})


def test_the_sdk_hides_the_text_of_a_crash_until_it_is_surfaced():
    failed, text, _ = call(CRASH, "track_parcel", {"order_id": "1001"})
    assert (failed, text) == (True, "Error executing tool track_parcel")
    wrapper = Wrapper("surface_error", None, "")
    failed, text, _ = call(CRASH, "track_parcel", {"order_id": "1001"}, [wrapper])
    assert failed
    assert "expected the shape ORD-dddd" in text


def test_an_error_text_in_a_successful_result_is_marked():
    variant = Variant(errors={"track_parcel": "as_text"})
    assert call(variant, "track_parcel", {"order_id": "1001"})[0] is False
    marked = call(variant, "track_parcel", {"order_id": "1001"}, [Wrapper("mark_error", None, "")])
    assert marked[0] is True


def test_unknown_tools_and_missing_arguments_are_error_results():
    failed, text, _ = call(Variant(), "track_parcel", {})
    assert failed
    assert "order_id" in text
    assert call(Variant(), "no_such_tool", {})[0] is True


@pytest.mark.parametrize(
    ("name", "args", "wrapper", "expected"),
    [
        ("track_parcel", {"order_id": "1001"}, ("normalise", "order_id", "ORD-dddd"), "ORD-1001"),
        (
            "list_orders_by_status",
            {"status": "packed"},
            ("normalise", "status", "capitals"),
            '"more": false',
        ),
    ],
)
def test_normalising_widens(name, args, wrapper, expected):
    assert call(Variant(), name, args)[0] is True
    failed, text, _ = call(Variant(), name, args, [Wrapper(*wrapper)])
    assert not failed
    assert expected in text


def test_limits_and_bloat_are_repaired():
    variant = Variant(
        limits={"list_orders_by_status": 3}, bloated=frozenset({"list_orders_by_status"})
    )
    args = {"status": "PACKED"}
    _, text, _ = call(variant, "list_orders_by_status", args)
    assert '"more": true' in text
    wrappers = [Wrapper("raise_limit", "limit", "100"), Wrapper("trim_output", None, "audit_log")]
    _, fixed, _ = call(variant, "list_orders_by_status", args, wrappers)
    assert '"more": false' in fixed
    assert "audit_log" not in fixed


def test_an_edited_listing_comes_back_as_it_was_made():
    tools = list(listed_tools(SPEC, Variant()))
    tools[0] = tools[0].with_description("Something else.").with_param_text("order_id", "Other.")

    async def listed():
        server = build_server(SPEC, Variant(), Database(SPEC, Variant()), tools)
        async with Client(server) as client:
            once = await list_tools(client)
        async with Client(build_server(SPEC, Variant(), Database(SPEC, Variant()), once)) as client:
            return once, await list_tools(client)

    once, twice = anyio.run(listed)
    assert once[0].description == "Something else."
    assert once[0].params["order_id"]["description"] == "Other."
    assert tools_sha256(once) == tools_sha256(twice)


def test_in_process_and_stdio_give_the_same_trace():
    tasks = make_tasks(SPEC, "train", 1, 0)[:3]
    router = Router(Words())

    async def traced(client):
        tools = await list_tools(client)
        runs = [await router.run(client, tools, task.request) for task in tasks]
        return [[s.model_dump(exclude={"ms"}) for s in run.steps] for run in runs]

    async def in_process():
        async with Client(build_server(SPEC, Variant(), Database(SPEC, Variant()))) as client:
            return await traced(client)

    async def by_stdio():
        # The SDK starts servers in a bare environment, without PYTHONPATH.
        program = (
            f"import sys; sys.path.insert(0, {LIB!r}); "
            "from replicata.papers.at_at.serving import main; main(['orders'])"
        )
        command = [sys.executable, "-c", program]
        async with connect(command, 60) as client:
            return await traced(client)

    assert anyio.run(in_process) == anyio.run(by_stdio)


def test_a_server_that_does_not_start_ends_in_a_sentence():
    async def start():
        async with connect([sys.executable, "-c", "import time; time.sleep(30)"], 0.5):
            pass

    with pytest.raises(ResourceError, match=r"did not (answer|start)"):
        anyio.run(start)


def test_gold_calls_pass_and_splits_share_neither_requests_nor_entities():
    for spec in SERVERS.values():
        train, heldout = (make_tasks(spec, split, 4, 5) for split in ("train", "heldout"))
        assert not {t.request for t in train} & {t.request for t in heldout}
        ids = [
            {v for t in tasks for k, v in t.args.items() if k.endswith("_id")}
            for tasks in (train, heldout)
        ]
        assert not ids[0] & ids[1]
        assert all(t.values or t.changes for t in (*train, *heldout))


def test_three_seeds_plant_each_type_once_and_two_decoys_each():
    for spec in SERVERS.values():
        draws = [catalogue.draw(spec, number, 7) for number in range(3)]
        planted = sorted(p.defect for plants in draws for p in plants)
        assert planted == sorted([*catalogue.REPAIRABLE, *catalogue.DECOYS * 3])
        for plants in draws:
            assert len({p.tool for p in plants}) == 6
            fixed = catalogue.repaired(spec, plants)
            assert fixed.lacking or fixed.wrong
            assert not fixed.errors
            assert not fixed.descriptions


def test_the_miner_cannot_see_the_catalogue_or_the_tasks():
    room = Path(LIB) / "replicata" / "papers" / "at_at"
    seen, waiting = set(), ["miner", "coder"]
    while waiting:
        name = waiting.pop()
        if name in seen or not (room / f"{name}.py").is_file():
            continue
        seen.add(name)
        for node in ast.walk(ast.parse((room / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOM):
                waiting += [node.module.removeprefix(ROOM).lstrip(".")]
                waiting += [alias.name for alias in node.names]
    assert "method" in seen
    assert not seen & {"catalogue", "tasks", "servers_study"}


# ---------------------------------------------------------------------------------------------
# Detectors: what triggers each, and what must not


def made(key, steps, *, passed=False, expected=None, values=()):
    checks = []
    if expected:
        checks.append({"name": "call", "ok": passed, "expected": expected})
    if values:
        checks.append({"name": "values", "ok": passed, "expected": list(values)})
    return Trace.model_validate(
        {
            "trace_id": key,
            "server": "x",
            "tools_sha256": "0",
            "task_id": key,
            "request": "r",
            "steps": [{"i": i, **step} for i, step in enumerate(steps)],
            "eval": {"pass": passed, "checks": checks},
        }
    )


LISTED = (
    Tool(
        "t",
        "d",
        {
            "properties": {
                "p": {"type": "string", "description": ""},
                "limit": {"type": "integer", "description": ""},
            },
            "required": ["p"],
        },
    ),
)


def two(steps, **rest):
    return [made(key, steps, **rest) for key in ("a", "b")]


def test_shapes_from_expected_calls_and_from_repaired_calls():
    wanted = {"tool": "t", "args": {"p": "ORD-1042"}}
    got = [{"tool": "t", "args": {"p": "1042"}}]
    edits = shape_edits(two(got, expected=wanted), LISTED, implementations=True)
    assert [(e.kind, e.text) for e in edits] == [
        ("shape", "Shape: ORD-dddd."),
        ("normalise", "ORD-dddd"),
    ]
    repaired = [
        {"tool": "t", "args": {"p": "3 May 2026"}, "is_error": True},
        {"tool": "t", "args": {"p": "2026-05-03"}},
    ]
    (edit,) = shape_edits(two(repaired, passed=True), LISTED, implementations=False)
    assert edit.text == "Shape: dddd-dd-dd."
    same = [{"tool": "t", "args": {"p": "ORD-1042"}}]
    assert shape_edits(two(same, expected=wanted), LISTED, implementations=True) == []
    assert shape_edits(two(got, expected=wanted)[:1], LISTED, implementations=True) == []


def test_a_factor_of_a_hundred_is_cents_and_is_never_normalised():
    steps, wanted = [{"tool": "t", "args": {"p": 12.5}}], {"tool": "t", "args": {"p": 1250}}
    edits = shape_edits(two(steps, expected=wanted), LISTED, implementations=True)
    assert [(e.kind, e.text) for e in edits] == [("shape", "In cents.")]
    other = {"tool": "t", "args": {"p": 1300}}
    assert shape_edits(two(steps, expected=other), LISTED, implementations=True) == []


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ({"is_error": True, "error_kind": "bare"}, "surface_error"),
        ({"result_text": "Error: no"}, "mark_error"),
        ({"is_error": True, "error_kind": "protocol"}, "to_result_error"),
    ],
)
def test_unreadable_errors(step, kind):
    traces = two([{"tool": "t", **step}])
    assert [e.kind for e in error_edits(traces, LISTED)] == [kind]
    assert error_edits(traces[:1], LISTED) == []
    readable = {"tool": "t", "is_error": True, "error_kind": "tool"}
    assert error_edits(two([readable]), LISTED) == []
    assert diagnose(traces, LISTED)[0].calls == 2


def test_cut_results():
    steps = [{"tool": "t", "result_text": '{"rows": [1, 2, 3], "more": true}'}]
    (raised,) = limit_edits(two(steps), LISTED, implementations=True)
    assert (raised.kind, raised.param) == ("raise_limit", "limit")
    (said,) = limit_edits(two(steps), LISTED, implementations=False)
    assert said.kind == "shape"
    assert limit_edits(two(steps, passed=True), LISTED, implementations=True) == []


def test_unused_output():
    text = '{"id": "x", "carrier": "Blue Van", "log": "' + "z" * 600 + '"}'
    steps = [{"tool": "t", "result_text": text}]
    (edit,) = trim_edits(two(steps, passed=True, values=["Blue Van"]), LISTED)
    assert edit.text == "log"
    assert trim_edits(two(steps, passed=True, values=["zzz"]), LISTED) == []


def test_repeated_calls():
    steps = [{"tool": "t", "args": {"p": "1"}}] * 2
    assert [e.kind for e in note_edits(two(steps), LISTED)] == ["note"]
    assert note_edits(two(steps[:1]), LISTED) == []


@pytest.mark.parametrize("shape", ["ORD-dddd", "dddd-dd-dd", "cents", "capitals", "A, B"])
def test_a_stated_shape_is_read_back(shape):
    assert read_shape(f"The thing. {shape_text(shape)}") == shape


def test_values_that_fit_stay_as_they_are():
    for value, shape in (("ORD-1042", "ORD-dddd"), ("2026-05-03", "dddd-dd-dd"), ("A", "A, B")):
        assert to_shape(value, shape) == value


# ---------------------------------------------------------------------------------------------
# The study


@pytest.fixture(scope="module")
def copy():
    return servers_study.Copy(SPEC, 0, Words(), seed=1, train_per_tool=4, heldout_per_tool=2)


def test_repairs_by_hand_are_as_good_as_the_mined_ones_and_decoys_stay(copy):
    passed = {}
    for arm in ("base", "impl", "oracle"):
        outcome = copy.run(arm)
        passed[arm] = sum(trace.passed for trace in outcome.traces)
        if outcome.optimised:
            repaired = servers_study.repaired_plants(copy, outcome.optimised.accepted)
            assert not {p.defect for p in repaired} & set(catalogue.DECOYS)
    assert passed["oracle"] >= passed["base"]


def test_the_differential_gate_refuses_a_changed_result(copy):
    trace = next(t for t in copy.traces if t.passed and not t.steps[-1].is_error)
    step = trace.steps[-1]
    param = next(iter(step.args))
    edit = Edit(kind="normalise", tool=step.tool, param=param, text="ZZZ-dddd", evidence=("x",))
    after = tuple(
        t.with_wrapper(Wrapper("surface_error", None, "")) if t.name == step.tool else t
        for t in copy.tools
    )
    assert copy.differential_gate(edit, copy.tools, after) is None
    trim = Edit(kind="trim_output", tool=step.tool, text="nothing", evidence=("x",))
    cut = tuple(
        t.with_wrapper(Wrapper("trim_output", None, "id,rows,done")) if t.name == step.tool else t
        for t in copy.tools
    )
    assert "another result" in copy.differential_gate(trim, copy.tools, cut)
