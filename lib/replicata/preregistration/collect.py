"""The confirmatory run: ask for every planned cell that has no answer yet, and record it."""

import typing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from replicata.errors import UsageError, VerificationError
from replicata.preregistration.freeze import check_plan
from replicata.preregistration.places import Places, State, require, token_path
from replicata.preregistration.records import Clock, Shard, utc_now
from replicata.preregistration.registration import (
    Registration,
    check_unchanged,
    describe_plan,
    load_registration,
)
from replicata.preregistration.study import (
    Answer,
    PlannedCell,
    Retry,
    Study,
    load_study,
)
from replicata.preregistration.timestamp import Stamp, verify_stamp

Progress = Callable[[int, int], None]


class Recorder(typing.Protocol):
    """What takes answers: an open `Shard`, or a rerun's memory. ``responses`` are by cell id."""

    responses: dict[str, Any]

    def answer(self, cell: PlannedCell, request: Any, response: Any, outcome: Any) -> None:
        """Take an answer."""

    def missing(self, cell: PlannedCell, request: Any, reason: str) -> None:
        """Take note that a cell is given up."""

    def attempt(self, cell: PlannedCell, reason: str) -> None:
        """Take note of a failure that will be retried."""


def start(places: Places) -> tuple[Registration, Stamp | None]:
    """Return the registration if collecting may start or go on, with its latest stamp.

    Raises
    ------
    UsageError
        If the study is in another state, or an amendment is not stamped.
    VerificationError
        If anything frozen has changed or a token does not verify.
    """
    registration = load_registration(places)
    unstamped = registration.protocol.allow_unstamped and not token_path(places.frozen).exists()
    require(places, "run", also=(State.ARCHIVED,) if unstamped else ())
    check_unchanged(registration)
    if unstamped:
        return registration, None
    stamp = verify_stamp(registration, places.frozen)
    for path in places.amendments():
        if not token_path(path).exists():
            raise UsageError(f"run refuses: {path.name} is not stamped, expected stamp before run")
        stamp = verify_stamp(registration, path)
    return registration, stamp


def collect(
    places: Places,
    shards: Sequence[str] | None = None,
    *,
    clock: Clock = utc_now,
    progress: Progress | None = None,
) -> int:
    """Collect the given shards, or all; return how many cells were asked for.

    Finished cells are not asked for again, so the same command resumes after a kill. Several
    processes may collect different shards at once.

    Raises
    ------
    UsageError
        If a shard is unknown, or as for `start`.
    VerificationError
        As for `start`; also if an endpoint answers with another model than is pinned.
    """
    registration, _ = start(places)
    cells = planned_cells(registration)
    names = list(registration.planned["shards"])
    for name in shards or ():
        if name not in names:
            raise UsageError(f"there is no shard {name!r}; the plan has {', '.join(names[:10])}")
    study = load_study(registration.protocol.analysis.entry_point)
    wanted = [cell for cell in cells if shards is None or cell.shard in shards]
    asked = 0
    for name in names if shards is None else shards:
        registration, stamp = start(places)
        limit = stamp.latest if stamp else None
        engine = dict(study.engine())
        with Shard(registration, name, not_before=limit, engine=engine, clock=clock) as shard:
            waiting = [c for c in wanted if c.shard == name and c.id not in shard.responses]
            while waiting:
                batch = next_batch(study, shard, waiting)
                ask(study, registration, shard, batch)
                waiting = waiting[len(batch) :]
                asked += len(batch)
                if progress is not None:
                    progress(asked, len(wanted))
    return asked


def collect_in_parallel(places: Places, jobs: int) -> int:
    """Collect all shards in ``jobs`` processes; return how many cells were asked for.

    Raises
    ------
    UsageError, VerificationError
        As for `collect`; other shards go on to their end.
    """
    names = list(start(places)[0].planned["shards"])
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return sum([done.result() for done in [pool.submit(collect, places, [n]) for n in names]])


def next_batch(
    study: Study, shard: Recorder, waiting: Sequence[PlannedCell]
) -> Sequence[PlannedCell]:
    """Return the first cells of ``waiting`` that can be asked for together; see `Study`."""
    if study.answer_batch is None:
        return waiting[:1]
    size = 1
    while (
        size < len(waiting)
        and waiting[size].endpoint == waiting[0].endpoint
        and all(need in shard.responses for need in waiting[size].needs)
    ):
        size += 1
    return waiting[:size]


def planned_cells(registration: Registration) -> list[PlannedCell]:
    """Return the planned cells, checked against the frozen plan.

    Raises
    ------
    VerificationError
        If the study's code generates another plan.
    """
    cells = check_plan(registration.protocol)
    if describe_plan(cells)["sha256"] != registration.planned["sha256"]:
        raise VerificationError("the study generates another list of planned cells than was frozen")
    return cells


def ask(
    study: Study, registration: Registration, shard: Recorder, cells: Sequence[PlannedCell]
) -> None:
    """Ask for cells, with the protocol's number of retries, and record what came of each.

    A cell whose needed cells are missing is missing too.

    Parameters
    ----------
    study, registration, shard
        What is asked, under what, and where it is recorded.
    cells
        One cell, or a batch of one endpoint where the study answers batches.

    Raises
    ------
    VerificationError
        If another model answers than is pinned.
    """
    asked = []
    for cell in cells:
        lost = [need for need in cell.needs if shard.responses.get(need) is None]
        if lost:
            shard.missing(cell, None, f"needs {lost[0]}, which is missing")
            continue
        upstream = {need: shard.responses[need] for need in cell.needs}
        asked.append((cell, study.render(registration, cell, upstream)))
    left = registration.protocol.retries
    while asked:
        again = []
        for (cell, request), answer in zip(
            asked, _answers(study, registration, asked), strict=True
        ):
            if not isinstance(answer, Retry):
                _record(study, registration, shard, cell, request, answer)
            elif left:
                shard.attempt(cell, str(answer))
                again.append((cell, request))
            else:
                shard.missing(cell, request, str(answer))
        asked, left = again, left - 1


def _record(
    study: Study,
    registration: Registration,
    shard: Recorder,
    cell: PlannedCell,
    request: Any,
    answer: Answer,
) -> None:
    pin = registration.protocol.endpoints[cell.endpoint].pin
    if answer.model != pin:
        raise VerificationError(
            f"endpoint {cell.endpoint}: model {answer.model} differs from the protocol's {pin}"
        )
    outcome = study.outcome(registration, cell, answer.response)
    shard.answer(cell, request, answer.response, outcome)


def _answers(
    study: Study, registration: Registration, asked: Sequence[tuple[PlannedCell, Any]]
) -> Sequence[Answer | Retry]:
    if study.answer_batch is not None:
        return study.answer_batch(registration, asked)
    ((cell, request),) = asked
    try:
        return [study.answer(registration, cell, request)]
    except Retry as failure:
        return [failure]
