"""Oracles: Holm's procedure by hand, step by step, and its adjusted form in fractions."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicata.statistics.multiplicity import holm


def test_by_hand():
    result = holm([0.01, 0.04, 0.03, 0.005])
    assert result.adjusted == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert result.rejected == (True, False, False, True)


def stepped(p: list[Fraction], alpha: Fraction) -> list[bool]:
    """Holm's own wording: go up from the smallest, stop at the first that fails."""
    rejected = [False] * len(p)
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if p[index] * (len(p) - rank) > alpha:
            break
        rejected[index] = True
    return rejected


# statsmodels collects garbage at every call, a tenth of a second each.
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12))
def test_rejections_are_those_of_the_procedure(thousandths):
    exact = [Fraction(t, 1000) for t in thousandths]
    # .0503 is no multiple of a thousandth, so no comparison is an equality.
    alpha = Fraction(503, 10_000)
    result = holm([t / 1000 for t in thousandths], float(alpha))
    assert list(result.rejected) == stepped(exact, alpha)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_adjusted_values_keep_the_order_and_never_shrink(p):
    adjusted = holm(p).adjusted
    assert all(a >= b and a <= 1 for a, b in zip(adjusted, p, strict=True))
    assert all(a <= len(p) * b or a >= b for a, b in zip(adjusted, p, strict=True))
    ranked = [a for _, a in sorted(zip(p, adjusted, strict=True))]
    assert ranked == sorted(ranked)
    backwards = holm(p[::-1]).adjusted
    assert backwards[::-1] == pytest.approx(adjusted)


def test_one_p_value_is_left_as_it_is():
    assert holm([0.05]) == holm((0.05,))
    assert holm([0.05]).adjusted == (0.05,)
    assert holm([0.05]).rejected == (True,)


@pytest.mark.parametrize("p", [[], [1.2], [-0.1], [0.1, math.nan], [[0.1]], ["0.1"]])
def test_bad_p_values_end_in_a_sentence(p):
    with pytest.raises(ValueError, match="p_values"):
        holm(p)


def test_bad_alpha_ends_in_a_sentence():
    with pytest.raises(ValueError, match="alpha is 5"):
        holm([0.1], alpha=5)
