"""Identities, vote arithmetic and selectors, against enumeration and the spec's exact numbers."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, multinomial

from replicata.errors import ReplicataError
from replicata.papers.cacc.decomposition import (
    Outcome,
    chance_coverage,
    decompose,
    pivotal_gain,
    plurality_accuracy,
    tax_cause,
)
from replicata.papers.cacc.pool import Candidate, Consumable
from replicata.papers.cacc.selectors import (
    by_logprob,
    by_score,
    first_parse,
    majority,
    plurality_share,
    weighted,
)


def outcome(raw: bool, sel: bool, acc: bool) -> Outcome:
    return Outcome("q", raw, sel, acc, float(acc), False)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_the_identities_hold_exactly(levels: list[int]) -> None:
    found = decompose([outcome(v >= 1, v >= 2, v >= 3) for v in levels])
    n = len(levels)
    counts = [sum(v >= k for v in levels) for k in (1, 2, 3)]
    assert [found.c_raw * n, found.c_sel * n, found.accuracy * n] == pytest.approx(counts)
    assert found.c_raw - found.accuracy == pytest.approx(found.tau + found.sigma, abs=1e-15)
    if counts[1]:
        product = found.c_raw * (found.c_sel / found.c_raw) * found.kappa
        assert product == pytest.approx(found.accuracy, abs=1e-15)
    else:
        assert found.kappa is None


@pytest.mark.parametrize(
    ("raw", "sel", "acc"), [(False, True, True), (False, True, False), (True, False, True)]
)
def test_outcomes_that_break_the_order_are_refused(raw: bool, sel: bool, acc: bool) -> None:
    with pytest.raises(ReplicataError, match="expected raw >= sel >= acc"):
        outcome(raw, sel, acc)


def test_no_questions_have_no_decomposition() -> None:
    with pytest.raises(ReplicataError, match="no questions"):
        decompose([])


def test_causes_of_the_tax() -> None:
    def pool(*finished: bool) -> list[Candidate]:
        return [Candidate("t", one, 1, None, "plain") for one in finished]

    assert tax_cause(pool(False), [True], [True]) == "incomplete"
    assert tax_cause(pool(True), [True], [True]) == "mode mismatch"
    assert tax_cause(pool(True), [True], [False]) == "unparsable"
    # Its best candidate decides; wrong candidates say nothing.
    assert tax_cause(pool(False, True), [True, True], [True, True]) == "mode mismatch"
    assert tax_cause(pool(False, True), [False, True], [True, False]) == "unparsable"


# -------------------------------------------------------------------------------------------------
# Votes


def plurality(counts: tuple[int, ...]) -> float:
    most = max(counts)
    return 0.0 if counts[0] < most or most == 0 else 1 / counts.count(most)


def by_multinomial(n: int, p: tuple[float, ...]) -> tuple[float, float]:
    """Accuracy and coverage from scipy's multinomial, counts instead of sequences."""
    accuracy = coverage = 0.0
    for counts in itertools.product(range(n + 1), repeat=len(p)):
        if sum(counts) == n:
            mass = multinomial.pmf(counts, n, p)
            accuracy += mass * plurality(counts)
            coverage += mass * (counts[0] > 0)
    return accuracy, coverage


@pytest.mark.parametrize(("n", "expected"), [(5, 0.44344), (6, 0.45499), (8, 0.47129)])
def test_plurality_of_three_classes(n: int, expected: float) -> None:
    votes = [(0.4, 0.35, 0.25)] * n
    found = plurality_accuracy(votes)
    assert found[0] == pytest.approx(expected, abs=5e-6)
    assert found == pytest.approx(by_multinomial(n, (0.4, 0.35, 0.25)), abs=1e-9)


def margins(n: int, p: float, q: float) -> dict[int, float]:
    found: Counter[int] = Counter()
    for a in range(n + 1):
        for b in range(n + 1 - a):
            found[a - b] += float(multinomial.pmf((a, b, n - a - b), n, (p, q, 1 - p - q)))
    return dict(found)


def with_one_more(n: int, p: float, q: float, a: float, b: float) -> float:
    """Accuracy against one rival by enumeration; abstentions are a class without votes."""
    total = 0.0
    for votes in itertools.product((1, -1, 0), repeat=n + 1):
        mass = math.prod((p, q, 1 - p - q)[(1, -1, 0).index(v)] for v in votes[:-1])
        mass *= (a, b, 1 - a - b)[(1, -1, 0).index(votes[-1])]
        lead = sum(votes)
        total += mass * (1.0 if lead > 0 else 0.5 if lead == 0 else 0.0)
    return total


