"""AT-AT's experiment: parameters, cells, and what a cell runs.

Groups of cells:

* ``routing`` (study S1): every arm on one halving of real requests, one row per request (c1, c3);
* ``servers`` (study S2): every arm on one copy of an MCP server with planted defects (c2, c6, c7);
* ``tau2``: results of tau2-bench runs, read from files (c1, c2 at the paper's scale).
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from replicata.workflow.cells import Cell, StrictParams

if TYPE_CHECKING:
    import pandas as pd

ServerName = Literal["orders", "fleet", "ledger"]


class RoutingParams(StrictParams):
    """Study S1: halvings, and how many requests and tools; all of them where none is given."""

    repeats: int = Field(ge=1)
    requests: int | None = Field(default=None, ge=8)
    tools: int | None = Field(default=None, ge=2)


class ServersParams(StrictParams):
    """Study S2: servers, copies per server, and requests per tool and split."""

    names: list[ServerName]
    copies: int = Field(ge=1)
    train_per_tool: int = Field(ge=1)
    heldout_per_tool: int = Field(ge=1)


class CoderParams(StrictParams):
    """The language-model optimiser: an OpenAI-compatible endpoint."""

    base_url: str
    model: str
    api_key_env: str | None = None
    temperature: float = Field(ge=0)
    turns: int = Field(ge=1)


class Tau2Params(StrictParams):
    """Results of tau2-bench's own runner: a simulation file per domain and arm."""

    domains: list[Literal["airline", "telecom"]]
    results: str
    arms: list[str]


class Params(StrictParams):
    """Parameters of AT-AT; the same code runs in all profiles."""

    seed: int
    routing: RoutingParams
    servers: ServersParams
    coder: CoderParams | None = None
    tau2: Tau2Params | None = None
    memory_mb: int = Field(ge=1)


GROUPS = ("routing", "servers", "tau2")


def cells(params: Params) -> list[Cell]:
    """List the cells: a halving or a copy of a server each."""
    listed = [
        Cell(
            id=f"routing-{repeat}",
            group="routing",
            params={"repeat": repeat},
            priority=20,
            memory_mb=params.memory_mb,
        )
        for repeat in range(params.routing.repeats)
    ]
    for name in params.servers.names:
        listed.append(
            Cell(
                id=f"servers-{name}",
                group="servers",
                params={"server": name},
                priority=10,
                memory_mb=params.memory_mb,
            )
        )
    if params.tau2 is not None:
        listed += [
            Cell(id=f"tau2-{domain}", group="tau2", params={"domain": domain})
            for domain in params.tau2.domains
        ]
    return listed


def run(params: Params, cell: Cell) -> "pd.DataFrame":
    """Run one cell and return its tidy rows.

    Raises
    ------
    NotRun
        For a tau2 cell whose result files are not there.
    ResourceError
        When the encoder, the data or an endpoint is missing.
    """
    # Imported here: the Snakefile imports this module to list cells, and torch takes seconds.
    if cell.group == "tau2":
        from replicata.papers.at_at.tau2 import tau2_rows

        return tau2_rows(params, cell)
    from replicata.papers.at_at import studies

    by_group = {"routing": studies.routing, "servers": studies.servers}
    return by_group[cell.group](params, cell)
