"""The protocol: what a study registers before its first confirmatory record (``draft.yaml``).

Unknown keys, missing keys and values of another type are errors. What the file says is data for
everything that follows: the sample plan decides when collecting is complete, the rules turn numbers
into verdicts, the pins decide which models may answer.
"""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from replicata.claims.rules import RuleError, rule_names
from replicata.errors import UsageError, nearest
from replicata.preregistration.canonical import canonical
from replicata.workflow.params import read_yaml

Status = Literal["confirmatory", "descriptive", "exploratory"]
SLUG = r"^[a-z0-9][a-z0-9_-]*$"


class Part(BaseModel):
    """Base of all parts of a protocol: strict, and unchangeable once it is read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Rule(Part):
    """When a hypothesis counts as supported, and when as contradicted; else it is inconclusive."""

    supported: str
    contradicted: str | None = None

    @model_validator(mode="after")
    def _readable(self) -> "Rule":
        for text in (self.supported, self.contradicted):
            if text is not None:
                try:
                    rule_names(text)
                except RuleError as error:
                    raise ValueError(f"a decision rule: {error}") from None
        return self


class Hypothesis(Part):
    """One hypothesis: its estimand and test in words, its level or bound, its decision rule."""

    id: str = Field(pattern=SLUG)
    statement: str = Field(min_length=1)
    status: Status
    estimand: str = Field(min_length=1)
    test: str = Field(min_length=1)
    family: str | None = None
    alpha: float | None = Field(default=None, gt=0, lt=1)
    bound: float | None = None
    rule: Rule | None = None

    @model_validator(mode="after")
    def _complete(self) -> "Hypothesis":
        if self.status == "confirmatory" and (self.rule is None or self.alpha is None):
            raise ValueError(f"confirmatory hypothesis {self.id} needs an alpha and a rule")
        if self.status != "confirmatory" and (self.rule is not None or self.family is not None):
            raise ValueError(f"{self.status} result {self.id} takes no rule and no family")
        return self


class Sample(Part):
    """How much is collected, and by which rule; the plan is never cut while it runs."""

    rule: str = Field(min_length=1)
    units: int = Field(ge=1)
    planned_cells: int = Field(ge=1)


class Exclusions(Part):
    """Which units are left out of an analysis, in words; the study's code applies it."""

    rule: str = Field(min_length=1)
    max_share: float = Field(ge=0, le=1)


class Endpoint(Part):
    """Who answers: a pinned model file, a named API model, or a synthetic control."""

    kind: Literal["local", "api", "synthetic"]
    pin: str = Field(min_length=1)
    decoding: dict[str, Any] = {}
    replayable: bool = False

    @model_validator(mode="after")
    def _seeded(self) -> "Endpoint":
        if self.decoding.get("temperature", 0) and "seed" not in self.decoding:
            raise ValueError("temperature above 0 needs a seed")
        return self


class Analysis(Part):
    """The code that turns records into results.

    ``entry_point`` is ``module:NAME`` of the study's `Study`; everything of this repository that
    it imports is frozen with it. ``modules`` are frozen in addition, with all that they import, and
    ``files`` too (lock files, data, prompts); of notebooks, the code cells only.
    """

    entry_point: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class Seeds(Part):
    """``late_bound``: the seeds of units depend on the timestamp token, so none exists before."""

    rule: Literal["fixed", "late_bound"]
    global_seed: int = Field(ge=0)


class Power(Part):
    """What the power simulation said, and the digest of the file that holds it, if there is one."""

    statement: str = Field(min_length=1)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class Pilot(Part):
    """What was tried before, and the names of its units (``*`` and ``?`` as in file names)."""

    disclosure: str = Field(min_length=1)
    units: tuple[str, ...] = ()

    def covers(self, unit: str) -> bool:
        """Say whether ``unit`` was a pilot unit."""
        return any(fnmatchcase(unit, pattern) for pattern in self.units)


