"""Families of hypotheses tested in a fixed order, with Holm's adjustment inside each."""

from collections.abc import Mapping
from dataclasses import dataclass

from replicata.statistics.multiplicity import holm


@dataclass(frozen=True)
class FamilyResult:
    """One family: adjusted p-values by hypothesis, those rejected, and whether it was tested.

    ``adjusted`` is over the whole sequence: at least the largest of the families before it, so
    that a hypothesis is rejected exactly if its adjusted p is <= alpha.
    """

    adjusted: dict[str, float]
    rejected: dict[str, bool]
    tested: bool


def fixed_sequence(
    families: Mapping[str, Mapping[str, float]], alpha: float = 0.05
) -> dict[str, FamilyResult]:
    """Test families in their order, each at the full level, as long as all before were rejected.

    The familywise error over all families is at most alpha (serial gatekeeping: Maurer, Hothorn and
    Lehmacher 1995; Westfall and Krishen 2001, doi 10.1016/S0378-3758(01)00077-5). The gate opens
    only if *every* hypothesis of the family is rejected; opening it on any one rejection would not
    hold the level.

    Parameters
    ----------
    families
        Family name to its p-values by hypothesis, in the order they were registered in.
    alpha
        Familywise level, in (0, 1).

    Raises
    ------
    ValueError
        If there is no family, one is empty, or a p-value or alpha is out of range.
    """
    if not families:
        raise ValueError("families is empty, expected at least one.")
    results: dict[str, FamilyResult] = {}
    gate = 0.0
    for name, p_values in families.items():
        if not p_values:
            raise ValueError(f"family {name!r} is empty, expected at least one hypothesis.")
        inside = holm(list(p_values.values()), alpha)
        adjusted = {key: max(gate, p) for key, p in zip(p_values, inside.adjusted, strict=True)}
        results[name] = FamilyResult(
            adjusted=adjusted,
            rejected={key: p <= alpha for key, p in adjusted.items()},
            tested=gate <= alpha,
        )
        gate = max(adjusted.values())
    return results