@pytest.mark.parametrize(("a", "b", "expected"), [(0.25, 0.25, -0.009800), (0.30, 0.20, 0.008470)])
def test_the_pivotal_formula(a: float, b: float, expected: float) -> None:
    margin = margins(4, 0.5, 0.3)
    base = sum(mass for d, mass in margin.items() if d > 0) + margin[0] / 2
    assert base == pytest.approx(0.67280, abs=5e-6)
    found = pivotal_gain(a, b, margin)
    assert found == pytest.approx(expected, abs=5e-7)
    assert found == pytest.approx(with_one_more(4, 0.5, 0.3, a, b) - base, abs=1e-9)


@pytest.mark.parametrize(("n", "p", "q", "odds"), [(4, 0.5, 0.3, 1.2403), (8, 0.4, 0.35, 1.0662)])
def test_a_released_vote_must_be_better_than_even(n: int, p: float, q: float, odds: float) -> None:
    margin = margins(n, p, q)
    even = (margin[0] + margin[1]) / (margin[0] + margin[-1])
    assert even == pytest.approx(odds, abs=5e-5)
    assert 1 < even < p / q
    assert pivotal_gain(0.2 * even, 0.2, margin) == pytest.approx(0, abs=1e-12)


def test_coverage_can_rise_while_accuracy_falls() -> None:
    four = [(0.5, 0.3, 0.2)] * 4
    assert plurality_accuracy(four) == pytest.approx((0.590, 0.938), abs=5e-4)
    uniform = [(1 / 3, 1 / 3, 1 / 3)] * 4
    assert plurality_accuracy(four + uniform) == pytest.approx((0.514, 0.988), abs=5e-4)
    rival = [(0.2, 0.6, 0.2)] * 4
    assert plurality_accuracy(four + rival) == pytest.approx((0.327, 0.974), abs=5e-4)


@pytest.mark.parametrize(("m", "k", "expected"), [(4, 4, 0.684), (4, 8, 0.900), (10, 8, 0.570)])
def test_chance_covers_most_multiple_choice(m: int, k: int, expected: float) -> None:
    assert chance_coverage(m, k) == pytest.approx(expected, abs=5e-4)
    simulated = (np.random.default_rng(1).integers(m, size=(40_000, k)) == 0).any(axis=1).mean()
    assert chance_coverage(m, k) == pytest.approx(simulated, abs=0.01)


def test_the_papers_gpqa_numbers_are_counts_of_198() -> None:
    """5.6, 19.2 and 25.8 % are 11, 38 and 51 questions; the last is what guessing gives."""
    assert [round(100 * k / 198, 1) for k in (11, 38, 51)] == [5.6, 19.2, 25.8]
    assert binomtest(51, 198, 0.25).pvalue == pytest.approx(0.81, abs=0.005)
    assert binomtest(38, 198, 0.25).pvalue == pytest.approx(0.059, abs=0.0005)


# -------------------------------------------------------------------------------------------------
# Selectors


def made(*keys: str) -> list[Consumable]:
    return [Consumable(key, index) for index, key in enumerate(keys)]


def scored(*means: float) -> list[Candidate]:
    return [Candidate("t", True, 4, 4 * mean, "plain") for mean in means]


def test_majority_and_its_ties() -> None:
    assert majority(made("b", "a", "a", "b", "c")) == "b"
    assert majority(made("a", "b", "b")) == "b"
    assert majority([]) is None


@given(st.lists(st.sampled_from("abc"), max_size=8))
def test_expected_accuracy_is_the_mean_over_orders(keys: list[str]) -> None:
    """With ties broken by the first member, random orders break them uniformly."""
    share = plurality_share(made(*keys))
    assert sum(share.values()) == pytest.approx(1 if keys else 0)
    counts = Counter(keys)
    most = max(counts.values(), default=0)
    winners = {key for key, count in counts.items() if count == most}
    assert set(share) == winners
    assert majority(made(*keys)) in (winners or {None})


def test_selectors_by_score() -> None:
    pool = scored(-2.0, -0.5, -1.0)
    assert by_logprob(made("a", "b", "a"), pool) == "b"
    # exp(-2) + exp(-1) = .503 against exp(-.5) = .607
    assert weighted(made("a", "b", "a"), pool) == "b"
    assert weighted(made("a", "b", "a"), scored(-0.6, -0.5, -1.0)) == "a"
    assert first_parse([Consumable("x", 2), Consumable("y", 1)]) == "y"
    assert by_score(made("a", "b"), {"a": 0.1, "b": 0.3}) == "b"
    assert by_score(made("b", "a"), {"a": 0.1, "b": 0.1}) == "b"
    for select in (by_logprob, weighted):
        assert select([], pool) is None
    assert first_parse([]) is None


def test_a_selector_by_logprob_needs_one() -> None:
    pool = [Candidate("t", True, 3, None, "plain")]
    with pytest.raises(ReplicataError, match="no log-probability"):
        by_logprob(made("a"), pool)
