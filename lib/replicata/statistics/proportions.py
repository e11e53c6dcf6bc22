"""Proportions: Wilson interval and exact binomial test."""

from dataclasses import dataclass

from scipy import stats

from replicata.statistics.checks import ALTERNATIVES, between, one_of, whole


@dataclass(frozen=True)
class ProportionInterval:
    """A share of n trials, ``estimate`` = successes/n, with its ``interval``."""

    estimate: float
    interval: tuple[float, float]
    successes: int
    n: int
    confidence: float

    @property
    def description(self) -> str:
        """The interval in words, for ``Evidence.interval_kind``."""
        return f"{100 * self.confidence:g} % Wilson interval"


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> ProportionInterval:
    """Return Wilson's score interval of a proportion, without continuity correction.

    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), with z the normal quantile (Wilson 1927,
    doi 10.1080/01621459.1927.10502953). Trials are taken as independent.

    Parameters
    ----------
    successes, n
        Whole numbers, 0 <= successes <= n, n >= 1.
    confidence
        In (0, 1).

    Raises
    ------
    ValueError
        If a count or the confidence is out of range.
    """
    hits, trials = _counts(successes, n)
    level = between(confidence, "confidence", 0, 1)
    ends = stats.binomtest(hits, trials).proportion_ci(level, method="wilson")
    return ProportionInterval(
        hits / trials, (float(ends.low), float(ends.high)), hits, trials, level
    )


@dataclass(frozen=True)
class BinomialResult:
    """An exact binomial test of ``successes`` in ``n`` trials against ``probability``."""

    estimate: float
    p_value: float
    successes: int
    n: int
    probability: float
    alternative: str


def binomial_test(
    successes: int, n: int, probability: float = 0.5, *, alternative: str
) -> BinomialResult:
    """Test a number of successes against Binomial(n, probability), exactly.

    Two-sided p sums the outcomes that are no more probable than the observed one.

    Parameters
    ----------
    successes, n
        Whole numbers, 0 <= successes <= n, n >= 1.
    probability
        Under the null hypothesis, in (0, 1).
    alternative
        ``two-sided``, ``greater`` or ``less``.

    Raises
    ------
    ValueError
        If a count or an option is out of range.
    """
    hits, trials = _counts(successes, n)
    chance = between(probability, "probability", 0, 1)
    one_of(alternative, "alternative", ALTERNATIVES)
    p_value = float(stats.binomtest(hits, trials, chance, alternative=alternative).pvalue)
    return BinomialResult(hits / trials, p_value, hits, trials, chance, alternative)


def _counts(successes: int, n: int) -> tuple[int, int]:
    trials = whole(n, "n", 1)
    hits = whole(successes, "successes", 0)
    if hits > trials:
        raise ValueError(f"successes is {hits}, expected at most n = {trials}.")
    return hits, trials
