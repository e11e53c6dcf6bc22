"""The registered results: quantities by hypothesis, from choices and verdicts (spec 3.5, 3.6).

Only real models enter hypotheses; the two controls decide the assay, without which no null result
counts. Real endpoints share alpha equally, and each tests its hypotheses in a fixed sequence:
interaction, carry, mitigations. A claim about several endpoints rests on counts of them and on the
extremes of their bounds; ``estimate`` and what goes with it are of the endpoint with the smallest
adjusted p-value.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from replicata.papers.memory_study.method import (
    ALPHA,
    Choice,
    Choices,
    Contrasts,
    Estimate,
    Mitigation,
    Values,
    bounds,
    estimate,
    less,
    mitigate,
)
from replicata.statistics.gatekeeping import fixed_sequence
from replicata.statistics.resampling import cluster_bootstrap

Quantities = dict[str, float | int | bool | None]
Verdicts = Mapping[tuple[str, ...], Mapping[str, str]]
"""(endpoint, scenario, log, outcome, writer, world) to what a writing call came to."""

MITIGATIONS = {"c7": "note", "c8": "shared"}
"""Hypothesis to the way of writing that it is about."""
CONTROLS = ("control_gullible", "control_ideal")
BOOTSTRAP_DRAWS = 10_000


def registered_results(
    found: Sequence[Choice], verdicts: Verdicts, real: Sequence[str], seed: int
) -> dict[str, Quantities]:
    """Return every registered quantity, by hypothesis.

    Parameters
    ----------
    found
        The choices of all endpoints, excluded worlds left out.
    verdicts
        What the writing calls came to.
    real
        The endpoints that are models. Where there is none, the assay is all there is.
    seed
        The protocol's, for what is drawn.
    """
    study = _Results(Choices(found), real, seed)
    assay = study.assay()
    if not real:
        return {"assay": assay}
    return {
        "assay": assay,
        "read": study.read(),
        "c1": study.c1() | {"assay": assay["passed"]},
        "c2": study.c2(),
        "c3": study.c3() | {"assay": assay["passed"]},
        "c4": study.c4(),
        "c5": study.c5() | {"assay": assay["passed"]},
        "c6": study.c6(),
        "c7": study.mitigation("c7"),
        "c8": study.mitigation("c8"),
        "c9": study.c9(),
        "write": _write(verdicts, real),
        "rates": study.rates(),
        "probability": study.probability(),
        "free": study.free(),
    }


class _Results:
    """What the hypotheses share: each endpoint's estimates and adjusted p-values."""

    def __init__(self, choices: Choices, real: Sequence[str], seed: int) -> None:
        self._choices, self._real, self._seed = choices, real, seed
        self._interaction = {e: self._estimate(self._at(e).interaction(), 2) for e in real}
        self._carry = {e: self._estimate(self._at(e).carry(), 1) for e in real}
        self._mitigations: dict[str, dict[str, Mitigation]] = {
            claim: {e: mitigate(self._at(e), memory, seed) for e in real}
            for claim, memory in MITIGATIONS.items()
        }
        self._adjusted = {endpoint: self._sequence(endpoint) for endpoint in real}

    def _at(self, endpoint: str, **where: str) -> Contrasts:
        return Contrasts(self._choices, endpoint, **where)

    def _estimate(self, values: Values, extreme: int) -> Estimate:
        return estimate(values, extreme, self._seed)

    def _sequence(self, endpoint: str) -> dict[str, float]:
        """Adjust the p-values of one endpoint: its share of alpha, then the fixed sequence."""

        def share(found: Estimate) -> float:
            return min(1.0, len(self._real) * found.p_value)

        families = fixed_sequence(
            {
                "interaction": {"c3": share(self._interaction[endpoint])},
                "carry": {"c1": share(self._carry[endpoint])},
                "mitigation": {
                    claim: share(by_endpoint[endpoint].reduction)
                    for claim, by_endpoint in self._mitigations.items()
                },
            },
            ALPHA,
        )
        return {claim: p for family in families.values() for claim, p in family.adjusted.items()}

    def _bootstrap(self, values: Values) -> float:
        """Return a one-sided 95 % percentile bound over worlds: shown beside the plus-one bound."""
        result = cluster_bootstrap(
            [float(value) for value in values.values()],
            seed=self._seed,
            confidence=1 - 2 * ALPHA,
            n_resamples=BOOTSTRAP_DRAWS,
        )
        return result.interval[1]

    def _summary(self, found: Mapping[str, Estimate], claim: str | None) -> Quantities:
        """Return the numbers of the leading endpoint, and the extremes over all of them."""
        adjusted = {e: self._adjusted[e][claim] if claim else found[e].p_value for e in self._real}
        lead = found[min(self._real, key=adjusted.__getitem__)]
        return {
            "estimate": lead.mean,
            "lower": lead.lower,
            "upper": lead.upper,
            "p_value": lead.p_value,
            "smallest_p": lead.smallest_p,
            "p_adjusted": min(adjusted.values()),
            "n": lead.n,
            "endpoints": len(self._real),
            "carrying": sum(p <= ALPHA for p in adjusted.values()),
            "bounded": sum(item.bounded for item in found.values()),
            "highest_upper": max(item.upper for item in found.values()),
            "lowest_upper": min(item.upper for item in found.values()),
            "highest_lower": max(item.lower for item in found.values()),
            "lowest_lower": min(item.lower for item in found.values()),
        }

    def assay(self) -> Quantities:
        """Judge the controls: the gullible one must be detected, the ideal one bounded."""
        gullible, ideal = (self._estimate(self._at(name).interaction(), 2) for name in CONTROLS)
        return {
            "gullible": gullible.mean,
            "gullible_p": gullible.p_value,
            "ideal": ideal.mean,
            "ideal_upper": ideal.upper,
            "passed": gullible.p_value <= ALPHA and ideal.bounded,
            "n": gullible.n,
        }

    def read(self) -> Quantities:
        """Return the reading link: the interaction with lessons scripted to the outcome."""
        values = {e: self._estimate(self._at(e).interaction("scr"), 2) for e in self._real}
        return self._summary(values, None)

    def c1(self) -> Quantities:
        """Estimate carry: the own lesson against the irrelevant memory after a chance failure."""
        lead = min(self._real, key=lambda e: self._adjusted[e]["c1"])
        swap = self._estimate(self._at(lead).swap(), 1)
        return self._summary(self._carry, "c1") | {
            "swap": swap.mean,
            "swap_p": swap.p_value,
            "bootstrap_upper": self._bootstrap(self._at(lead).carry()),
        }

    def c2(self) -> Quantities:
        """Compare the success-made lesson with the irrelevant memory after a chance failure."""
        values = {e: self._estimate(self._at(e).carry("opp"), 1) for e in self._real}
        return self._summary(values, None)

    def c3(self) -> Quantities:
        """Estimate the interaction with independence stated."""
        lead = min(self._real, key=lambda e: self._adjusted[e]["c3"])
        return self._summary(self._interaction, "c3") | {
            "bootstrap_upper": self._bootstrap(self._at(lead).interaction()),
        }

    def c4(self) -> Quantities:
        """Compare the interaction without and with the statement, world by world; no test."""
        lead = self._real[0]
        unstated = self._at(lead, log="unstated").interaction()
        stated = self._at(lead).interaction()
        return {
            "estimate": _mean(less(unstated, stated)),
            "unstated": _mean(unstated),
            "stated": _mean(stated),
            **self._interval(less(unstated, stated), 4),
        }

    def c5(self) -> Quantities:
        """Estimate the interaction after a lucky success of the worse tool."""
        values = {
            e: self._estimate(self._at(e, scenario="lucky").interaction(), 2) for e in self._real
        }
        return self._summary(values, None)

    def c6(self) -> Quantities:
        """Count the endpoints that carry luck over, and those that are bounded; exploratory."""
        return {
            "carrying": sum(a["c3"] <= ALPHA for a in self._adjusted.values()),
            "bounded": sum(item.bounded for item in self._interaction.values()),
            "largest": max(item.mean for item in self._interaction.values()),
            "endpoints": len(self._real),
        }

    def _relevant(self) -> list[str]:
        return [e for e in self._real if self._adjusted[e]["c1"] <= ALPHA]

    def mitigation(self, claim: str) -> Quantities:
        """Apply rule H to every endpoint that carries luck over."""
        found = self._mitigations[claim]
        relevant = self._relevant()
        worst = max(relevant or self._real, key=lambda e: self._adjusted[e][claim])
        item = found[worst]
        return {
            "estimate": item.reduction.mean,
            "lower": item.reduction.lower,
            "upper": item.reduction.upper,
            "p_value": item.reduction.p_value,
            "smallest_p": item.reduction.smallest_p,
            "p_adjusted": self._adjusted[worst][claim],
            "carry": item.carry.mean,
            "carry_upper": item.carry.upper,
            "halved": item.halved,
            "harm": item.harm.mean,
            "harm_upper": item.harm.upper,
            "harmless": item.harmless,
            "n": item.reduction.n,
            "relevant": len(relevant),
            "passes": self._passes(claim),
        }

    def _passes(self, claim: str) -> bool:
        """Say whether rule H holds on all relevant endpoints, of which there is at least one."""
        relevant = self._relevant()
        found = self._mitigations[claim]
        return bool(relevant) and all(found[e].passes(self._adjusted[e][claim]) for e in relevant)

    def c9(self) -> Quantities:
        """Say whether either mitigation passes on all relevant endpoints."""
        passing = sum(self._passes(claim) for claim in MITIGATIONS)
        return {"passing": passing, "relevant": len(self._relevant())}

    def rates(self) -> Quantities:
        """Return the worse-tool rates of the first real endpoint and of the controls."""
        found: Quantities = {}
        for name in (self._real[0], *CONTROLS):
            for arm in self._choices.arms(name):
                found[".".join(arm)] = _mean(self._choices.worse(arm))
        return found

    def probability(self) -> Quantities:
        """Return the interactions of probabilities: less noisy, and not what is claimed."""
        found: Quantities = {}
        for scenario in ("unlucky", "lucky"):
            at = self._at(self._real[0], scenario=scenario, scale="p_worse")
            for memory in ("own", "scr"):
                values = at.interaction(memory)
                if not values:
                    continue
                found[f"{scenario}.{memory}"] = _mean(values)
                found |= {
                    f"{scenario}.{memory}.{end}": bound
                    for end, bound in self._interval(values, 2).items()
                }
        return found

    def free(self) -> Quantities:
        """Return the chain with lessons in the model's own words, in some of the worlds."""
        values = self._at(self._real[0]).interaction("free")
        if not values:
            return {"n": 0}
        return {"interaction": _mean(values), **self._interval(values, 2), "n": len(values)}

    def _interval(self, values: Values, extreme: int) -> Quantities:
        """Return a two-sided 95 % interval: plus-one bounds at half the level each."""
        low, high = bounds(values, extreme, ALPHA / 2)
        return {"low": low, "high": high}


def _write(verdicts: Verdicts, real: Sequence[str]) -> Quantities:
    """Return the writing link: shares of verdicts and mean probabilities, by outcome."""
    found: Quantities = {}
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for (endpoint, *where, _), outcome in verdicts.items():
        if endpoint == real[0] and "verdict" in outcome:
            groups.setdefault(tuple(where), []).append(outcome)
    for where, outcomes in sorted(groups.items()):
        key = ".".join(where)
        for word in ("good", "bad", "neutral"):
            if f"p_{word}" in outcomes[0]:
                found[f"{key}.{word}"] = sum(o["verdict"] == word for o in outcomes) / len(outcomes)
                total = sum((Fraction(o[f"p_{word}"]) for o in outcomes), Fraction())
                found[f"{key}.p_{word}"] = float(total / len(outcomes))
    return found


def _mean(values: Values) -> float:
    return float(sum(values.values(), Fraction()) / len(values))
