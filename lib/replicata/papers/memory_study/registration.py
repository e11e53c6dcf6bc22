"""The registered study: its planned cells, requests, outcomes and analysis, frozen before it runs.

`STUDY` is what the protocol names. Everything in here is pure, since the audit calls it again.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from replicata.errors import UsageError
from replicata.papers.memory_study import prompts
from replicata.papers.memory_study.api import ApiSettings, answer_api
from replicata.papers.memory_study.baselines import answer as control_answer
from replicata.papers.memory_study.endpoints import answer_requests, local_model
from replicata.papers.memory_study.method import TIE, Arm, Choice
from replicata.papers.memory_study.results import registered_results
from replicata.papers.memory_study.worlds import BLOCK, make_world, world_id
from replicata.preregistration.protocol import Part, Protocol
from replicata.preregistration.registration import Registration
from replicata.preregistration.study import (
    Answer,
    Observation,
    PlannedCell,
    Results,
    Retry,
    Study,
)

FREE = "unlucky.indep"
"""Where lessons are also written freely, for comparison."""


class Settings(Part):
    """The protocol's ``settings``.

    Attributes
    ----------
    worlds
        How many, a multiple of four.
    shard_worlds
        Worlds per records file of a local endpoint, a multiple of four.
    writing
        How lessons are written: ``guided`` or ``free``.
    free_blocks
        Blocks of four worlds per shard in which guided lessons are also written freely.
    memories, control_memories
        The choices of a model and of a control: ``scenario.log`` to its memories.
    dtype
        Of the local models.
    replay_tolerance
        Nats by which a replayed log-probability may differ.
    """

    worlds: int = Field(ge=BLOCK, multiple_of=BLOCK)
    shard_worlds: int = Field(ge=BLOCK, multiple_of=BLOCK)
    writing: Literal["guided", "free"]
    free_blocks: int = Field(ge=0)
    memories: dict[str, list[str]]
    control_memories: dict[str, list[str]]
    dtype: str
    replay_tolerance: float = Field(gt=0)


def settings_of(protocol: Protocol) -> Settings:
    """Return the study's settings.

    Raises
    ------
    UsageError
        If they do not fit.
    """
    try:
        return Settings.model_validate(protocol.settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise UsageError(f"draft.yaml: settings.{key}: {first['msg']}") from None


# ---------------------------------------------------------------------------------------------
# The plan


def planned_cells(protocol: Protocol) -> list[PlannedCell]:
    """Return all cells: per shard and block of worlds, the lessons and then the choices."""
    settings = settings_of(protocol)
    cells = []
    for name, endpoint in protocol.endpoints.items():
        control = endpoint.kind == "synthetic"
        size = settings.worlds if control else settings.shard_worlds
        plan = settings.control_memories if control else settings.memories
        for start in range(0, settings.worlds, BLOCK):
            free = not control and start % size < BLOCK * settings.free_blocks
            shard = f"{name}-{start // size:02d}"
            worlds = [world_id(number) for number in range(start, start + BLOCK)]
            for phase in ("write", "choice"):
                for world in worlds:
                    cells += _world_cells(name, world, shard, phase, plan, free)
    return cells


def _world_cells(
    endpoint: str,
    world: str,
    shard: str,
    phase: str,
    plan: Mapping[str, Sequence[str]],
    free: bool,
) -> Iterator[PlannedCell]:
    for place, planned in plan.items():
        scenario, _, log = place.partition(".")
        memories = [*planned, "free"] if free and place == FREE else planned
        for outcome in prompts.OUTCOMES:
            for memory in memories:
                if phase == "write" and memory not in (*prompts.WRITERS, "free"):
                    continue
                writer, after = _written(memory, outcome)
                cell = f"{endpoint}.{world}.{{}}.{place}.{{}}.{{}}"
                needs = (cell.format("write", after, writer),) if writer else ()
                yield PlannedCell(
                    id=cell.format(phase, outcome, memory),
                    shard=shard,
                    unit=world,
                    endpoint=endpoint,
                    needs=needs if phase == "choice" else (),
                    params={
                        "phase": phase,
                        "scenario": scenario,
                        "log": log,
                        "outcome": outcome,
                        "memory": memory,
                    },
                )


def _written(memory: str, outcome: prompts.Outcome) -> tuple[str | None, prompts.Outcome]:
    """Return who wrote a memory (None for ready-made ones), and after which outcome."""
    if memory == "opp":
        return "own", prompts.opposite(outcome)
    return (memory if memory in (*prompts.WRITERS, "free") else None), outcome


# ---------------------------------------------------------------------------------------------
# Requests, answers, outcomes


def render(
    registration: Registration, cell: PlannedCell, upstream: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a cell's request; a choice contains the lesson that was logged for it."""
    world = make_world(registration, cell.unit)
    scenario, outcome, log, memory = (
        cell.params[key] for key in ("scenario", "outcome", "log", "memory")
    )
    if cell.params["phase"] == "write":
        if memory == "free" or settings_of(registration.protocol).writing == "free":
            writer = "own" if memory == "free" else memory
            return prompts.free_request(world, scenario, outcome, log, writer)
        return prompts.guided_request(world, scenario, outcome, log, memory)
    writer, after = _written(memory, outcome)
    written = None
    if writer is not None:
        (response,) = upstream.values()
        if "scores" in response:
            written = prompts.lesson(world, scenario, after, verdict(writer, response))
        else:
            written = response["text"]
    text = prompts.memory_text(world, scenario, outcome, memory, written)
    return prompts.choice_request(world, scenario, outcome, log, text)