class Timestamp(Part):
    """Who attests the time: ``local`` for a throw-away test authority, or the URL of a real one.

    ``roots`` is the PEM file of the authority's root certificates, beside the protocol; a local
    authority makes its own.
    """

    authority: str = Field(pattern=r"^(local|https?://.+)$")
    roots: str | None = None

    @model_validator(mode="after")
    def _rooted(self) -> "Timestamp":
        if (self.authority == "local") == (self.roots is not None):
            raise ValueError("a remote authority needs roots, and a local one makes its own")
        return self


class Protocol(Part):
    """A whole protocol; see the module's docstring."""

    schema_version: Literal[1] = Field(alias="schema")
    study: str = Field(pattern=SLUG)
    profile: Literal["smoke", "cpu", "paper"]
    title: str = Field(min_length=1)
    hypotheses: tuple[Hypothesis, ...] = Field(min_length=1)
    families: tuple[str, ...] = ()
    sample: Sample
    exclusions: Exclusions
    endpoints: dict[str, Endpoint] = Field(min_length=1)
    analysis: Analysis
    seeds: Seeds
    stopping: str = Field(min_length=1)
    power: Power
    pilot: Pilot
    access: str = Field(min_length=1)
    timestamp: Timestamp
    retries: int = Field(default=2, ge=0)
    allow_unstamped: bool = False
    settings: dict[str, Any] = {}

    @model_validator(mode="after")
    def _consistent(self) -> "Protocol":
        ids = [hypothesis.id for hypothesis in self.hypotheses]
        if len(set(ids)) < len(ids):
            raise ValueError(
                f"hypothesis {next(i for i in ids if ids.count(i) > 1)} is there twice"
            )
        used = {h.family for h in self.hypotheses if h.family is not None}
        if used != set(self.families):
            raise ValueError(
                f"families lists {sorted(self.families)}, but the hypotheses use {sorted(used)}"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the protocol as JSON values, all defaults written out."""
        return self.model_dump(mode="json", by_alias=True)

    def hypothesis(self, hypothesis_id: str) -> Hypothesis | None:
        """Return a hypothesis by its id, or None."""
        return next((h for h in self.hypotheses if h.id == hypothesis_id), None)


def load_draft(path: Path) -> Protocol:
    """Read and check a ``draft.yaml``.

    Raises
    ------
    UsageError
        If the file is missing or no YAML, or a key is unknown, missing, twice there or of another
        type; the sentence names file, key, value and what was expected.
    """
    return validate_protocol(read_yaml(path), path.name)


def validate_protocol(values: Any, shown: str) -> Protocol:
    """Return ``values`` (JSON) as a protocol; ``shown`` is the file the sentence names.

    Keys come in canonical order, so that nothing can depend on the order they were written in.

    Raises
    ------
    UsageError
        If they do not fit the schema.
    """
    try:
        return Protocol.model_validate_json(canonical(values, shown))
    except ValidationError as error:
        raise UsageError(_sentence(error, shown)) from None


def _sentence(error: ValidationError, shown: str) -> str:
    first, *more = error.errors(include_url=False)
    key = ".".join(map(str, first["loc"])) or "(the whole file)"
    others = f" (and {len(more)} more such errors)" if more else ""
    if first["type"] == "extra_forbidden":
        known = {
            field.alias or name for part in _PARTS for name, field in part.model_fields.items()
        }
        return f"{shown}: unknown key {key}{nearest(str(first['loc'][-1]), known)}{others}"
    if first["type"] == "missing":
        return f"{shown}: key {key} is missing{others}"
    if first["type"] == "value_error":
        return f"{shown}: {key}: {first['msg'].removeprefix('Value error, ')}{others}"
    value = json.dumps(first["input"], ensure_ascii=False)
    expected = first["msg"].removeprefix("Input should be ")
    return f"{shown}: key {key} is {value}, expected {expected}{others}"


_PARTS: tuple[type[Part], ...] = (
    Protocol,
    Rule,
    Hypothesis,
    Sample,
    Exclusions,
    Endpoint,
    Analysis,
    Seeds,
    Power,
    Pilot,
    Timestamp,
)
