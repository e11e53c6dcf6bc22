"""Worlds: balance, a clear lead, and content that depends on the seeds alone."""

from collections import Counter

import pytest

from replicata.errors import UsageError
from replicata.papers.memory_study import worlds
from replicata.papers.memory_study.worlds import make_world, world_id


@pytest.fixture(scope="module")
def many():
    class Seeds:
        def seed(self, unit):
            return sum(ord(c) * 257**i for i, c in enumerate(unit))

    return [make_world(Seeds(), world_id(n)) for n in range(160)]


def test_each_name_is_better_in_half_of_its_worlds_and_listed_first_in_half(many):
    good, first, seen = Counter(), Counter(), Counter()
    for world in many:
        good[world.good] += 1
        first[world.listed[0]] += 1
        seen.update(world.listed)
    assert set(seen.values()) == {4}
    assert all(good[name] == first[name] == 2 for name in seen)


def test_order_and_role_are_crossed(many):
    for start in range(0, 160, 4):
        block = many[start : start + 4]
        assert len({(w.good, w.listed.index(w.good)) for w in block}) == 4


def test_the_better_tool_leads_clearly_in_the_log(many):
    leads = [w.successes[w.good] - w.successes[w.bad] for w in many]
    assert min(leads) >= 0.30 * worlds.RUNS
    assert all(0 <= n <= worlds.RUNS for w in many for n in w.successes.values())
    # Counts are jittered around the stratified rates, not constant.
    assert len(set(leads)) > 4


def test_a_world_is_the_same_on_every_call_and_other_under_other_seeds(registered):
    ids = [world_id(n) for n in range(8)]
    again = [[make_world(registered(seed), i) for i in ids] for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_pilot_worlds_use_another_shuffle_of_the_names(registered):
    reg = registered(0)
    confirmatory = [make_world(reg, world_id(n)).listed for n in range(0, 40, 4)]
    pilot = [make_world(reg, world_id(10_000 + n)).listed for n in range(0, 40, 4)]
    assert confirmatory != pilot


def test_more_worlds_than_names_are_refused(registered):
    with pytest.raises(UsageError, match="256 worlds"):
        make_world(registered(0), world_id(256))


def test_names_are_distinct_and_neutral_in_form():
    assert len(set(worlds.NAMES)) == len(worlds.NAMES) == 128
    assert all(name.isalpha() and name.islower() for name in worlds.NAMES)
