"""Arms of a whole model: consistency between them, and what is fitted on what."""

import numpy as np
import pytest
import torch

from replicata.errors import UsageError
from replicata.papers.kvfold.arms import ContextArms, FitQueries
from replicata.papers.kvfold.measure import Prefill


def make(seed=0, length=60):
    draw = torch.Generator().manual_seed(seed)
    layers, kv, q, d = 2, 2, 4, 8

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    mean = normal(layers, q, 1, d) * 1.5
    prefill = Prefill(
        normal(layers, kv, length, d),
        normal(layers, kv, length, d),
        mean + normal(layers, q, length, d),
        mean + normal(layers, q, length, d),
    )
    return ContextArms(prefill, d**-0.5, FitQueries(pooled=100, heldout_every=10))


@pytest.fixture(scope="module")
def arms():
    return make()


def test_every_arm_has_the_size_asked_for(arms):
    names = [
        "am",
        "fold",
        "fold_repeat",
        "fold_refit",
        "drop",
        "nobias",
        "am_direct",
        "snapkv",
        "streaming",
        "random",
    ]
    for name in names:
        cache = arms.arm(name, 20)
        assert cache.keys.shape == cache.values.shape == (2, 2, 20, 8)
        assert (cache.bias is not None) == (name == "am")
        assert cache.length == 60


def test_am_fold_and_drop_share_their_values_and_drop_keeps_the_keys(arms):
    am, fold, drop = (arms.arm(name, 12) for name in ("am", "fold", "drop"))
    assert torch.equal(am.values, fold.values)
    assert torch.equal(am.values, drop.values)
    assert torch.equal(am.keys, drop.keys)
    assert not torch.equal(am.keys, fold.keys)


def test_the_fold_is_the_direction_times_the_bias(arms):
    """Each key moves along one direction per head, by its bias over the scale."""
    am, fold = arms.arm("am", 12), arms.arm("fold", 12)
    moved = (fold.keys - am.keys) * arms.scale
    for layer in range(2):
        for head in range(2):
            q = arms.context_queries(layer)[head].double()
            moment = q.T @ q / len(q)
            moment += 1e-3 * moment.trace() / 8 * torch.eye(8)
            u = torch.linalg.solve(moment, q.mean(0))
            expected = am.bias[layer, head][:, None].double() * u
            assert torch.allclose(moved[layer, head].double(), expected, atol=1e-4)


def test_keeping_every_key_without_a_fit_is_the_full_cache(arms):
    for name in ("am_direct", "streaming", "random"):
        cache = arms.arm(name, 60)
        assert torch.equal(cache.keys, arms.prefill.keys)
        assert torch.equal(cache.values, arms.prefill.values)


def test_equal_budgets_through_the_unequal_path_are_the_same_arms(arms):
    unequal = arms.unequal(np.full((2, 2), 12))
    for name in ("am", "fold", "drop"):
        equal = arms.arm(name, 12)
        assert torch.allclose(unequal[name].keys, equal.keys, atol=1e-4)
        assert torch.allclose(unequal[name].values, equal.values, atol=1e-3)
    assert torch.allclose(unequal["am"].bias, arms.arm("am", 12).bias, atol=1e-4)
    assert (unequal["fold"].bias == 0).all()


def test_a_shorter_head_is_hidden_where_it_ends(arms):
    budgets = np.array([[5, 9], [12, 7]])
    for name, cache in arms.unequal(budgets).items():
        visible = torch.isfinite(cache.bias).sum(-1)
        assert visible.tolist() == budgets.tolist(), name


def test_head_errors_fall_with_the_budget_and_vanish_with_all_keys(arms):
    table = arms.head_errors([4, 16, 60])
    assert table.shape == (4, 3)
    assert (np.diff(table, axis=1) < 0).all()
    assert (table[:, 2] < 1e-2 * table[:, 0]).all()


@pytest.mark.parametrize(("tokens", "pooled"), [(100, 1000), (100, 40), (7, 3)])
def test_held_out_queries_fit_nothing(tokens, pooled):
    fit, held = FitQueries(pooled, heldout_every=5).split(tokens, group=2)
    assert not set(fit.tolist()) & set(held.tolist())
    assert held.tolist() == list(range(4, tokens, 5))
    assert len(fit) == min(tokens - len(held), pooled // 2)
    assert len(set(fit.tolist())) == len(fit)


def test_changing_held_out_queries_changes_no_arm():
    first, second = make(), make()
    _, held = FitQueries(100, 10).split(60, group=2)
    second.prefill.repeat_queries[:, :, held] += 5.0
    for name in ("am", "fold", "fold_repeat", "nobias"):
        assert torch.equal(first.arm(name, 12).keys, second.arm(name, 12).keys)
        assert torch.equal(first.arm(name, 12).values, second.arm(name, 12).values)


def test_an_unknown_arm_names_the_nearest(arms):
    with pytest.raises(UsageError, match="did you mean 'streaming'"):
        arms.arm("streming", 12)
