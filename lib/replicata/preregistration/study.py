"""What a study gives, so that it can be registered, run and audited.

A study is six functions and perhaps two more. They are pure: the audit calls them again and
compares. A study whose data are paired numbers needs to write one of them only; see ``paired``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from replicata.errors import ReplicataError, UsageError

if TYPE_CHECKING:
    from replicata.preregistration.protocol import Protocol
    from replicata.preregistration.registration import Registration

Quantity = bool | int | float | None
Results = Mapping[str, Mapping[str, Quantity]]
"""Hypothesis id to its named quantities, whatever its status."""


class Retry(Exception):
    """Raised by `Study.answer` for a failure that says nothing about content: transport, parser."""


@dataclass(frozen=True)
class PlannedCell:
    """One answer that will be asked for.

    Attributes
    ----------
    id
        Unique in the study.
    shard
        The file of its record; shards are collected independently, in the order of their cells.
    unit
        What the study generalises over: a world, a task.
    endpoint
        Who answers: a key of the protocol's endpoints.
    needs
        Ids of earlier cells of the same shard whose answers its request uses.
    params
        What else ``render`` and ``answer`` need. JSON values only.
    """

    id: str
    shard: str
    unit: str
    endpoint: str
    needs: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> list[Any]:
        """Return the cell as JSON values, in the order of its attributes."""
        return [self.id, self.shard, self.unit, self.endpoint, self.needs, self.params]


@dataclass(frozen=True)
class Answer:
    """An answer: JSON values, floats as decimal text; ``model`` is the pin of who answered."""

    response: Any
    model: str


@dataclass(frozen=True)
class Observation:
    """A planned cell with its outcome; ``missing`` says why there is none."""

    cell: PlannedCell
    response: Any
    outcome: Any
    missing: str | None = None


def exclude_none(registration: "Registration", observations: Sequence[Observation]) -> dict:
    """Exclude nothing: the rule of a study that has no exclusions."""
    return {}


@dataclass(frozen=True)
class Study:
    """A study's functions.

    Attributes
    ----------
    planned_cells
        From the protocol to all cells; the same on every call.
    render
        From the registration, a cell, and the answers to the cells it needs, to its request.
    answer
        Asks the endpoint. May raise `Retry`.
    outcome
        From a cell and its response to what is analysed.
    analyse
        From the observations and the excluded units to quantities by hypothesis id. Exploratory and
        descriptive results have ids in the protocol too.
    exclude
        From the observations to excluded units with a reason each.
    replay
        Asks a deterministic endpoint again, for the audit; None if nothing can be replayed.
    agrees
        Says whether a replayed response is the recorded one, by the protocol's tolerance; None asks
        for equality.
    engine
        Names and versions of what answers, for every record.
    answer_batch
        Asks one endpoint for several cells at once, where that is faster than one by one, and
        returns a `Retry` in the place of an answer that failed. A batch is as long as the plan has
        consecutive cells of one endpoint that need no answer of the batch itself.
    """

    planned_cells: Callable[["Protocol"], Sequence[PlannedCell]]
    render: Callable[["Registration", PlannedCell, Mapping[str, Any]], Any]
    answer: Callable[["Registration", PlannedCell, Any], Answer]
    outcome: Callable[["Registration", PlannedCell, Any], Any]
    analyse: Callable[["Registration", Sequence[Observation], Mapping[str, str]], Results]
    exclude: Callable[["Registration", Sequence[Observation]], Mapping[str, str]] = exclude_none
    replay: Callable[["Registration", PlannedCell, Any], Any] | None = None
    agrees: Callable[["Registration", Any, Any], bool] | None = None
    engine: Callable[[], Mapping[str, str]] = dict
    answer_batch: (
        Callable[["Registration", Sequence[tuple[PlannedCell, Any]]], Sequence[Answer | Retry]]
        | None
    ) = None


def load_study(entry_point: str) -> Study:
    """Import the `Study` that ``module:NAME`` names.

    Raises
    ------
    UsageError
        If there is none.
    """
    module, _, name = entry_point.partition(":")
    try:
        study = getattr(import_module(module), name)
    except ReplicataError:
        raise
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"analysis.entry_point {entry_point!r} cannot be loaded: {error}"
        ) from None
    if not isinstance(study, Study):
        raise UsageError(f"analysis.entry_point {entry_point!r} is no Study")
    return study
