"""Estimates from the cells' rows: paired differences, tuned peaks, ranges, laboratory ratios."""

import numpy as np
import pandas as pd

BASELINES = ("cosine", "linear", "wsd20", "uba0.3", "uba1")
LAB_BASELINES = ("constant", "cosine", "linear", "wsd20", "wsd50",
                 "uba0.1", "uba0.3", "uba1", "uba3", "uba10")  # fmt: skip


def losses(cells: pd.DataFrame, group: str, role: str = "test", **where: object) -> pd.DataFrame:
    """Return the final losses of a group of training runs."""
    keep = (cells["metric"] == "loss") & (cells["group"] == group) & (cells["role"] == role)
    for column, value in where.items():
        keep &= cells[column] == value
    return cells[keep]


def tuned_peaks(cells: pd.DataFrame) -> dict[str, float]:
    """Return the peak with the lowest mean loss on the tuning seeds, by arm."""
    table = losses(cells, "short", "tune").pivot_table(index="arm", columns="peak", values="value")
    return table.idxmin(axis=1).to_dict()


def tuned(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the test losses (seed x arm) of the short regime, each arm at its tuned peak."""
    best = tuned_peaks(cells)
    table = losses(cells, "short")
    table = table[table["peak"] == table["arm"].map(best)]
    return table.pivot(index="unit", columns="arm", values="value")


def wide(cells: pd.DataFrame, group: str, **where: object) -> pd.DataFrame:
    """Return the test losses of a group, (seed x arm)."""
    return losses(cells, group, **where).pivot(index="unit", columns="arm", values="value")


def ranges(table: pd.DataFrame, columns: str) -> pd.DataFrame:
    """Return max minus min of the loss over ``columns``, (seed x arm)."""
    spread = table.pivot(index=["unit", "arm"], columns=columns, values="value")
    return (spread.max(axis=1) - spread.min(axis=1)).unstack("arm")


def lab_ratios(cells: pd.DataFrame, peak_step: int = 0) -> pd.DataFrame:
    """Return final loss over the optimum's (problem x arm), at the tuned peak.

    ``peak_step`` moves that many places up the grid of peaks, clipped to the cap.
    """
    table = cells[cells["metric"] == "loss"]
    best = table[table["arm"] == "optimum"].set_index("unit")["value"]
    columns = {}
    for arm, own in table[table["arm"] != "optimum"].groupby("arm"):
        grid = own.pivot(index="unit", columns="peak", values="value").sort_index(axis=1)
        at = grid.to_numpy().argmin(axis=1)
        at = np.minimum(at + peak_step, grid.shape[1] - 1)
        columns[arm] = pd.Series(grid.to_numpy()[np.arange(len(grid)), at], grid.index) / best
    return pd.DataFrame(columns)


def geometric_mean(ratios: pd.DataFrame) -> pd.Series:
    """Return the geometric mean over problems, by arm."""
    return np.exp(np.log(ratios).mean())
