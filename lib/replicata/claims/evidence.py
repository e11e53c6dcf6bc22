"""Evidence: what a paper's analysis found for one claim, and nothing about the verdict."""

from typing import Any

import numpy as np
from pydantic import Field, model_validator

from replicata.claims.rules import Quantity
from replicata.claims.strict import Strict


def _plain(value: Any) -> Any:
    """Return ``value`` with numpy's scalars as Python's, so that they survive JSON."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value


class Measured(Strict):
    """The numbers behind a verdict; see `Evidence` for their meaning."""

    quantities: dict[str, Quantity] = Field(default_factory=dict)
    estimate: float | None = None
    estimate_unit: str = ""
    interval: tuple[float, float] | None = None
    interval_kind: str = ""
    p_value: float | None = None
    smallest_p: float | None = None
    test: str | None = None
    n: int | None = None
    n_unit: str = ""
    mde: float | None = None
    no_mde: str | None = None
    notes: list[str] = Field(default_factory=list)
    scale_note: str | None = None


class Evidence(Measured):
    """What an analysis found for one claim.

    Attributes
    ----------
    quantities
        Everything the rule uses, by name, and the headline; numbers and truth values.
    estimate, estimate_unit
        The number on the front page; left out, it is the headline quantity. Its unit, if any.
    interval, interval_kind
        Its lower and upper end, and what they are: "95 % cluster bootstrap over 34 contexts".
    p_value, smallest_p, test
        Of the test named by ``test``, and the smallest p that these data could give.
    n, n_unit
        How many of what was generalised over: 34, "contexts".
    mde, no_mde
        Smallest effect that would have been found, in the unit of the estimate, or why no size can
        be given. One of the two is needed where a comparative or numeric claim stays inconclusive.
    notes
        Sentences for the reader.
    scale_note
        What the scale of this run leaves open.
    """

    quantities: dict[str, Quantity]
    n: int
    n_unit: str

    @model_validator(mode="before")
    @classmethod
    def _without_numpy(cls, values: Any) -> Any:
        return _plain(values)
