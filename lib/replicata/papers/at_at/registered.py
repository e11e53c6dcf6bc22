"""The registered study beside the pipeline's cells: results, and agreement record by record."""

import pandas as pd

from replicata.papers.at_at.registration import NAME
from replicata.preregistration.analysis import observations
from replicata.preregistration.canonical import parse, read_bytes
from replicata.preregistration.collect import planned_cells
from replicata.preregistration.places import Places
from replicata.preregistration.registration import load_registration
from replicata.preregistration.seal import read_shards
from replicata.workflow.layout import repo_root


def _places() -> Places:
    return Places(repo_root(), NAME, "cpu")


def registered_results() -> pd.DataFrame:
    """Return the registered quantities and verdicts, one row per hypothesis."""
    results = parse(read_bytes(_places().results_json), "results.json")
    table = pd.DataFrame(results["results"]).T
    table.insert(0, "verdict", pd.Series(results["verdicts"]))
    return table


def agreement(routing: pd.DataFrame) -> pd.DataFrame:
    """Compare the registered outcomes with the pipeline's cells, per arm.

    Returns
    -------
    DataFrame
        Records, and how many of them the pipeline's cells give the same outcome for.
    """
    registration = load_registration(_places())
    observed = observations(planned_cells(registration), read_shards(registration))
    recorded = pd.DataFrame(
        {
            "request": item.cell.unit,
            "arm": item.cell.params["arm"],
            "repeat": item.cell.params["repeat"],
            "recorded": item.outcome,
        }
        for item in observed
    )
    cells = routing[routing["metric"] == "correct"][["request", "arm", "repeat", "value"]]
    joined = recorded.merge(cells, on=["request", "arm", "repeat"])
    same = joined["recorded"] == joined["value"]
    counts = same.groupby(joined["arm"]).agg(["size", "sum"])
    return counts.rename(columns={"size": "records", "sum": "same in the pipeline"})
