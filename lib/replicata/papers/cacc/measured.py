"""Rows of a cell's table: one shape for outcomes, raw records and counts."""

from typing import Any

import pandas as pd

#: Columns beside arm, unit, metric and value; text columns are empty, numbers NaN, where unused.
TEXT = ("proposer", "family", "interface", "part", "selector", "source", "ops", "text")
NUMBERS = ("k", "budget", "draw", "index", "tokens", "logprob", "finished", "probability")


class Records:
    """Collects rows; what is the same in all of them is given once."""

    def __init__(self, **common: Any) -> None:
        self._common = common
        self._rows: list[dict[str, Any]] = []

    def add(
        self, part: str, *, metric: str, value: float, arm: str = "all", unit: str = "", **more: Any
    ) -> None:
        """Add one row."""
        self._rows.append(
            {
                "arm": arm,
                "unit": unit or self._common["family"],
                "metric": metric,
                "value": float(value),
                "part": part,
                **self._common,
                **more,
            }
        )

    def table(self) -> pd.DataFrame:
        """Return all rows, with every column in its place."""
        table = pd.DataFrame(self._rows)
        for column in TEXT:
            if column not in table:
                table[column] = ""
            table[column] = table[column].fillna("").astype(str)
        for column in NUMBERS:
            if column not in table:
                table[column] = float("nan")
            table[column] = table[column].astype(float)
        return table[["arm", "unit", "metric", "value", *TEXT, *NUMBERS]]