def verdict(writer: str, response: Mapping[str, Any]) -> str:
    """Return the word that fills a lesson's slot: the likeliest, the first at a tie."""
    return prompts.SLOT[writer][int(np.argmax(_scores(response)))]


def answer(registration: Registration, cell: PlannedCell, request: Any) -> Answer:
    """Ask the cell's endpoint."""
    (found,) = answer_batch(registration, [(cell, request)])
    if isinstance(found, Retry):
        raise found
    return found


def answer_batch(
    registration: Registration, asked: Sequence[tuple[PlannedCell, Any]]
) -> list[Answer | Retry]:
    """Ask one endpoint for several cells at once, so that common prefixes are computed once."""
    protocol = registration.protocol
    (name,) = {cell.endpoint for cell, _ in asked}
    endpoint = protocol.endpoints[name]
    if endpoint.kind == "synthetic":
        return [
            Answer(control_answer(name, request, registration.seed(cell.id)), endpoint.pin)
            for cell, request in asked
        ]
    requests = [request for _, request in asked]
    if endpoint.kind == "api":
        responses = answer_api(endpoint.pin, ApiSettings(**endpoint.decoding), requests)
    else:
        loaded = local_model(endpoint.pin, settings_of(protocol).dtype)
        responses = answer_requests(loaded, requests)
    return [
        response if isinstance(response, Retry) else Answer(response, endpoint.pin)
        for response in responses
    ]


def replay(registration: Registration, cell: PlannedCell, request: Any) -> Any:
    """Ask a local or synthetic endpoint again, for the audit."""
    return answer(registration, cell, request).response


def agrees(registration: Registration, replayed: Any, recorded: Any) -> bool:
    """Say whether two responses agree: texts exactly, scores within the protocol's tolerance.

    A replayed cell is computed alone, a recorded one in a batch, which rounds otherwise.
    """
    if "scores" not in recorded or "scores" not in replayed:
        return replayed == recorded
    limit = settings_of(registration.protocol).replay_tolerance
    pairs = zip(replayed["scores"], recorded["scores"], strict=True)
    return all(abs(float(left) - float(right)) <= limit for left, right in pairs)


def engine() -> dict[str, str]:
    """Return the versions of what answers."""
    names = ("torch", "transformers", "tokenizers", "numpy")
    return {name: version(name) for name in names}


def outcome_of(registration: Registration, cell: PlannedCell, response: Any) -> dict[str, str]:
    """Return what is analysed: a choice and its probability, a verdict, or whether tools are named.

    ``worse`` is 1 for the worse tool, 0 for the better and 1/2 at a tie; probabilities are the
    softmax of the options' scores.
    """
    world = make_world(registration, cell.unit)
    if "scores" not in response:
        named = any(tool in response["text"] for tool in world.listed)
        return {"names_tool": "1" if named else "0"}
    scores = _scores(response)
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    if cell.params["phase"] == "write":
        words = prompts.SLOT[cell.params["memory"]]
        found = {f"p_{word}": f"{share:.6f}" for word, share in zip(words, shares, strict=True)}
        return {"verdict": verdict(cell.params["memory"], response), **found}
    bad = world.listed.index(world.bad)
    lead = scores[bad] - scores[1 - bad]
    worse = "1/2" if abs(lead) < TIE else "1" if lead > 0 else "0"
    return {"worse": worse, "p_worse": f"{shares[bad]:.6f}"}


def _scores(response: Mapping[str, Any]) -> np.ndarray:
    return np.array([float(score) for score in response["scores"]])


# ---------------------------------------------------------------------------------------------
# Analysis


def choices(observations: Sequence[Observation]) -> list[Choice]:
    """Return the choices among the observations."""
    return [
        Choice(
            item.cell.unit,
            Arm(
                item.cell.endpoint,
                item.cell.params["scenario"],
                item.cell.params["log"],
                item.cell.params["outcome"],
                item.cell.params["memory"],
            ),
            Fraction(item.outcome["worse"]),
            float(item.outcome["p_worse"]),
        )
        for item in observations
        if item.cell.params["phase"] == "choice" and item.missing is None
    ]


def exclude(registration: Registration, observations: Sequence[Observation]) -> dict[str, str]:
    """Exclude a world, for every endpoint, if any of its cells is missing."""
    return {
        item.cell.unit: f"{item.cell.id} is missing: {item.missing}"
        for item in observations
        if item.missing is not None
    }


def analyse(
    registration: Registration, observations: Sequence[Observation], excluded: Mapping[str, str]
) -> Results:
    """Compute all registered results; see ``results.py``."""
    kept = [item for item in observations if item.cell.unit not in excluded]
    verdicts = {
        (
            item.cell.endpoint,
            *(item.cell.params[key] for key in ("scenario", "log", "outcome", "memory")),
            item.cell.unit,
        ): item.outcome
        for item in kept
        if item.cell.params["phase"] == "write"
    }
    protocol = registration.protocol
    return registered_results(
        choices(kept),
        verdicts,
        real=[name for name, end in protocol.endpoints.items() if end.kind != "synthetic"],
        seed=protocol.seeds.global_seed,
    )


STUDY = Study(
    planned_cells=planned_cells,
    render=render,
    answer=answer,
    outcome=outcome_of,
    analyse=analyse,
    exclude=exclude,
    replay=replay,
    agrees=agrees,
    engine=engine,
    answer_batch=answer_batch,
)
