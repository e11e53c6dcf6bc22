"""A ready-made study: paired scores of two arms per unit, exact sign-flip tests, plus-one bounds.

A study of this kind is one protocol and one function that asks::

    STUDY = paired_study(answer, score)

Its protocol's ``settings`` hold everything else:

.. code-block:: yaml

    settings:
      arms: {base: model-a, new: model-a}     # arm to endpoint
      units: {task-1: tool-x, task-2: tool-x} # unit to the cluster whose sign flips as one
      repeats: 1                              # answers per unit and arm
      shards: 4                               # files of records
      scale: 1                                # the largest score
      compare: {c1: {new: new, base: base}}   # hypothesis to its two arms
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from pydantic import Field, ValidationError

from replicata.errors import UsageError
from replicata.preregistration.protocol import Part, Protocol
from replicata.preregistration.registration import Registration
from replicata.preregistration.study import (
    Answer,
    Observation,
    PlannedCell,
    Quantity,
    Study,
)
from replicata.statistics.bounds import plus_one_bound
from replicata.statistics.exact import sign_flip_exact
from replicata.statistics.gatekeeping import fixed_sequence

Ask = Callable[[Registration, PlannedCell, Any], Answer]


class Contrast(Part):
    """The two arms a hypothesis compares: ``new`` minus ``base``."""

    new: str
    base: str


class Paired(Part):
    """A paired study's settings; see the module's docstring."""

    arms: dict[str, str] = Field(min_length=2)
    units: dict[str, str] = Field(min_length=1)
    repeats: int = Field(default=1, ge=1)
    shards: int = Field(default=1, ge=1)
    scale: int = Field(default=1, ge=1)
    compare: dict[str, Contrast] = Field(min_length=1)


def paired_study(
    answer: Ask,
    score: Callable[[Any], int],
    *,
    request: Callable[[Registration, PlannedCell], Any] | None = None,
    replay: Callable[[Registration, PlannedCell, Any], Any] | None = None,
) -> Study:
    """Return a study that tests mean differences between arms, paired by unit.

    Parameters
    ----------
    answer
        Asks an endpoint; the cell's params are ``arm`` and ``repeat``.
    score
        From a response to a whole number between 0 and ``settings.scale``.
    request
        From a cell to its request; by default unit, arm, repeat and seed.
    replay
        As in `Study`.

    Returns
    -------
    Study
        Its quantities per hypothesis: ``mean``, ``p_value`` (one-sided, greater), ``p_adjusted``
        (Holm within its family, families in their order), ``smallest_p``, ``lower``, ``upper``
        (one-sided plus-one bounds over clusters at the hypothesis's alpha), ``n`` (clusters).
    """
    return Study(
        planned_cells=_planned,
        render=lambda registration, cell, upstream: (request or _request)(registration, cell),
        answer=answer,
        outcome=lambda registration, cell, response: int(score(response)),
        analyse=_analyse,
        exclude=_exclude,
        replay=replay,
    )


def settings_of(protocol: Protocol) -> Paired:
    """Return the settings of a paired study.

    Raises
    ------
    UsageError
        If they do not fit.
    """
    try:
        found = Paired.model_validate(protocol.settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise UsageError(f"draft.yaml: settings.{key}: {first['msg']}") from None
    for name, contrast in found.compare.items():
        if protocol.hypothesis(name) is None or not {contrast.new, contrast.base} <= set(
            found.arms
        ):
            raise UsageError(f"draft.yaml: settings.compare.{name} names no hypothesis or no arm")
    return found


def _planned(protocol: Protocol) -> list[PlannedCell]:
    settings = settings_of(protocol)
    return [
        PlannedCell(
            id=f"{unit}.{arm}.{repeat}",
            shard=f"shard{number * settings.shards // len(settings.units)}",
            unit=unit,
            endpoint=endpoint,
            params={"arm": arm, "repeat": repeat},
        )
        for number, unit in enumerate(settings.units)
        for arm, endpoint in settings.arms.items()
        for repeat in range(settings.repeats)
    ]


def _request(registration: Registration, cell: PlannedCell) -> Any:
    seed = registration.seed(cell.unit)
    # As text, because JSON numbers are exact up to 2^53 only.
    return {"unit": cell.unit, "seed": str(seed), **cell.params}


def _exclude(registration: Registration, observations: Sequence[Observation]) -> dict[str, str]:
    """Exclude a unit if any of its answers is missing."""
    return {
        item.cell.unit: f"{item.cell.id} is missing: {item.missing}"
        for item in observations
        if item.missing is not None
    }


def _analyse(
    registration: Registration, observations: Sequence[Observation], excluded: Mapping[str, str]
) -> dict[str, dict[str, Quantity]]:
    protocol = registration.protocol
    settings = settings_of(protocol)
    sums: dict[tuple[str, str], int] = {}
    for item in observations:
        if item.cell.unit not in excluded:
            key = item.cell.params["arm"], item.cell.unit
            sums[key] = sums.get(key, 0) + item.outcome
    units = [unit for unit in settings.units if unit not in excluded]
    results = {
        name: _compare(registration, name, sums, units) for name in settings.compare if units
    }
    adjusted = fixed_sequence(
        {
            family: {
                item.id: results[item.id]["p_value"]
                for item in protocol.hypotheses
                if item.family == family
            }
            for family in protocol.families
        }
    )
    for family in adjusted.values():
        for name, p_value in family.adjusted.items():
            results[name]["p_adjusted"] = p_value
    return results


def _compare(
    registration: Registration, name: str, sums: Mapping[tuple[str, str], int], units: list[str]
) -> dict[str, Quantity]:
    settings = settings_of(registration.protocol)
    contrast = settings.compare[name]
    hypothesis = registration.protocol.hypothesis(name)
    alpha = 0.05 if hypothesis is None or hypothesis.alpha is None else hypothesis.alpha
    differences = [
        Fraction(sums[contrast.new, unit] - sums[contrast.base, unit], settings.repeats)
        for unit in units
    ]
    clusters = [settings.units[unit] for unit in units]
    test = sign_flip_exact(
        differences,
        "greater",
        clusters=clusters,
        seed=registration.protocol.seeds.global_seed,
    )
    grouped: dict[str, list[Fraction]] = {}
    for cluster, difference in zip(clusters, differences, strict=True):
        grouped.setdefault(cluster, []).append(difference)
    means = [float(sum(values) / len(values)) for values in grouped.values()]
    return {
        "mean": test.estimate,
        "p_value": test.p_value,
        "smallest_p": test.smallest_p,
        "lower": plus_one_bound(means, "lower", alpha=alpha, extreme=settings.scale),
        "upper": plus_one_bound(means, "upper", alpha=alpha, extreme=settings.scale),
        "n": test.n,
    }
