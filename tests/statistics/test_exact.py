"""Oracles: all sign patterns and choices of labels listed in Fractions, scipy, closed forms."""

import itertools
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from replicata.statistics import exact, labels
from replicata.statistics.bounds import plus_one_bound
from replicata.statistics.calibration import a_a, rejection_rate
from replicata.statistics.exact import drawn_subset_sums, sign_flip_exact, sign_flip_p_values
from replicata.statistics.gatekeeping import fixed_sequence
from replicata.statistics.labels import label_permutation_exact
from replicata.statistics.lattice import to_lattice

WAYS = ("greater", "less", "two-sided")
fractions = st.fractions(min_value=-3, max_value=3, max_denominator=12)


def tails(null, observed):
    up = Fraction(sum(s >= observed for s in null), len(null))
    down = Fraction(sum(s <= observed for s in null), len(null))
    return {"greater": up, "less": down, "two-sided": min(Fraction(1), 2 * min(up, down))}


def brute_flips(values, clusters=None):
    groups = list(range(len(values))) if clusters is None else clusters
    sums = {}
    for group, value in zip(groups, values, strict=True):
        sums[group] = sums.get(group, 0) + Fraction(value)
    null = [
        sum(sign * v for sign, v in zip(signs, sums.values(), strict=True))
        for signs in itertools.product((1, -1), repeat=len(sums))
    ]
    return tails(null, sum(sums.values()))


def brute_labels(values, treated, strata):
    blocks = {}
    for i, block in enumerate(strata):
        blocks.setdefault(block, []).append(i)
    choices = [
        itertools.combinations(members, sum(treated[i] for i in members))
        for members in blocks.values()
    ]
    null = [
        sum((Fraction(values[i]) for part in parts for i in part), Fraction(0))
        for parts in itertools.product(*map(list, choices))
    ]
    return tails(null, sum(Fraction(v) for v, t in zip(values, treated, strict=True) if t))


@given(st.lists(fractions, min_size=1, max_size=9), st.sampled_from(WAYS))
def test_sign_flips_equal_brute_force_in_fractions(values, way):
    result = sign_flip_exact(values, way)
    assert result.p_fraction == brute_flips(values)[way]
    assert result.exact
    assert result.estimate == pytest.approx(float(sum(values) / len(values)), abs=1e-15)


@given(
    st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 4)), min_size=1, max_size=14),
    st.sampled_from(WAYS),
)
def test_clusters_flip_together(pairs, way):
    values, clusters = zip(*pairs, strict=True)
    result = sign_flip_exact(values, way, clusters=clusters)
    assert result.p_fraction == brute_flips(values, clusters)[way]
    assert result.n == len(set(clusters))


@pytest.mark.parametrize("method", ["dynamic programming", "enumeration", "Monte Carlo"])
def test_every_way_of_counting_gives_the_same_answer(method, monkeypatch):
    rng = np.random.default_rng(3)
    if method != "dynamic programming":
        monkeypatch.setattr(exact, "MAX_WORK", 0)
    if method == "Monte Carlo":
        monkeypatch.setattr(exact, "MAX_ENUMERATED", 0)
    for way in WAYS:
        values = rng.integers(-9, 12, size=11)
        values[0] = 7
        result = sign_flip_exact(values, way, seed=1, n_resamples=40_000)
        assert result.method == method
        truth = float(brute_flips(values.tolist())[way])
        if method == "Monte Carlo":
            assert abs(result.p_value - truth) < 8 * (truth * (1 - truth) / 40_000) ** 0.5 + 1e-4
        else:
            assert result.p_fraction == brute_flips(values.tolist())[way]


def test_zero_one_data_equal_the_binomial():
    assert sign_flip_exact([1] * 9 + [-1] * 2 + [0] * 5, "greater").p_value == 0.03271484375
    assert sign_flip_exact([1] * 30 + [-1], "greater").p_value == 1.4901161193847656e-08
    result = sign_flip_exact([1] * 33 + [-1] * 16, "greater")
    assert result.method == "binomial"
    assert result.p_value == pytest.approx(stats.binomtest(33, 49, 0.5, "greater").pvalue)
    assert round(result.p_value, 4) == 0.0106
    for up, down in itertools.product(range(6), range(6)):
        values = [2] * up + [-2] * down + [0]
        for way in WAYS:
            assert sign_flip_exact(values, way).p_fraction == brute_flips(values)[way]


def test_agrees_with_scipy_on_data_without_ties():
    data = np.random.default_rng(0).normal(0.3, 1, size=12).round(6)
    for way in WAYS:
        scipys = stats.permutation_test(
            (data,), np.mean, permutation_type="samples", n_resamples=5000, alternative=way
        )
        assert scipys.pvalue == pytest.approx(
            sign_flip_exact(data, way, resolution="0.000001").p_value, abs=1e-12
        )


