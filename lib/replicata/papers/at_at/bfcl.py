"""Study S1's data: requests and functions that users gave to the Berkeley leaderboard (BFCL v4).

``live_multiple`` gives each request a few candidate functions. All functions are pooled into one
shared tool set, so that the agent chooses among hundreds. From the package ``bfcl-eval``
(Apache-2.0), which is located and never imported: it brings dozens of model clients.
"""

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from replicata.errors import ResourceError
from replicata.papers.at_at.tools import Tool

DISTRIBUTION, MODULE = "bfcl-eval", "bfcl_eval"
FILE = "BFCL_v4_live_multiple.json"
SIMPLE = "BFCL_v4_live_simple.json"


@dataclass(frozen=True)
class Request:
    """One request: its text, the tool that serves it, and the candidates it came with."""

    id: str
    text: str
    gold: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Pool:
    """All requests, and all functions as one tool set in order of first appearance."""

    requests: tuple[Request, ...]
    tools: tuple[Tool, ...]


def data_directory() -> Path:
    """Return the package's data directory.

    Raises
    ------
    ResourceError
        If the package is not installed.
    """
    spec = find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise ResourceError(
            f"BFCL data: the package {DISTRIBUTION} is not installed; install it with "
            f"'pip install --no-deps {DISTRIBUTION}'"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def load_pool() -> Pool:
    """Return all 1,053 requests of ``live_multiple`` and their 457 functions.

    A function that comes with several wordings keeps the first; 159 of them do.
    """
    directory = data_directory()
    rows = _lines(directory / FILE)
    gold = {row["id"]: row["ground_truth"] for row in _lines(directory / "possible_answer" / FILE)}
    tools: dict[str, Tool] = {}
    requests = []
    for row in rows:
        for function in row["function"]:
            name = function["name"]
            tools.setdefault(
                name, Tool(name, function["description"], function.get("parameters", {}))
            )
        requests.append(
            Request(
                id=row["id"],
                text=row["question"][0][-1]["content"],
                gold=next(iter(gold[row["id"]][0])),
                candidates=tuple(function["name"] for function in row["function"]),
            )
        )
    return Pool(tuple(requests), tuple(tools.values()))


def load_simple() -> list[Request]:
    """Return the requests of ``live_simple``, which comes with one function each."""
    return [
        Request(
            id=row["id"],
            text=row["question"][0][-1]["content"],
            gold=row["function"][0]["name"],
            candidates=(row["function"][0]["name"],),
        )
        for row in _lines(data_directory() / SIMPLE)
    ]


def subset(pool: Pool, requests: int, tools: int) -> Pool:
    """Return the requests of the most frequent gold tools, and those tools with their rivals.

    For profiles that take seconds: gold tools are added by falling frequency until ``requests`` is
    reached, and further tools in order of appearance until there are ``tools``.
    """
    counts: dict[str, int] = {}
    for request in pool.requests:
        counts[request.gold] = counts.get(request.gold, 0) + 1
    taken: list[Request] = []
    kept: list[str] = []
    per_tool = max(4, requests // 8)
    for name in sorted(counts, key=lambda key: (-counts[key], key)):
        if len(taken) >= requests:
            break
        taken += [request for request in pool.requests if request.gold == name][:per_tool]
        kept.append(name)
    names = dict.fromkeys([*kept, *(tool.name for tool in pool.tools)])
    chosen = set(list(names)[: max(tools, len(kept))])
    return Pool(tuple(taken[:requests]), tuple(tool for tool in pool.tools if tool.name in chosen))


def _lines(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream if line.strip()]
