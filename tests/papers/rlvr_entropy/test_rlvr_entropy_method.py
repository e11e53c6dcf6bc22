"""The method against closed forms, finite differences and enumeration (spec 8)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicata.errors import RunError, UsageError
from replicata.papers.rlvr_entropy.baselines import importance_weights
from replicata.papers.rlvr_entropy.method import (
    Batch,
    State,
    advantages,
    decompose,
    describe_states,
    empty_groups,
    entropy_score,
    learner_log_probs,
    net_advantages,
    sharpness_gap,
    token_weights,
)
from replicata.papers.rlvr_entropy.samplers import Sampler, sampler_log_probs

SAMPLERS = {
    "topk": Sampler(top_k=4),
    "topp": Sampler(top_p=0.8),
    "minp": Sampler(min_p=0.1),
    "cool": Sampler(temperature=0.6),
    "hot": Sampler(temperature=1.7),
}


def states(count=60, size=12, seed=0, spread=2.0):
    draw = torch.Generator().manual_seed(seed)
    return spread * torch.randn(count, size, generator=draw, dtype=torch.float64)


def draw_from(sampler, logits):
    return sampler_log_probs(logits, sampler.kept(logits), sampler.temperature).exp()


def entropy(logits):
    p = logits.softmax(-1)
    return -(p * p.log()).sum(-1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_gap_is_minus_the_finite_difference_of_the_entropy(name):
    logits, eta = states(), 1e-5
    p, q = logits.softmax(-1), draw_from(SAMPLERS[name], logits)
    measured = (entropy(logits + eta * (q - p)) - entropy(logits - eta * (q - p))) / (2 * eta)
    gap = sharpness_gap(p, q)
    assert ((gap + measured).abs() / gap.abs().clamp(min=1e-6)).max() < 1e-3
    assert ((gap > 0) == (name != "hot")).all()


def test_the_gap_of_two_tokens_by_hand():
    p = torch.tensor([0.8, 0.2], dtype=torch.float64)
    h = -(0.8 * np.log(0.8) + 0.2 * np.log(0.2))
    by_hand = 0.2 * 0.8 * (np.log(0.8) + h) - 0.2 * 0.2 * (np.log(0.2) + h)
    found = sharpness_gap(p, torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert float(found) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("name", ["cool", "hot", "minp"])
def test_a_uniform_policy_has_no_gap(name):
    logits = torch.zeros(9, dtype=torch.float64)
    p = logits.softmax(-1)
    assert sharpness_gap(p, draw_from(SAMPLERS[name], logits)).abs() < 1e-15


def test_ties_at_the_cut_do_not_matter():
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    p = logits.softmax(-1)
    gaps = []
    for pair in ([1], [2], [3]):
        kept = torch.zeros(5, dtype=torch.bool)
        kept[[0, *pair]] = True
        gaps.append(float(sharpness_gap(p, sampler_log_probs(logits, kept, 1.0).exp())))
    assert max(gaps) - min(gaps) < 1e-15
    assert gaps[0] > 0


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 5), st.integers(2, 30))
def test_a_monotone_ratio_has_the_sign_of_its_slope(seed, spread, size):
    rng = np.random.default_rng(seed)
    p = torch.from_numpy(rng.dirichlet(np.full(size, spread)) + 1e-9)
    p = p / p.sum()
    order = p.argsort()
    rising = torch.from_numpy(np.sort(rng.random(size))) + 1e-6
    for ratio, sign in ((rising, 1), (rising.flip(0), -1)):
        q = torch.zeros_like(p)
        q[order] = ratio * p[order]
        assert sign * sharpness_gap(p, q / q.sum()) >= -1e-12


def test_a_ratio_that_is_not_monotone_breaks_the_sign():
    logits = states(2000, 8)
    p = logits.softmax(-1)
    kept = torch.ones_like(p, dtype=torch.bool).scatter(-1, p.argmax(-1, keepdim=True), False)
    gap = sharpness_gap(p, sampler_log_probs(logits, kept, 1.0).exp())
    assert (gap < -1e-6).any()


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_score_sums_to_nothing_and_is_minus_the_gradient(name):
    logits = states().requires_grad_()
    (gradient,) = torch.autograd.grad(entropy(logits).sum(), logits)
    h, f = entropy_score(logits.detach().log_softmax(-1))
    assert torch.allclose(h, entropy(logits.detach()))
    assert f.sum(-1).abs().max() < 1e-14
    assert torch.allclose(f, -gradient, atol=1e-12)


@pytest.mark.parametrize("name", ["topk", "topp", "minp"])
def test_a_ratio_keeps_the_kept_mass(name):
    logits = states()
    p, q = logits.softmax(-1), draw_from(SAMPLERS[name], logits)
    mass = (p * SAMPLERS[name].kept(logits)).sum(-1)
    drift = torch.zeros_like(p)
    for token in range(p.shape[-1]):  # E_q[(p/q) (e_y - p)], token by token
        ratio = torch.where(q[:, token] > 0, p[:, token] / q[:, token].clamp(min=1e-300), 0.0)
        e = torch.nn.functional.one_hot(torch.tensor(token), p.shape[-1])
        drift += (q[:, token] * ratio)[:, None] * (e - p)
    assert (drift - mass[:, None] * (q - p)).abs().max() < 1e-10
    found = describe_states(logits, SAMPLERS[name].kept(logits), 1.0, p.argmax(-1))
    assert torch.allclose(found.kept_mass, mass)


def test_a_tabular_step_reproduces_the_drift():
    """A policy of one table of logits per state, its expected update enumerated (spec 8.9)."""
    logits, eta = states(40), 1e-3
    sampler = SAMPLERS["topp"]
    p, q = logits.softmax(-1), draw_from(sampler, logits)
    advantage = torch.randn(p.shape, generator=torch.Generator().manual_seed(3), dtype=p.dtype)
    table = logits.clone().requires_grad_()
    (q * advantage * table.log_softmax(-1)).sum().backward()  # the expected policy gradient
    change = entropy(logits + eta * table.grad) - entropy(logits)
    _, f = entropy_score(p.log())
    mean = (q * advantage).sum(-1)
    signal = (q * advantage * f).sum(-1) - mean * (q * f).sum(-1)
    predicted = -eta * (signal + mean * sharpness_gap(p, q))
    assert (change - predicted).abs().sum() / predicted.abs().sum() < 0.02


# ---------------------------------------------------------------------------------------------
# Batches


def batch(seed=0, groups=3, size=4, length=6, signs=False):
    rng = np.random.default_rng(seed)
    count = groups * size
    lengths = rng.integers(1, length + 1, size=count)
    gap = rng.random((count, length)) - (0.5 if signs else 0.0)
    return Batch(
        rewards=torch.from_numpy(rng.integers(2, size=count)).float(),
        overlong=torch.from_numpy(lengths == length),
        mask=torch.from_numpy(np.arange(length) < lengths[:, None]),
        gap=torch.from_numpy(gap).float(),
        group_size=size,
    )


def in_groups(x, size):
    return x.reshape(-1, size, *x.shape[1:])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_zeronet_has_no_net_advantage_and_sharp_no_mismatch_in_any_group(seed):
    made = batch(seed)
    weights = token_weights(made.mask, "token").double()
    advantage, kept = advantages(made, "zeronet")
    net = in_groups((weights * advantage[:, None]).sum(-1), 4).sum(-1)
    assert net.abs().max() < 1e-6
    assert kept.all()
    advantage, _ = advantages(made, "sharp")
    mismatch = in_groups((weights * advantage[:, None] * made.gap).sum(-1), 4).sum(-1)
    assert mismatch.abs().max() < 1e-6


def test_a_shift_is_the_net_advantage():
    made = batch(5)
    advantage, _ = advantages(made, "zeronet", shift=0.1)
    weights = token_weights(made.mask, "token")
    assert float((weights * advantage[:, None]).sum()) == pytest.approx(0.1, abs=1e-6)


def test_group_means_by_hand():
    made = Batch(
        rewards=torch.tensor([1.0, 0.0, 1.0, 0.0]),
        overlong=torch.tensor([False, True, False, False]),
        mask=torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool(),
        gap=torch.ones(4, 3),
        group_size=4,
    )
    fail, everyone = advantages(made, "fail")
    assert fail.tolist() == [0.5, -0.5, 0.5, -0.5]
    assert everyone.all()
    mask, kept = advantages(made, "mask")
    assert mask[kept].tolist() == [0.5, 0.5, -0.5]
    assert kept.tolist() == [True, False, True, True]
    inside, _ = advantages(made, "mask_kept")
    assert inside.tolist() == pytest.approx([1 / 3, -2 / 3, 1 / 3, -2 / 3])
    nets = net_advantages(made)  # lengths 1, 3, 2, 1
    assert float(nets["net_fail"]) == pytest.approx((0.5 - 1.5 + 1.0 - 0.5) / 7)
    assert float(nets["net_mask"]) == pytest.approx((0.5 + 1.0 - 0.5) / 4)


def test_seq_mean_makes_any_centred_group_neutral():
    made = batch(2)
    advantage, _ = advantages(made, "fail", norm="seq_mean")
    weights = token_weights(made.mask, "seq_mean")
    assert (weights * advantage[:, None]).sum().abs() < 1e-6
    token = token_weights(made.mask, "token")
    assert (token * advantage[:, None]).sum().abs() > 1e-4


def test_sharp_without_gaps_is_zeronet_and_stays_within_the_rewards():
    made = batch(7)
    none = Batch(made.rewards, made.overlong, made.mask, torch.zeros_like(made.gap), 4)
    assert torch.equal(advantages(none, "sharp")[0], advantages(none, "zeronet")[0])
    for seed in range(30):
        mixed = batch(seed, signs=True)
        assert advantages(mixed, "sharp")[0].abs().max() <= 1


@pytest.mark.parametrize("rule", ["fail", "mask", "zeronet", "sharp"])
def test_padding_and_order_change_nothing(rule):
    made = batch(11)
    wide = torch.nn.functional.pad
    padded = Batch(
        made.rewards, made.overlong, wide(made.mask, (0, 3)), wide(made.gap, (0, 3), value=9.0), 4
    )
    assert torch.allclose(advantages(made, rule)[0], advantages(padded, rule)[0])
    order = torch.tensor([2, 0, 3, 1, 4, 5, 7, 6, 11, 10, 9, 8])
    shuffled = Batch(
        made.rewards[order], made.overlong[order], made.mask[order], made.gap[order], 4
    )
    expected, kept = advantages(made, rule)
    found, found_kept = advantages(shuffled, rule)
    assert torch.allclose(found, expected[order], atol=1e-6)
    assert torch.equal(found_kept, kept[order])


def test_the_decomposition_adds_up():
    made = batch(3)
    generator = torch.Generator().manual_seed(0)
    chosen, expected = torch.randn(2, *made.gap.shape, generator=generator, dtype=torch.float64)
    gap = made.gap.double()
    advantage = torch.randn(len(gap), generator=generator, dtype=torch.float64)
    weights = made.mask / made.mask.sum().double()
    drift = decompose(advantage, weights, State(gap, gap, gap, expected, chosen))
    direct = sum(
        float(weights[i, t] * advantage[i] * gap[i, t])
        for i in range(len(gap))
        for t in range(gap.shape[1])
    )
    assert float(drift.mismatch) == pytest.approx(direct, abs=1e-12)
    total = (weights * advantage[:, None] * (chosen - expected + gap)).sum()
    assert float(drift.signal + drift.mismatch) == pytest.approx(float(total), abs=1e-12)


# ---------------------------------------------------------------------------------------------
# The learner and the ratios


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_renormalised_score_has_mean_nothing_under_the_sampler(name):
    logits = states(20).requires_grad_()
    sampler = SAMPLERS[name]
    kept = sampler.kept(logits.detach())
    q = draw_from(sampler, logits.detach())
    total = torch.zeros_like(logits)
    for token in range(logits.shape[-1]):
        chosen = torch.full((20,), token)
        log_p = learner_log_probs(logits, chosen, kept, sampler.temperature)
        usable = kept[:, token]
        (gradient,) = torch.autograd.grad(log_p[usable].sum(), logits)
        total += q[:, token, None] * gradient
    assert total.abs().max() < 1e-12


def test_replay_uses_the_recorded_set_and_not_a_new_one():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    kept = Sampler(top_k=2).kept(logits)
    drifted = torch.tensor([[0.0, 1.0, 5.0]])
    found = learner_log_probs(drifted, torch.tensor([0]), kept, 1.0)
    assert float(found) == pytest.approx(float(torch.tensor([0.0, 1.0]).log_softmax(0)[0]))


def test_ratios_by_hand_and_without_overflow_at_padding():
    old, q = torch.tensor([[-1.0, -2.0, 900.0]]), torch.tensor([[-0.5, -2.5, -900.0]])
    mask = torch.tensor([[True, True, False]])
    found = importance_weights("sampler", old, old, q, mask)
    assert found[0, :2].tolist() == pytest.approx([np.exp(-0.5), np.exp(0.5)])
    assert torch.isfinite(found).all()
    capped = importance_weights("sampler_truncated", old, old, q, mask, cap=1.2)
    assert capped[0, 1] == pytest.approx(1.2)
    assert importance_weights("sampler_masked", old, old, q - 2, mask, cap=3.0)[0, 0] == 0
    assert (importance_weights("ppo", old, old, q, mask) == 1).all()
    new = old + 0.25
    both = importance_weights("both", new, old, q, mask)
    assert both[0, 0] == pytest.approx(np.exp(-0.25))


# ---------------------------------------------------------------------------------------------
# Faults (spec 9)


def test_a_renormalised_learner_needs_a_recorded_kept_set():
    with pytest.raises(UsageError, match="no kept set was recorded"):
        learner_log_probs(states(2), torch.tensor([0, 1]), None, 1.0)


def test_sharp_refuses_a_shift():
    with pytest.raises(UsageError, match=r"rule sharp with shift 0\.1, expected no shift"):
        advantages(batch(), "sharp", shift=0.1)


def test_empty_groups_are_counted_and_too_many_refused():
    kept = torch.tensor([True, False, False, False, True, True])
    assert float(empty_groups(kept, 2, "mask")) == pytest.approx(1 / 3)
    with pytest.raises(RunError, match="2 of 3 groups have no response in the loss"):
        empty_groups(torch.tensor([False, False, False, False, True, True]), 2, "mask")


def test_a_missing_flag_and_ragged_groups_are_named():
    made = batch()
    with pytest.raises(UsageError, match="overlong is missing"):
        Batch(made.rewards, None, made.mask, made.gap, 4)
    with pytest.raises(UsageError, match="12 responses, expected groups of 5"):
        Batch(made.rewards, made.overlong, made.mask, made.gap, 5)


def test_a_ratio_that_is_no_number_is_named():
    old, mask = torch.zeros(2, 3), torch.ones(2, 3).bool()
    q = torch.zeros(2, 3)
    q[1, 2] = -torch.inf  # a token that the sampler cannot have drawn
    with pytest.raises(RunError, match=r"ratio sampler: log-ratio of response \[1\], token 2"):
        importance_weights("sampler", old, old, q, mask)
