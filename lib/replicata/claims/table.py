"""Decisions as text, for the terminal, the report and the README: one spelling everywhere."""

import json
import math
from collections.abc import Mapping
from typing import Any

from replicata.claims.rules import Quantity
from replicata.claims.verdicts import INCONCLUSIVE, ClaimsDocument, Decision

NONE = "—"


def verdict_rows(claims_json: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return one row of text per claim.

    Parameters
    ----------
    claims_json
        The parsed ``claims.json``.

    Returns
    -------
    list of dict
        Keys: ``id``, ``statement``, ``source`` (stated or reconstructed), ``kind``, ``paper`` (the
        paper's value), ``ours`` (the estimate), ``p``, ``n``, ``verdict``, ``note`` (why it was
        not decided, or the smallest effect that an inconclusive test could have found). What there
        is not is a dash.

    Raises
    ------
    pydantic.ValidationError
        If it is not what ``ledger_document`` writes.
    """
    document = ClaimsDocument.model_validate_json(json.dumps(claims_json))
    return [
        {
            "id": decision.id,
            "statement": decision.statement,
            "source": decision.source,
            "kind": decision.kind,
            "paper": decision.paper_value,
            "ours": format_estimate(decision),
            "p": format_p(decision.p_value),
            "n": format_n(decision),
            "verdict": decision.verdict,
            "note": format_note(decision),
        }
        for decision in document.claims
    ]


def format_estimate(decision: Decision) -> str:
    """Return the headline with its interval and unit, such as ``0.53 [0.51, 0.55] nats``.

    The interval decides how many digits are worth printing: its half-width gets one, or two if
    the first is a 1. A number that is not 0 is never printed as 0. Without an interval there are
    three digits.
    """
    value: Quantity | None = decision.estimate
    if decision.headline in decision.quantities:
        value = decision.quantities[decision.headline]
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    unit = f" {decision.estimate_unit}" if decision.estimate_unit else ""
    if decision.interval is None or decision.interval[0] == decision.interval[1]:
        text = format_number(value)
        if decision.interval is not None:
            text += f" [{', '.join(map(format_number, decision.interval))}]"
        return text + unit
    low, high = decision.interval
    largest = max(abs(low), abs(high), abs(value))
    decimals = _decimals_of((high - low) / 2)
    center, *ends = (_rounded(x, decimals, largest) for x in (value, low, high))
    return f"{center} [{', '.join(ends)}]{unit}"


def format_number(value: Quantity) -> str:
    """Return a number with three significant digits, a whole number below a million in full."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e" in text else text


def format_p(p_value: float | None) -> str:
    """Return ``p`` with two digits, or as many as keep it on its side of .05; a dash for None."""
    if p_value is None:
        return NONE
    if p_value < 1e-4:
        return "p < 0.0001"
    digits = 2
    while (float(f"{p_value:.{digits}g}") < 0.05) != (p_value < 0.05):
        digits += 1
    text = f"{p_value:.{digits}g}"
    return "p > 0.99" if text == "1" and p_value < 1 else f"p = {text}"


def format_n(decision: Decision) -> str:
    """Return ``n`` with its unit, such as ``34 contexts``; a dash where nothing was measured."""
    return NONE if decision.n is None else f"{decision.n} {decision.n_unit}"


def format_note(decision: Decision) -> str:
    """Return why a claim was not decided, or what an inconclusive test would have found."""
    if decision.reason is not None:
        return decision.reason
    if decision.verdict != INCONCLUSIVE:
        return NONE
    if decision.mde is not None:
        unit = f" {decision.estimate_unit}" if decision.estimate_unit else ""
        return f"smallest detectable effect {format_number(decision.mde)}{unit}"
    return decision.no_mde or NONE


def _decimals_of(half_width: float) -> int:
    """Return the decimal place to round to, from the first digits of an interval's half-width."""
    mantissa, exponent = f"{half_width:.11e}".split("e")
    return -int(exponent) + (mantissa[0] == "1")


def _rounded(value: float, decimals: int, largest: float) -> str:
    """Return ``value`` to ``decimals`` places, in the notation that suits the ``largest`` shown."""
    value += 0.0  # -0.0 becomes 0.0
    magnitude = math.floor(math.log10(largest))
    if -3 <= magnitude < 6:
        text = f"{value:.{max(decimals, 0)}f}"
    else:
        own = math.floor(math.log10(abs(value))) if value else 0
        text = f"{value:.{max(decimals + own, 0)}e}" if value else "0"
    vanished = value != 0 and float(text) == 0
    return f"{value:.1g}" if vanished else text
