"""Both studies as cells: tidy rows out."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch

from replicata.errors import RunError
from replicata.papers.at_at import servers_study
from replicata.papers.at_at.bfcl import Pool, load_pool, load_simple, subset
from replicata.papers.at_at.catalogue import REPAIRABLE
from replicata.papers.at_at.encoder import Encoder
from replicata.papers.at_at.experiment import Params
from replicata.papers.at_at.routing_study import ARMS, Outcome, RoutingBench
from replicata.papers.at_at.serving import SERVERS
from replicata.papers.at_at.tools import Tool
from replicata.workflow.cells import Cell

Rows = Iterator[dict[str, Any]]


def open_encoder() -> Encoder:
    """Load the agent's encoder, one thread: cells run beside each other."""
    torch.set_num_threads(1)
    return Encoder()


def _unchanged(encoder: Encoder, before: str) -> None:
    if encoder.weights_sha256() != before:
        raise RunError("the agent's weights changed during the study, expected them to stay fixed")


def _row(arm: str, unit: str, metric: str, value: float, **index: Any) -> dict[str, Any]:
    return {"arm": arm, "unit": unit, "metric": metric, "value": float(value), **index}


# ---------------------------------------------------------------------------------------------
# S1


def pool_of(params: Params) -> Pool:
    """Return the requests and tools of a profile."""
    pool, sizes = load_pool(), params.routing
    if sizes.requests is None or sizes.tools is None:
        return pool
    return subset(pool, sizes.requests, sizes.tools)


def routing(params: Params, cell: Cell) -> pd.DataFrame:
    """Every arm on one halving: one row per held-out request, arm and direction."""
    encoder = open_encoder()
    weights = encoder.weights_sha256()
    bench = RoutingBench(pool_of(params), encoder, params.seed)
    rows: list[dict[str, Any]] = []
    for arm in ARMS:
        for direction in (0, 1):
            outcome = bench.run(arm, cell.params["repeat"], direction)
            rows += _routed(bench, arm, cell.params["repeat"], direction, outcome)
    rows += _own_candidates(bench)
    _unchanged(encoder, weights)
    rows.append(_row("base", "agent", "weights_changed", 0))
    return pd.DataFrame(rows)


def _routed(bench: RoutingBench, arm: str, repeat: int, direction: int, outcome: Outcome) -> Rows:
    train = bench.train_mask(repeat, direction)
    right = outcome.routed == bench.gold
    twins = bench.twins()[outcome.routed, bench.gold]
    index = {"repeat": repeat, "direction": direction}
    for i in np.flatnonzero(~train):
        request, tool = bench.pool.requests[i], bench.pool.tools[bench.gold[i]].name
        yield _row(arm, tool, "correct", right[i], request=request.id, **index)
        yield _row(arm, tool, "twin", twins[i] or right[i], request=request.id, **index)
    yield _row(arm, "all", "train_accuracy", right[train].mean(), **index)
    yield _row(arm, "all", "heldout_accuracy", right[~train].mean(), **index)
    yield _row(arm, "all", "rollouts", outcome.rollouts, **index)
    characters = sum(tool.characters() for tool in outcome.tools) + len(outcome.prefix)
    yield _row(arm, "all", "characters", characters, **index)
    yield from _simple(bench, arm, outcome.tools, outcome.prefix, index)
    if outcome.optimised is not None:
        yield _row(arm, "all", "edits", len(outcome.optimised.accepted), **index)
        yield _row(arm, "all", "proposed", len(outcome.optimised.log), **index)


def _simple(
    bench: RoutingBench, arm: str, tools: tuple[Tool, ...], prefix: str, index: dict[str, Any]
) -> Rows:
    """Route requests of another part of BFCL whose functions are in the pool."""
    positions = {tool.name: j for j, tool in enumerate(tools)}
    requests = [request for request in load_simple() if request.gold in positions]
    if not requests:
        return
    queries = bench.encoder.encode([prefix + request.text for request in requests])
    routed = (queries @ bench.encoder.encode([tool.routing_text for tool in tools]).T).argmax(1)
    right = [positions[request.gold] == j for request, j in zip(requests, routed, strict=True)]
    yield _row(arm, "all", "simple_accuracy", np.mean(right), count=len(requests), **index)


