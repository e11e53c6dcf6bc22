"""A toy study: every world writes a lesson, then a choice that reads it; two shards."""

import hashlib
import os
import signal

from toy_study.scores import mean

from replicata.preregistration.canonical import canonical
from replicata.preregistration.study import Answer, PlannedCell, Retry, Study


def planned_cells(protocol):
    worlds = protocol.settings["worlds"]
    cells = []
    for number in range(worlds):
        unit, shard = f"w{number}", f"s{number * 2 // worlds}"
        cells.append(PlannedCell(f"{unit}.lesson", shard, unit, "control"))
        cells.append(
            PlannedCell(f"{unit}.choice", shard, unit, "control", (f"{unit}.lesson",), {"k": 1})
        )
    return cells


def render(registration, cell, upstream):
    seed = str(registration.seed(cell.unit))
    if not cell.needs:
        return f"World {cell.unit}, seed {seed}.\nWrite a lesson."
    return {"seed": seed, "lesson": upstream[cell.needs[0]]["text"]}


def respond(registration, cell, request):
    luck = str(registration.protocol.settings["luck"]).encode()
    number = hashlib.sha256(canonical(request) + luck).hexdigest()
    if not cell.needs:
        return {"text": f"lesson {number[:6]}"}
    return {"scores": ["-0.25", "-1.5"], "tool": "worse" if number < "a" else "better"}


def answer(registration, cell, request):
    if os.environ.get("TOY_KILL") == cell.id:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("TOY_FAIL") == cell.id:
        raise Retry("the line is down")
    model = os.environ.get("TOY_MODEL", "synthetic:toy-1")
    return Answer(respond(registration, cell, request), model)


def outcome(registration, cell, response):
    return int(response["tool"] == "worse") if cell.needs else None


def exclude(registration, observations):
    return {o.cell.unit: o.missing for o in observations if o.missing is not None}


def analyse(registration, observations, excluded):
    kept = [o for o in observations if o.cell.needs and o.cell.unit not in excluded]
    rate = mean([o.outcome for o in kept])
    return {
        "c1": {"rate": rate, "n": len(kept)},
        "d1": {"rate": rate},
        "x1": {"twice": 2 * rate},
    }


STUDY = Study(planned_cells, render, answer, outcome, analyse, exclude, respond)