def test_scipy_misses_a_tie_where_the_sum_is_small_and_ours_does_not():
    """The case the docstring names: ties with a sum that is not 0 but small beside its summands."""
    tenths = [37, -31, -35, 49, 18, 2, -17, 34, -56]
    truth = brute_flips([Fraction(value, 10) for value in tenths])["greater"]
    floats = np.array(tenths) / 10
    scipys = stats.permutation_test(
        (floats,), np.mean, permutation_type="samples", alternative="greater"
    )
    assert sum(tenths) == 1
    assert sign_flip_exact(floats, "greater", resolution="0.1").p_fraction == truth
    assert truth == Fraction(1, 2)
    assert scipys.pvalue == 0.498046875


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=12))
def test_invariances_of_sign_flips(values):
    p = sign_flip_exact(values, "greater").p_fraction
    assert sign_flip_exact([*values, 0, 0], "greater").p_fraction == p
    assert sign_flip_exact([-v for v in values], "less").p_fraction == p
    assert sign_flip_exact(values[::-1], "greater").p_fraction == p
    assert sign_flip_exact([Fraction(v, 7) for v in values], "greater").p_fraction == p
    assert 0 < sign_flip_exact(values, "greater").smallest_p <= float(p) <= 1


def test_monte_carlo_p_is_never_zero_and_repeats():
    values = [v * 1_000_003 + 1 for v in range(10**6, 10**6 + 100)]
    first = sign_flip_exact(values, "greater", seed=4)
    assert first.method == "Monte Carlo"
    assert first.p_fraction == Fraction(1, 100_000)
    assert sign_flip_exact(values, "greater", seed=4) == first


def test_drawn_sums_have_the_law_of_random_subsets():
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
    drawn = drawn_subset_sums(sizes, 200_000, np.random.default_rng(5))
    bits = (drawn[:, None] >> np.arange(14)) & 1
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 0.006)
    assert np.all(np.abs(np.corrcoef(bits.T) - np.eye(14)) < 0.015)


@settings(deadline=None)
@given(
    st.lists(st.tuples(fractions, st.booleans(), st.integers(0, 2)), min_size=2, max_size=9),
    st.sampled_from(WAYS),
    st.booleans(),
)
def test_label_permutations_equal_brute_force_in_fractions(rows, way, stratified):
    values, treated, strata = map(list, zip(*rows, strict=True))
    treated[0], treated[1] = True, False
    strata = strata if stratified else [0] * len(values)
    result = label_permutation_exact(values, treated, way, strata=strata)
    assert result.p_fraction == brute_labels(values, treated, strata)[way]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=10),
    st.sampled_from(("greater", "less")),
)
def test_zero_one_labels_equal_fisher(rows, way):
    values, treated = map(list, zip(*rows, strict=True))
    treated[0], treated[1] = True, False
    result = label_permutation_exact(values, treated, way)
    yes = sum(v and t for v, t in zip(values, treated, strict=True))
    table = [[yes, sum(treated) - yes], [sum(values) - yes, 0]]
    table[1][1] = len(values) - sum(treated) - table[1][0]
    assert result.p_value == pytest.approx(stats.fisher_exact(table, way).pvalue, rel=1e-10)


def test_label_monte_carlo_agrees_with_counting(monkeypatch):
    rng = np.random.default_rng(8)
    values, treated = rng.integers(0, 30, size=20), np.arange(20) < 13
    strata = np.arange(20) % 2
    truth = label_permutation_exact(values, treated, "greater", strata=strata)
    monkeypatch.setattr(labels, "MAX_WORK", 0)
    drawn = label_permutation_exact(values, treated, "greater", strata=strata, seed=2)
    assert drawn.method == "Monte Carlo"
    assert truth.method == "dynamic programming"
    assert abs(drawn.p_value - truth.p_value) < 0.007


def test_whole_clusters_move_with_their_label():
    values, clusters = [1, 2, 3, 4, 0, 1, 2, 2], list("aabbccdd")
    treated = [True] * 4 + [False] * 4
    result = label_permutation_exact(values, treated, "greater", clusters=clusters)
    assert (
        result.p_fraction
        == brute_labels([3, 7, 1, 4], [True, True, False, False], [0] * 4)["greater"]
    )
    assert result.estimate == 2.5 - 1.25
    with pytest.raises(ValueError, match="split between groups"):
        label_permutation_exact(values, [True] * 5 + [False] * 3, "less", clusters=clusters)
    with pytest.raises(ValueError, match="equal sizes"):
        label_permutation_exact(values, treated, "less", clusters=list("aabbccce"))


@pytest.mark.parametrize(
    ("values", "resolution", "message"),
    [
        ([0.1, 0.2], None, "ties between sums of floats are luck"),
        ([0.1, 0.25], "0.1", "expected a multiple of the resolution 1/10"),
        ([1, 2.0], None, "float 2.0"),
        ([float("nan")], "0.1", "expected a finite number"),
        ([Decimal("inf")], None, "expected a finite number"),
        ([1], "-1", "expected a positive number"),
        ([Fraction(1, 3)], "0.1", "expected no resolution"),
        (["1"], None, "expected a real number"),
        ([], None, "at least 1 value"),
        (np.zeros((2, 2)), None, "one-dimensional"),
    ],
)
def test_data_that_are_not_exact_are_refused(values, resolution, message):
    with pytest.raises(ValueError, match=message):
        to_lattice(values, resolution)