def _own_candidates(bench: RoutingBench) -> Rows:
    """Score the base agent among each request's own candidates, as BFCL asks it."""
    scores = bench.scores(bench.pool.tools)
    positions = {tool.name: j for j, tool in enumerate(bench.pool.tools)}
    right = []
    for i, request in enumerate(bench.pool.requests):
        known = [name for name in request.candidates if name in positions]
        best = max(known, key=lambda name, i=i: scores[i, positions[name]])
        right.append(best == request.gold)
    yield _row("base", "all", "own_candidates_accuracy", np.mean(right))


# ---------------------------------------------------------------------------------------------
# S2


def servers(params: Params, cell: Cell) -> pd.DataFrame:
    """Every arm on all copies of one server: one row per held-out task and metric."""
    encoder = open_encoder()
    weights = encoder.weights_sha256()
    spec, sizes = SERVERS[cell.params["server"]], params.servers
    rows: list[dict[str, Any]] = []
    for number in range(sizes.copies):
        copy = servers_study.Copy(
            spec,
            number,
            encoder,
            seed=params.seed,
            train_per_tool=sizes.train_per_tool,
            heldout_per_tool=sizes.heldout_per_tool,
        )
        for plant in copy.plants:
            rows.append(
                _row(
                    "base",
                    f"{spec.name}.{plant.tool}",
                    "planted",
                    1,
                    copy=number,
                    defect=plant.defect,
                )
            )
        for arm in servers_study.arms(params.coder is not None):
            rows += _served(copy, number, arm, copy.run(arm, params.coder))
    _unchanged(encoder, weights)
    rows.append(_row("base", "agent", "weights_changed", 0))
    return pd.DataFrame(rows).assign(server=spec.name)


def _served(copy: servers_study.Copy, number: int, arm: str, outcome: servers_study.Arm) -> Rows:
    name = copy.spec.name
    defects = {plant.tool: plant.defect for plant in copy.plants}
    for trace in outcome.traces:
        tool = trace.expected_call["tool"]
        index = {"copy": number, "task": trace.task_id, "defect": defects.get(tool, "none")}
        unit = f"{name}.{tool}"
        errors = sum(step.is_error for step in trace.steps)
        characters = trace.cost["chars_in"] + trace.cost["chars_out"]
        yield _row(arm, unit, "passed", trace.passed, **index)
        yield _row(arm, unit, "errors", errors, **index)
        yield _row(arm, unit, "calls", trace.cost["calls"], **index)
        yield _row(arm, unit, "characters", characters, **index)
    yield _row(arm, "all", "rollouts", outcome.rollouts, copy=number)
    if outcome.optimised is None:
        return
    accepted = outcome.optimised.accepted
    repaired = servers_study.repaired_plants(copy, accepted)
    repairable = [plant for plant in copy.plants if plant.defect in REPAIRABLE]
    yield _row(arm, "all", "edits", len(accepted), copy=number)
    yield _row(arm, "all", "refused", len(outcome.optimised.log) - len(accepted), copy=number)
    yield _row(arm, "all", "fitting", servers_study.fitting_edits(copy, accepted), copy=number)
    yield _row(arm, "all", "edited_tools", len({e.tool for e in accepted}), copy=number)
    yield _row(arm, "all", "tools", len(copy.tools), copy=number)
    for plant in copy.plants:
        index = {"copy": number, "defect": plant.defect}
        metric = "repaired" if plant in repairable else "decoy_repaired"
        yield _row(arm, f"{name}.{plant.tool}", metric, plant in repaired, **index)
    for edit in accepted:
        index = {"copy": number, "kind": edit.kind, "evidence": len(edit.evidence)}
        yield _row(arm, f"{name}.{edit.tool}", "edit", 1, **index)
