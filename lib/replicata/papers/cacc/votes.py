"""Released votes on the real pools: what the pivotal-vote formula predicts, and what happened."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from replicata.papers.cacc.decomposition import pivotal_gain


@dataclass(frozen=True)
class Released:
    """The votes that CACC released, each added alone to the strict interface's votes.

    Attributes
    ----------
    table
        One row per released vote: ``unit``, ``right`` and ``rival`` (0 or 1), ``lead`` (votes of
        the right answer minus those of its strongest rival before), ``observed`` (change of the
        expected accuracy).
    a, b
        Shares of released votes for the right answer, and for the strongest rival.
    """

    table: pd.DataFrame
    a: float
    b: float

    @property
    def predicted(self) -> float:
        """Mean change of accuracy by the formula, which knows one rival."""
        margin = self.table["lead"].value_counts(normalize=True).to_dict()
        return pivotal_gain(self.a, self.b, margin)

    @property
    def observed(self) -> float:
        """Mean change of accuracy that the votes really make."""
        return float(self.table["observed"].mean())

    @property
    def break_even(self) -> float:
        """Odds a/b at which a released vote changes nothing; NaN where no lead is pivotal."""
        share = self.table["lead"].value_counts(normalize=True).to_dict()
        behind, even, ahead = (share.get(d, 0.0) for d in (-1, 0, 1))
        return (even + ahead) / (even + behind) if even + behind else float("nan")


def released_votes(cells: pd.DataFrame, family: str, interface: str) -> Released:
    """Return the released votes of a family, of questions with at least one strict vote.

    Without any vote there is no tie to break, and the formula does not apply.

    Raises
    ------
    ValueError
        If nothing was released.
    """
    rows = cells[
        (cells["part"] == "consumable")
        & (cells["family"] == family)
        & (cells["interface"] == interface)
    ]
    found = []
    for unit, part in rows.groupby("unit"):
        strict = part[part["arm"] == "identity"]
        added = part[(part["arm"] == "cacc") & (part["ops"] != "strict")]
        right = set(part.loc[part["value"] == 1, "text"])
        votes = Counter(strict["text"])
        if not votes:
            continue
        ahead = sum(votes[key] for key in right)
        rivals = {key: count for key, count in votes.items() if key not in right}
        best = max(rivals.values(), default=0)
        before = _expected(votes, right)
        for key in added["text"]:
            found.append(
                {
                    "unit": unit,
                    "right": int(key in right),
                    "rival": int(key not in right and best > 0 and rivals.get(key) == best),
                    "lead": ahead - best,
                    "observed": _expected(votes + Counter([key]), right) - before,
                }
            )
    if not found:
        raise ValueError(f"nothing was released in {family} behind {interface}")
    table = pd.DataFrame(found)
    return Released(table, float(table["right"].mean()), float(table["rival"].mean()))


def observed_interval(released: Released, draws: int, seed: int) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the observed change, resampling questions."""
    sums = released.table.groupby("unit")["observed"].agg(["sum", "size"]).to_numpy()
    rng = np.random.default_rng(seed)
    picks = sums[rng.integers(0, len(sums), size=(draws, len(sums)))].sum(axis=1)
    low, high = np.quantile(picks[:, 0] / picks[:, 1], [0.025, 0.975])
    return float(low), float(high)


def _expected(votes: Counter, right: set[str]) -> float:
    most = max(votes.values())
    winners = [key for key, count in votes.items() if count == most]
    return sum(key in right for key in winners) / len(winners)
