"""Verdicts: a claim's rule applied to its evidence, and the ``claims.json`` that holds them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from replicata.claims.evidence import Evidence, Measured
from replicata.claims.ledger import Claim, Kind, Ledger, Rule, Source
from replicata.claims.rules import Quantity, RuleError, evaluate_rule, is_finite
from replicata.claims.strict import Strict
from replicata.errors import RunError, VerificationError, nearest
from replicata.workflow.files import digest

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
INCONCLUSIVE = "inconclusive"
NOT_TESTABLE = "not testable at this scale"
NOT_RUN = "not run: "


class Decision(Measured):
    """A claim with its verdict, and the evidence it rests on.

    Attributes
    ----------
    id, statement, source, kind, paper_value, how_tested, shows, headline, rule
        From the ledger; ``how_tested`` is the ledger's ``test``.
    rule_sha256
        Of the rule's canonical JSON; None where there is no rule.
    verdict
        ``supported``, ``contradicted``, ``inconclusive``, ``not testable at this scale`` or
        ``not run: <reason>``.
    reason
        Why it is not testable or was not run; None where it was decided.

    The others are the evidence's, empty where there is none.
    """

    id: str
    statement: str
    source: Source
    kind: Kind
    paper_value: str
    how_tested: str | None
    shows: str | None
    headline: str | None
    rule: Rule | None
    rule_sha256: str | None
    verdict: str = Field(
        pattern=r"^(supported|contradicted|inconclusive|not testable at this scale|not run: .+)$"
    )
    reason: str | None = None

    @model_validator(mode="after")
    def _rule_digest(self) -> Self:
        if self.rule_sha256 != _rule_sha256(self.rule):
            raise ValueError(f"rule_sha256 of {self.id} is not the digest of its rule")
        return self


class ClaimsDocument(Strict):
    """What ``claims.json`` holds: the decisions of one paper in one profile, and no times."""

    paper: str
    profile: str
    ledger_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    params_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    claims: list[Decision]


def decide(claim: Claim, evidence: Evidence | None, not_run: str | None = None) -> Decision:
    """Turn the evidence for a claim into its verdict.

    Parameters
    ----------
    claim
        From the ledger.
    evidence
        From the paper's analysis; None if the claim is not testable or was not run.
    not_run
        Why cells that the claim needs could not be run here, if they could not.

    Returns
    -------
    Decision
        ``not testable at this scale`` if the ledger says so; else ``not run: <reason>`` if there
        is a reason; else what the rule says.

    Raises
    ------
    RunError
        If there is no evidence or there is both evidence and a reason; a quantity is missing, not
        finite or of the wrong kind; the numbers contradict each other; supported and contradicted
        hold at once; or an inconclusive numeric or comparative claim does not say what it could
        have detected.
    """
    if claim.not_testable is not None:
        return _decision(claim, NOT_TESTABLE, reason=claim.not_testable)
    if not_run is not None:
        reason = " ".join(not_run.split())
        if evidence is not None or not reason:
            raise RunError(
                f"claim {claim.id} is reported as not run, expected a reason and no evidence"
            )
        return _decision(claim, NOT_RUN + reason, reason=reason)
    if evidence is None or claim.rule is None or claim.headline is None:
        raise RunError(f"claim {claim.id} has no evidence, no reason for that, or no rule")

    estimate = _check(claim, claim.headline, evidence)
    verdict = _apply(claim.id, claim.rule, evidence.quantities)
    if (
        verdict == INCONCLUSIVE
        and claim.kind in ("numeric", "comparative")
        and evidence.mde is None
        and evidence.no_mde is None
    ):
        raise RunError(
            f"claim {claim.id} is inconclusive and its minimal detectable effect is missing, "
            "expected mde, or no_mde with the reason why there is none"
        )
    return _decision(claim, verdict, **{**evidence.model_dump(), "estimate": estimate})


def ledger_document(
    ledger: Ledger,
    profile: str,
    decisions: Iterable[Decision],
    *,
    ledger_sha256: str,
    params_sha256: str,
) -> dict[str, Any]:
    """Return what ``claims.json`` holds, as JSON values; the same input gives the same values.

    Raises
    ------
    RunError
        If the decisions are not one for each claim of the ledger, in its order.
    """
    decisions = list(decisions)
    wanted, got = [claim.id for claim in ledger.claims], [decision.id for decision in decisions]
    if got != wanted:
        raise RunError(f"decisions are for {', '.join(got)}, expected {', '.join(wanted)}")
    document = ClaimsDocument(
        paper=ledger.paper.slug,
        profile=profile,
        ledger_sha256=ledger_sha256,
        params_sha256=params_sha256,
        claims=decisions,
    )
    return document.model_dump(mode="json")


def load_claims(path: Path) -> ClaimsDocument:
    """Read a ``claims.json`` and derive its verdicts once more from its rules and quantities.

    Raises
    ------
    VerificationError
        If it is missing, is not what ``ledger_document`` writes, a rule's digest does not match
        its text, or a verdict does not follow.
    """
    document = _read(path)
    for decision in document.claims:
        try:
            derived = _derived(decision)
        except RunError as error:
            raise VerificationError(f"{path.name}: {error}") from None
        if decision.verdict != derived:
            raise VerificationError(
                f"{path.name}: the verdict on {decision.id} is {decision.verdict!r}, but what is "
                f"recorded with it gives {derived!r}"
            )
    return document


def _read(path: Path) -> ClaimsDocument:
    try:
        return ClaimsDocument.model_validate_json(_finite_json(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise VerificationError(f"{path.name} is missing") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        raise VerificationError(f"{path.name}: {where}: {problem}") from None
    except ValueError as error:
        raise VerificationError(f"{path.name} is no JSON: {error}") from None


def _decision(claim: Claim, verdict: str, **evidence: Any) -> Decision:
    return Decision(
        id=claim.id,
        statement=claim.statement,
        source=claim.source,
        kind=claim.kind,
        paper_value=claim.paper_value,
        how_tested=claim.test,
        shows=claim.shows,
        headline=claim.headline,
        rule=claim.rule,
        rule_sha256=_rule_sha256(claim.rule),
        verdict=verdict,
        **evidence,
    )


def _derived(decision: Decision) -> str:
    if decision.rule is None:
        return NOT_TESTABLE
    if decision.reason is not None:
        return NOT_RUN + decision.reason
    return _apply(decision.id, decision.rule, decision.quantities)


def _apply(claim: str, rule: Rule, quantities: Mapping[str, Quantity]) -> str:
    supported = _holds(claim, "supported", rule.supported, quantities)
    contradicted = rule.contradicted is not None and _holds(
        claim, "contradicted", rule.contradicted, quantities
    )
    if supported and contradicted:
        raise RunError(
            f"claim {claim} is supported and contradicted at once by its rule "
            f"({rule.supported!r} and {rule.contradicted!r} both hold)"
        )
    return SUPPORTED if supported else CONTRADICTED if contradicted else INCONCLUSIVE


def _holds(claim: str, outcome: str, condition: str, quantities: Mapping[str, Quantity]) -> bool:
    try:
        return evaluate_rule(condition, quantities)
    except RuleError as error:
        raise RunError(f"claim {claim}: rule.{outcome} {error} (the rule: {condition!r})") from None


def _check(claim: Claim, headline: str, evidence: Evidence) -> float | None:
    """Check the evidence and return the estimate: as given, else the headline if a number.

    Raises
    ------
    RunError
        If a number is missing, not finite, out of range, or at odds with another.
    """

    def refuse(problem: str) -> RunError:
        return RunError(f"claim {claim.id}: {problem}")

    quantities = evidence.quantities
    for name, value in quantities.items():
        if not is_finite(value):
            raise refuse(f"quantity {name} is {value}, expected a finite number")
    for name in sorted(claim.rule.names | {headline} if claim.rule else {headline}):
        if name not in quantities:
            raise refuse(
                f"quantity {name} is missing from the evidence, the ledger names it"
                f"{nearest(name, quantities)}"
            )
    for name in ("estimate", "p_value", "smallest_p", "mde"):
        value = getattr(evidence, name)
        if value is not None and not is_finite(value):
            raise refuse(f"{name} is {value}, expected a finite number")
    for name in ("p_value", "smallest_p"):
        value = getattr(evidence, name)
        if value is not None and not 0 <= value <= 1:
            raise refuse(f"{name} is {value}, expected a number in [0, 1]")
    if evidence.p_value is not None and not evidence.test:
        raise refuse("p_value is given, expected test to name its test")
    if evidence.interval is not None:
        low, high = evidence.interval
        if not (is_finite(low) and is_finite(high) and low <= high):
            raise refuse(f"interval is [{low}, {high}], expected two finite ends in order")
        if not evidence.interval_kind:
            raise refuse("interval is given, expected interval_kind to say what it is")
    if evidence.mde is not None and (evidence.mde < 0 or evidence.no_mde is not None):
        raise refuse("mde must be >= 0, and must not stand beside no_mde")
    if evidence.n < 1 or not evidence.n_unit:
        raise refuse(f"n is {evidence.n} {evidence.n_unit!r}, expected at least 1 of something")
    value = quantities[headline]
    if evidence.estimate is not None and evidence.estimate != value:
        raise refuse(f"estimate is {evidence.estimate}, but its headline {headline} is {value}")
    return evidence.estimate if isinstance(value, bool) else float(value)


def _rule_sha256(rule: Rule | None) -> str | None:
    return None if rule is None else digest(rule.model_dump())


def _finite_json(text: str) -> str:
    """Return ``text`` if it is JSON without NaN and infinities, which pydantic would let in."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON number")

    json.loads(text, parse_constant=refuse)
    return text