def test_other_bad_input_is_one_sentence():
    with pytest.raises(ValueError, match="give a seed"):
        sign_flip_exact([v * 1_000_003 + 1 for v in range(10**6, 10**6 + 100)], "greater")
    with pytest.raises(ValueError, match="alternative"):
        sign_flip_exact([1], "more")
    with pytest.raises(ValueError, match="clusters has 1 labels"):
        sign_flip_exact([1, 2], "less", clusters=["a"])
    with pytest.raises(ValueError, match="expected both groups"):
        label_permutation_exact([1, 2], [True, True], "less")
    with pytest.raises(ValueError, match="matrix of whole numbers"):
        sign_flip_p_values(np.zeros((3, 2)))


@given(st.lists(fractions.map(float), min_size=1, max_size=6))
def test_floats_on_a_declared_grid_are_read_exactly(values):
    grid = [round(v * 64) / 64 for v in values]
    whole, step = to_lattice(grid, "1/64")
    assert [float(item * step) for item in whole] == grid


@pytest.mark.parametrize("high", [1, 3])
def test_many_studies_at_once_equal_one_by_one(high):
    data = np.random.default_rng(1).integers(-high, high + 1, size=(40, 9))
    for way in WAYS:
        one_by_one = [sign_flip_exact(row, way).p_value for row in data]
        assert sign_flip_p_values(data, way).tolist() == one_by_one


@pytest.mark.parametrize(("n", "bound"), [(64, 0.0411), (128, 0.0206), (256, 0.0103)])
def test_plus_one_bound_of_all_zeros(n, bound):
    assert plus_one_bound([0] * n, "upper") == pytest.approx(bound, abs=5e-5)
    assert plus_one_bound([0] * n, "lower") == -plus_one_bound([0] * n, "upper")


def test_plus_one_bound_is_the_t_bound_of_one_value_more():
    values = np.random.default_rng(0).choice([-1, 0, 0, 0, 1], size=30)
    more = np.append(values, 1)
    t = stats.ttest_1samp(more, 0, alternative="less").confidence_interval(0.95).high
    assert plus_one_bound(values, "upper") == pytest.approx(t, rel=1e-12)
    with pytest.raises(ValueError, match=r"values reach 2\.0"):
        plus_one_bound([2], "upper")
    with pytest.raises(ValueError, match="side"):
        plus_one_bound([1], "both")


@pytest.mark.parametrize("rates", [(0.10, 0.0, 0.0, 0.0), (0.40, 0.30, 0.30, 0.30)])
def test_plus_one_bound_holds_its_level_at_the_edge(rates):
    """True effect exactly 0.10, 64 worlds: the bound falls below it in at most 6 % of studies."""
    rng = np.random.default_rng(11)
    arms = [rng.random((600, 64)) < rate for rate in rates]
    effect = arms[0].astype(int) - arms[1] - (arms[2].astype(int) - arms[3])
    below = [plus_one_bound(row, "upper", extreme=2.0) < 0.10 for row in effect]
    assert np.mean(below) <= 0.06


def test_fixed_sequence_stops_at_the_first_family_that_is_not_all_rejected():
    families = {"c3": {"a": 0.001, "b": 0.02}, "c1": {"a": 0.01, "b": 0.2}, "c7": {"a": 0.0001}}
    result = fixed_sequence(families)
    assert result["c3"].adjusted == {"a": 0.002, "b": 0.02}
    assert result["c1"].rejected == {"a": True, "b": False}
    assert result["c1"].tested
    assert not result["c7"].tested
    assert result["c7"].adjusted == {"a": 0.2}
    assert result["c7"].rejected == {"a": False}
    with pytest.raises(ValueError, match="empty"):
        fixed_sequence({"c1": {}})


def test_fixed_sequence_holds_the_familywise_level(monkeypatch):
    """Global null: any rejection at all in at most 5 % of 400 studies (99.9 % band)."""
    monkeypatch.setattr("gc.collect", lambda: 0)  # statsmodels collects after each adjustment
    p = np.random.default_rng(2).random((400, 4))
    wrong = [
        any(
            any(family.rejected.values())
            for family in fixed_sequence(
                {"x": {"a": row[0], "b": row[1]}, "y": {"a": row[2], "b": row[3]}}
            ).values()
        )
        for row in p
    ]
    assert np.mean(wrong) < 0.09


def test_calibration_finds_size_and_power():
    def draw(rng, studies):
        own, other = rng.random((studies, 64)) < 0.114, rng.random((studies, 64)) < 0.004
        return own.astype(np.int64) - other

    power = rejection_rate(draw, sign_flip_p_values, n_studies=400, seed=1)
    size = rejection_rate(a_a(draw), sign_flip_p_values, n_studies=400, seed=2)
    assert 0.6 < power.rate < 0.95
    assert size.holds_level
    assert size.rate <= 0.06
    always = rejection_rate(draw, lambda data: np.zeros(len(data)), n_studies=50, seed=1)
    assert not always.holds_level
    with pytest.raises(ValueError, match="returned shape"):
        rejection_rate(draw, lambda data: np.zeros(3), n_studies=50, seed=1)
