"""The notebook's tables: what was registered, what was audited, what was deviated from."""

import json

import pandas as pd

from replicata.papers.memory_study.experiment import Params, places_of
from replicata.papers.memory_study.method import BOUND, Choices, Contrasts, estimate
from replicata.preregistration.protocol import Protocol, load_draft
from replicata.preregistration.registration import load_registration


def protocol_of(params: Params) -> Protocol:
    """Return the protocol in force: frozen where there is one, else the draft."""
    places = places_of(params)
    if places.frozen.exists():
        return load_registration(places).protocol
    return load_draft(places.draft)


def registered(protocol: Protocol) -> pd.DataFrame:
    """Return hypotheses and other registered results, in the protocol's order."""
    return pd.DataFrame(
        [
            {
                "id": item.id,
                "status": item.status,
                "family": item.family or "",
                "what is estimated": item.estimand,
                "how it is decided": item.test,
                "supported if": item.rule.supported if item.rule else "",
                "contradicted if": (item.rule.contradicted or "") if item.rule else "",
            }
            for item in protocol.hypotheses
        ]
    ).set_index("id")


def power(params: Params) -> pd.DataFrame:
    """Return the simulation that the protocol refers to; empty where it has none."""
    path = places_of(params).protocol_dir / "power.json"
    if not path.exists():
        return pd.DataFrame()
    found = pd.DataFrame(json.loads(path.read_text(encoding="utf-8"))["table"])
    names = {
        "effect": "true interaction",
        "rejects": "p <= .05",
        "a_a": "p <= .05 after random signs",
        "bounded": "bound < 0.10",
    }
    return found.set_index("rates")[list(names)].rename(columns=names)


def flags(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return, for every endpoint, whether it carries luck over and whether it is bounded (c6).

    Unadjusted, and EXPLORATORY: the column says so.
    """
    from replicata.papers.memory_study.analysis import choices_of

    choices = Choices(choices_of(rows))
    table = []
    for name in rows["endpoint"].unique():
        for scenario in ("unlucky", "lucky"):
            found = estimate(Contrasts(choices, name, scenario).interaction(), 2, seed)
            carries, bounded = found.p_value <= 0.05, found.upper < BOUND
            table.append(
                {
                    "endpoint": name,
                    "scenario": scenario,
                    "interaction": found.mean,
                    "p": found.p_value,
                    "upper bound": found.upper,
                    "flags": " and ".join(
                        [*["carries"] * carries, *["bounded"] * bounded] or ["neither"]
                    ),
                    "status": "EXPLORATORY",
                }
            )
    return pd.DataFrame(table).set_index(["endpoint", "scenario"]).round(3)


def audit(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the audit's items with their status and detail."""
    listed = rows[rows["metric"] == "audit"]
    named = {"arm": "item", "unit": "what is checked", "status": "status", "detail": "detail"}
    return listed[list(named)].rename(columns=named).set_index("item")


def times(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what happened when."""
    listed = rows[rows["metric"] == "time"].sort_values("value", kind="stable")
    return listed[["unit", "detail"]].rename(columns={"unit": "what", "detail": "when"})


def deviations(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the listed deviations: what, why, and which hypotheses they touch."""
    named = {"status": "what", "detail": "why", "unit": "affects"}
    return rows.loc[rows["metric"] == "deviation", list(named)].rename(columns=named)
