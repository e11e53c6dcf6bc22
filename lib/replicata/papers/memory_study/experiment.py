"""The memory study as cells of the pipeline: one per shard of its plan, and one for the audit.

At ``cpu`` and ``paper`` the study is registered in ``protocols/``: under the results root of its
records a cell reads the sealed shard, under any other root it asks everything again. At ``smoke``
the study is rehearsed: its whole life cycle in a throw-away copy of the repository.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from replicata.errors import NotRun
from replicata.preregistration.audit import CHECKS, audit
from replicata.preregistration.places import Places, State, state_of
from replicata.preregistration.protocol import load_draft
from replicata.preregistration.registration import load_registration
from replicata.preregistration.rehearsal import Rehearsal, rehearse
from replicata.preregistration.rerun import RESULTS, shard_observations
from replicata.preregistration.study import Observation
from replicata.workflow.cells import Cell, StrictParams
from replicata.workflow.files import sha256_file
from replicata.workflow.layout import repo_root

if TYPE_CHECKING:
    import pandas as pd

GROUPS = ("answers", "audit")
ITEMS = {item: name for item, (name, _) in CHECKS.items()}
"""Names of the audit's items."""


class Params(StrictParams):
    """Parameters of the memory study; what is asked of whom stands in its protocol.

    Attributes
    ----------
    study
        Directory of the protocol under ``protocols/``.
    profile
        Whose results hold the registered records.
    rehearsed_audit
        Where the study is not registered but rehearsed from its draft: the draft whose rehearsal
        is audited and tampered with.
    seed
        The protocol's global seed, for what its analysis draws.
    memory_mb
        Peak memory of a cell.
    """

    study: str
    profile: str
    rehearsed_audit: str | None = None
    seed: int
    memory_mb: int = Field(ge=1)


def places_of(params: Params, root: Path = RESULTS) -> Places:
    """Return the study's files, with records under the given results root."""
    return Places(repo_root(), params.study, params.profile, results=root)


def _draft(study: str) -> Path:
    return Places(repo_root(), study, "smoke").draft


def cells(params: Params) -> list[Cell]:
    """List the cells; their params carry the digests of what they read, so that they go stale."""
    places = places_of(params)
    if params.rehearsed_audit is not None:
        drafts = {"answers": places.draft, "audit": _draft(params.rehearsed_audit)}
        return [
            Cell(
                id=f"rehearsal-{group}",
                group=group,
                params={"draft": sha256_file(path)},
                memory_mb=params.memory_mb,
            )
            for group, path in drafts.items()
        ]
    if places.frozen.exists():
        registration = load_registration(places)
        protocol, head = registration.protocol, registration.head
    else:
        protocol, head = load_draft(places.draft), "not frozen"
    from replicata.papers.memory_study.registration import planned_cells

    shards = dict.fromkeys(cell.shard for cell in planned_cells(protocol))
    listed = [
        Cell(
            id=shard.replace("_", "-"),
            group="answers",
            params={"shard": shard, "protocol": head},
            memory_mb=params.memory_mb,
            # The longest first.
            priority=0 if shard.startswith("control") else 10,
        )
        for shard in shards
    ]
    audited = {
        path.name: sha256_file(path) if path.exists() else "none"
        for path in (places.frozen, places.deviations, places.seal, places.results_json)
    }
    return [*listed, Cell(id="audit", group="audit", params=audited, memory_mb=params.memory_mb)]


def run(params: Params, cell: Cell, root: Path) -> "pd.DataFrame":
    """Run one cell and return its tidy rows.

    Parameters
    ----------
    params, cell
        What to run.
    root
        The results root that the table is for.

    Returns
    -------
    DataFrame
        Group ``answers``: one row per metric of an answer; unit is the world, arm the memory.
        Group ``audit``: one row per item, 1 unless it FAILs, with its ``status`` and ``detail``.

    Raises
    ------
    NotRun
        If the protocol is not frozen, or the registered records are not sealed or analysed yet.
    """
    if params.rehearsed_audit is not None:
        if cell.group == "answers":
            return answer_rows(_rehearse(params.study).observed)
        found = _rehearse(params.rehearsed_audit)
        return audit_rows(
            [(item, name, found.audit[item], "") for item, name in ITEMS.items()]
            + [(f"tampered {item}", ITEMS[item], found.tampered[item], "") for item in ITEMS]
        )
    if cell.group == "answers":
        places = places_of(params, root)
        return answer_rows(shard_observations(places, cell.params["shard"]))
    return _audited(places_of(params))


