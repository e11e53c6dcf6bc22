"""A registered study as cells of the pipeline: its sealed records, or the same questions again.

Under the results root that holds the sealed records, a shard's observations are read from them: no
confirmatory answer is ever asked for twice. Under any other root, such as that of a rerun, every
cell is asked again by the same code, without records.
"""

from pathlib import Path
from typing import Any

from replicata.errors import NotRun
from replicata.preregistration.analysis import observations
from replicata.preregistration.collect import ask, next_batch, planned_cells
from replicata.preregistration.places import Places, State, state_of
from replicata.preregistration.registration import Registration, load_registration
from replicata.preregistration.seal import read_shards
from replicata.preregistration.study import Observation, PlannedCell, load_study

RESULTS = Path("results")
"""The results root of registered records."""


class _Memory:
    """A shard that is kept in memory: what `ask` needs of one."""

    def __init__(self) -> None:
        self.responses: dict[str, Any] = {}
        self.observed: dict[str, Observation] = {}

    def answer(self, cell: PlannedCell, request: Any, response: Any, outcome: Any) -> None:
        """Keep an answer."""
        self.responses[cell.id] = response
        self.observed[cell.id] = Observation(cell, response, outcome)

    def missing(self, cell: PlannedCell, request: Any, reason: str) -> None:
        """Keep that a cell is given up."""
        self.responses[cell.id] = None
        self.observed[cell.id] = Observation(cell, None, None, reason)

    def attempt(self, cell: PlannedCell, reason: str) -> None:
        """Forget a failed attempt: nothing in here is a record."""


def shard_observations(places: Places, shard: str) -> list[Observation]:
    """Return what was observed in one shard, in the order of the plan.

    Parameters
    ----------
    places
        The study's files; ``results`` is the root that the observations are for.
    shard
        One of the plan.

    Raises
    ------
    NotRun
        If the protocol is not frozen and stamped, or, under the root of registered records, these
        are not sealed yet.
    VerificationError
        If something frozen has changed, or a chain does not hold.
    """
    if not places.frozen.exists():
        raise NotRun(f"the protocol of {places.study} is not frozen yet")
    registration = load_registration(places)
    cells = [cell for cell in planned_cells(registration) if cell.shard == shard]
    if places.results != RESULTS:
        return _asked_again(registration, cells)
    if state_of(places) < State.SEALED:
        raise NotRun(f"the records of {places.study} are not sealed yet")
    return observations(cells, {shard: read_shards(registration)[shard]})


def _asked_again(registration: Registration, cells: list[PlannedCell]) -> list[Observation]:
    study = load_study(registration.protocol.analysis.entry_point)
    memory, waiting = _Memory(), cells
    while waiting:
        batch = next_batch(study, memory, waiting)
        ask(study, registration, memory, batch)
        waiting = waiting[len(batch) :]
    return [memory.observed[cell.id] for cell in cells]
