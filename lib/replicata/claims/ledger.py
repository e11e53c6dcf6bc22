"""The claim ledger: ``claims.yaml`` of a paper's room, read strictly.

Every claim of the paper is in it, with the rule that will turn evidence into a verdict, or with the
reason why it cannot be tested here. It is written before the cells are run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from replicata.claims.rules import RuleError, rule_names
from replicata.claims.strict import Strict
from replicata.errors import UsageError, nearest
from replicata.workflow.params import read_yaml

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Kind = Literal["theorem", "numeric", "comparative", "descriptive", "procedural"]
Source = Literal["stated", "reconstructed"]


class Paper(Strict):
    """Which paper, and what it says in a few sentences."""

    slug: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: Text
    authors: Text
    reference: Text
    summary: Text


class Rule(Strict):
    """When a claim is supported or contradicted; otherwise the verdict is ``inconclusive``.

    The conditions are in the language of ``replicata.claims.rules``. Without ``contradicted`` the
    claim can be supported or inconclusive only.
    """

    supported: Text
    contradicted: Text | None = None
    otherwise: Literal["inconclusive"] = "inconclusive"

    @field_validator("supported", "contradicted")
    @classmethod
    def _in_the_language(cls, condition: str | None) -> str | None:
        if condition is not None and not rule_names(condition):
            raise RuleError("uses no quantity, so no evidence can change it")
        return condition

    @property
    def names(self) -> frozenset[str]:
        """The quantities that the rule uses."""
        names = rule_names(self.supported)
        return names | rule_names(self.contradicted) if self.contradicted else names


class Claim(Strict):
    """One claim of a paper.

    Attributes
    ----------
    id
        ``<slug>.<suffix>``; the suffix is the key in the analysis's ``EVIDENCE``.
    statement
        What the paper claims.
    source
        Whether the paper states it or we reconstructed it.
    paper_value
        The paper's number or word, shown beside ours.
    kind
        A ``numeric`` or ``comparative`` claim that ends inconclusive must say what effect it could
        have detected.
    groups
        The groups of cells it needs.
    test, shows
        How it is tested here, and what that shows and does not show.
    rule, headline
        The decision rule, and the quantity that is the estimate on the front page.
    not_testable
        Why it cannot be tested at this scale; then it has no groups, rule or headline.
    """

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$")
    statement: Text
    source: Source
    paper_value: Text
    kind: Kind
    groups: list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]] = Field(default_factory=list)
    test: Text | None = None
    shows: Text | None = None
    rule: Rule | None = None
    headline: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")] | None = None
    not_testable: Text | None = None

    @property
    def suffix(self) -> str:
        """The part of the id after the slug, such as ``c2``."""
        return self.id.partition(".")[2]

    @model_validator(mode="after")
    def _testable_or_not(self) -> Self:
        if len(set(self.groups)) < len(self.groups):
            raise ValueError(f"groups {self.groups} names a group twice")
        if self.not_testable is None:
            for key in ("groups", "rule", "headline", "test", "shows"):
                if not getattr(self, key):
                    raise ValueError(
                        f"{key} is missing, expected it in a claim without not_testable"
                    )
        else:
            for key in ("groups", "rule", "headline"):
                if getattr(self, key):
                    raise ValueError(f"{key} is given, but not_testable says that nothing is run")
        return self


class Ledger(Strict):
    """All claims of a paper, in the order of its spec."""

    schema_version: Literal[1] = Field(alias="schema")
    paper: Paper
    claims: list[Claim] = Field(min_length=1)

    @model_validator(mode="after")
    def _ids(self) -> Self:
        seen: set[str] = set()
        for claim in self.claims:
            if claim.id in seen:
                raise ValueError(f"id {claim.id} is there twice, expected it once")
            if claim.id != f"{self.paper.slug}.{claim.suffix}":
                raise ValueError(
                    f"id {claim.id} does not begin with the paper's slug, "
                    f"expected {self.paper.slug}.{claim.suffix}"
                )
            seen.add(claim.id)
        return self


def load_ledger(path: Path) -> Ledger:
    """Read and check a ``claims.yaml``.

    Raises
    ------
    UsageError
        If the file is missing or no YAML, a key is unknown, missing or twice there, a value is of
        another type, an id is twice there or has another slug, a testable claim lacks its rule, or
        a rule is not in the language: one sentence that names file, claim, key and value.
    """
    values = read_yaml(path)
    try:
        return Ledger.model_validate(values)
    except ValidationError as error:
        raise UsageError(_sentence(path, values, error)) from None


def _sentence(path: Path, values: Mapping[str, Any], error: ValidationError) -> str:
    errors = error.errors(include_url=False)
    # A misspelt key is also a missing one; the misspelling is what to say.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    location, kind, value = first["loc"], first["type"], first["input"]
    where = f"{path.name}: "
    if location[:1] == ("claims",) and len(location) > 1:
        claim = values["claims"][location[1]]
        named = isinstance(claim, dict) and isinstance(claim.get("id"), str)
        where += f"claim {claim['id']}: " if named else f"claim number {location[1] + 1}: "
        location = location[2:]
    key = ".".join(str(part) for part in location)
    if kind == "extra_forbidden":
        hint = nearest(str(location[-1]), _known_keys(first["loc"]))
        return f"{where}unknown key {key}{hint}"
    if kind == "missing":
        return f"{where}key {key} is missing"
    if kind == "value_error":
        problem = first["ctx"]["error"]
        if isinstance(problem, RuleError):
            return f"{where}{key} {problem} (the rule: {' '.join(str(value).split())!r})"
        return f"{where}{problem}"
    shown = json.dumps(value, ensure_ascii=False, default=str)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    expected = _EXPECTED.get(kind) or first["msg"].removeprefix("Input should be ")
    return f"{where}{key or 'the claim'} is {shown}, expected {expected}"


_EXPECTED = {
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "list_type": "a list",
    "model_type": "a mapping",
    "too_short": "at least one claim",
}


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the schema has beside the unknown key at ``location``."""
    model: type[BaseModel] = Ledger
    for part, below in (("paper", Paper), ("claims", Claim), ("rule", Rule)):
        if part in location[:-1]:
            model = below
    return [field.alias or name for name, field in model.model_fields.items()]