def _rehearse(study: str) -> Rehearsal:
    return rehearse(repo_root(), study)


def _audited(places: Places) -> "pd.DataFrame":
    import pandas as pd

    if state_of(places) < State.ANALYSED:
        raise NotRun(f"study {places.study} is not analysed yet")
    items = audit(places).items
    listed = audit_rows([(item.id, item.name, item.status, item.detail) for item in items])
    return pd.concat([listed, time_rows(places), deviation_rows(places)], ignore_index=True)


def time_rows(places: Places) -> "pd.DataFrame":
    """Return the study's times as rows: value is in seconds since 1970, UTC."""
    import pandas as pd

    from replicata.preregistration.seal import read_shards
    from replicata.preregistration.timestamp import verify_stamp

    registration = load_registration(places)
    records = [
        datetime.fromisoformat(record["t_utc"])
        for shard in read_shards(registration).values()
        for record in shard.chain.records
    ]
    results = json.loads(places.results_json.read_text(encoding="utf-8"))
    times = {
        "protocol stamped": verify_stamp(registration, places.frozen).time,
        "first record": min(records),
        "last record": max(records),
        "seal stamped": verify_stamp(registration, places.seal).time,
        "analysed": datetime.fromisoformat(results["analysed_utc"]),
    }
    return pd.DataFrame(
        [
            {
                "arm": "time",
                "unit": name,
                "metric": "time",
                "value": moment.timestamp(),
                "status": "",
                "detail": f"{moment:%Y-%m-%d %H:%M:%S} UTC",
            }
            for name, moment in times.items()
        ]
    )


def deviation_rows(places: Places) -> "pd.DataFrame":
    """Return the listed deviations as rows, none if there are none."""
    import pandas as pd

    from replicata.preregistration.deviations import read_deviations

    return pd.DataFrame(
        [
            {
                "arm": f"deviation {number}",
                "unit": ", ".join(record["affects"]),
                "metric": "deviation",
                "value": 1.0,
                "status": record["what"],
                "detail": record["why"],
            }
            for number, record in enumerate(read_deviations(load_registration(places)).records, 1)
        ]
    )


def audit_rows(items: list[tuple[str, str, str, str]]) -> "pd.DataFrame":
    """Return audit items as tidy rows, from (item, name, status, detail)."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "arm": item,
                "unit": name,
                "metric": "audit",
                "value": float(status != "FAIL"),
                "status": status,
                "detail": detail,
            }
            for item, name, status, detail in items
        ]
    )


def answer_rows(observed: list[Observation]) -> "pd.DataFrame":
    """Return observations as tidy rows, one per metric; raw responses stand in ``response``.

    Metrics of a choice are ``worse`` (0, .5 or 1) and ``p_worse``; of a guided lesson ``p_good``
    and so on and ``says_good`` and so on (0 or 1); of a free one ``names_tool``. A missing answer
    has the metric ``missing``.
    """
    import pandas as pd

    rows = []
    for item in observed:
        common = {
            "arm": item.cell.params["memory"],
            "unit": item.cell.unit,
            "endpoint": item.cell.endpoint,
            "phase": item.cell.params["phase"],
            "scenario": item.cell.params["scenario"],
            "log": item.cell.params["log"],
            "outcome": item.cell.params["outcome"],
            "response": json.dumps(item.response, sort_keys=True),
        }
        rows += [common | {"metric": key, "value": value} for key, value in _metrics(item).items()]
    return pd.DataFrame(rows)


def _metrics(item: Observation) -> dict[str, float]:
    if item.missing is not None:
        return {"missing": 1.0}
    found: dict[str, float] = {}
    for key, value in item.outcome.items():
        if key == "verdict":
            found[f"says_{value}"] = 1.0
        else:
            found[key] = 0.5 if value == "1/2" else float(value)
    return found
