"""The paper's benchmark: results and traces of tau2-bench's own runner, read from its files.

tau2-bench runs agents, user simulators and rewards; it is not rerun here. Its simulation file has
``simulations``, each with ``task_id``, ``trial``, ``reward_info`` and ``messages``.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from replicata.errors import NotRun, UsageError
from replicata.papers.at_at.experiment import Params
from replicata.papers.at_at.traces import Trace
from replicata.workflow.cells import Cell
from replicata.workflow.layout import repo_root


def tau2_rows(params: Params, cell: Cell) -> pd.DataFrame:
    """Return one row per task, trial and arm of one domain.

    Raises
    ------
    NotRun
        If a simulation file is not there.
    """
    settings, domain = params.tau2, cell.params["domain"]
    if settings is None:
        raise NotRun("the params have no section tau2")
    rows: list[dict[str, Any]] = []
    for arm in settings.arms:
        path = repo_root() / settings.results / f"{domain}-{arm}.json"
        if not path.is_file():
            raise NotRun(f"{settings.results}/{domain}-{arm}.json is not there: run tau2-bench")
        for run in read_simulations(path):
            rows.append(
                {
                    "arm": arm,
                    "unit": str(run["task_id"]),
                    "metric": "passed",
                    "value": float(run["reward_info"]["reward"] >= 1),
                    "domain": domain,
                    "trial": run.get("trial", 0),
                }
            )
    return pd.DataFrame(rows)


def read_simulations(path: Path) -> list[dict[str, Any]]:
    """Return the simulations of a tau2-bench file.

    Raises
    ------
    UsageError
        If the file is none.
    """
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))["simulations"]
        for run in runs:
            float(run["reward_info"]["reward"])
            str(run["task_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path.name} is no tau2-bench simulation file: {type(error).__name__} {error}"
        ) from None
    return runs


def to_traces(path: Path, listed: str) -> list[Trace]:
    """Convert simulations to traces; ``listed`` is the digest of the tool list they ran under."""
    traces = []
    for number, run in enumerate(read_simulations(path)):
        messages = run.get("messages", [])
        results = {m.get("id"): m for m in messages if m.get("role") == "tool"}
        steps = []
        for message in messages:
            for call in message.get("tool_calls") or []:
                result = results.get(call.get("id"), {})
                text = str(result.get("content") or "")
                steps.append(
                    {
                        "i": len(steps),
                        "tool": call["name"],
                        "args": call.get("arguments", {}),
                        "is_error": bool(result.get("error")),
                        "error_kind": "tool" if result.get("error") else None,
                        "result_text": text,
                        "chars": len(text),
                    }
                )
        said = [str(m.get("content") or "") for m in messages if m.get("role") == "user"]
        traces.append(
            Trace.model_validate(
                {
                    "trace_id": f"{run['task_id']}.{run.get('trial', number)}",
                    "server": "tau2",
                    "tools_sha256": listed,
                    "task_id": str(run["task_id"]),
                    "request": said[0] if said else "",
                    "steps": steps,
                    "eval": {"pass": float(run["reward_info"]["reward"]) >= 1},
                }
            )
        )
    return traces
