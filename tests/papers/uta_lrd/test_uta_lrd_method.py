"""The schedule against closed forms, torch's and transformers' own, and its edges."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from transformers import get_scheduler

from replicata.papers.uta_lrd.baselines import SHAPES, make_baseline, uba
from replicata.papers.uta_lrd.family import boundary_steps, factor, phase, remaining_gain
from replicata.papers.uta_lrd.method import UTASchedule


def optimizer(lr: float = 1.0, groups: tuple[float, ...] = ()) -> torch.optim.Optimizer:
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(1 + len(groups))]
    own = [{"params": [w], "lr": rate} for w, rate in zip(weights, (lr, *groups), strict=True)]
    return torch.optim.SGD(own, lr=lr)


def drive(schedule: UTASchedule, steps: int, probes=lambda t: (1.1, 1.0)) -> list[float]:
    """Return the learning rate of each of ``steps`` updates of a falling loss."""
    rates = []
    for t in range(steps):
        rates.append(schedule.optimizer.param_groups[0]["lr"])
        schedule.optimizer.step()
        schedule.observe(3.0 - 0.2 * math.log(t + 1))
        if schedule.needs_probe():
            schedule.probe(*probes(t))
        schedule.step()
    return rates


@given(st.floats(0, 1), st.floats(0.01, 100))
def test_the_rational_form_of_uba_is_the_tangent_form(p: float, phi: float) -> None:
    assert float(factor(p, phi)) == pytest.approx(uba(p, phi), abs=1e-12)


@given(st.floats(0, 1))
def test_phi_two_is_cosine(p: float) -> None:
    assert float(factor(p, 2.0)) == pytest.approx((1 + math.cos(math.pi * p)) / 2, abs=1e-12)


@pytest.mark.parametrize(
    ("phi", "p", "value"),
    [(0.3, 0.5, 0.8696), (1, 0.5, 0.6667), (2, 0.5, 0.5), (5, 0.5, 0.2857),
     (1, 0.25, 0.9210), (1, 0.75, 0.2555), (5, 0.9, 0.0099)],
)  # fmt: skip
def test_values_of_the_family(phi: float, p: float, value: float) -> None:
    assert float(factor(p, phi)) == pytest.approx(value, abs=6e-5)


@given(st.floats(0.001, 0.999), st.floats(0.01, 100), st.sampled_from([1, 2]))
def test_phase_inverts_the_factor(f: float, phi: float, m: int) -> None:
    assert float(factor(phase(f, phi, m), phi, m)) == pytest.approx(f, rel=1e-9)


@given(st.integers(20, 300), st.integers(0, 10), st.integers(0, 30), st.floats(0.05, 20))
def test_frozen_phi_is_uba_whatever_the_boundaries(
    steps: int, warmup: int, boundaries: int, phi: float
) -> None:
    schedule = UTASchedule(optimizer(), steps, warmup, 0.1, phi, boundaries=boundaries)
    for t in range(warmup, steps + 1):
        if t in schedule.boundaries:
            schedule.set_piece(t, phi, schedule.decay(t))
        expected = 0.1 + 0.9 * uba((t - warmup) / (steps - warmup), phi)
        assert schedule.multiplier(t) == pytest.approx(expected, abs=1e-12)


@given(
    st.integers(12, 120),
    st.lists(st.floats(-1, 5), min_size=8, max_size=8),
    st.sampled_from([1, 2]),
)
def test_invariants_of_the_closed_loop(steps: int, excess: list[float], m: int) -> None:
    warmup = steps // 10
    schedule = UTASchedule(optimizer(2.0), steps, warmup, 0.1, m=m)
    values = iter(excess)
    rates = np.array(drive(schedule, steps, lambda t: (1.0 + next(values), 1.0)))
    after = rates[warmup:]
    assert np.all(np.diff(after) <= 1e-12)
    assert rates.max() <= 2.0
    assert schedule.get_last_lr()[0] == pytest.approx(0.2, abs=1e-12)  # r at the budget


def test_the_rate_is_continuous_at_a_boundary() -> None:
    schedule = UTASchedule(optimizer(), 100, 0, 0.0, boundaries=4)
    t = schedule.boundaries[1]
    before = schedule.decay(t)
    for phi in (0.01, 3.0, 100.0):
        schedule.set_piece(t, phi, before)
        assert schedule.decay(t) == pytest.approx(before, abs=1e-12)
    schedule.match_phase = False
    schedule.set_piece(t, 100.0, before)
    assert abs(schedule.decay(t) - before) > 0.5  # the ablation jumps


def test_more_noise_decays_earlier() -> None:
    quiet, loud = (
        drive(UTASchedule(optimizer(), 200, 20), 200, lambda t, e=e: (1.0 + e, 1.0))
        for e in (0.001, 1.0)
    )
    assert np.mean(loud) < np.mean(quiet) - 0.1


def test_phi_is_noise_over_drift_by_hand() -> None:
    """On losses 4 - 0.2 ln t the fit is exact: B = 0.2, slope 0.2/t, drift 0.2 ln(T/t)."""
    total, t, excess, horizon = 200, 50, 0.03, 8.0
    for drift, gain in (("log", 0.2 * math.log(total / t)), ("lin", 0.2 / t * (total - t))):
        for corrected in (True, False):
            schedule = UTASchedule(
                optimizer(), total, phi0=0.7, ema_horizon=horizon, drift=drift,
                lag_correction=corrected,
            )  # fmt: skip
            schedule.last_epoch = t - 1
            schedule.losses = [4 - 0.2 * math.log(s) for s in range(1, t + 1)]
            schedule.probe(2 + excess, 2.0)
            noise = excess + (0.2 / t * horizon if corrected else 0.0)
            assert schedule.phi == pytest.approx(0.7 * noise / gain, rel=1e-6)


@pytest.mark.parametrize("exponent", [0.4, 1.0, 1.7])
def test_the_remaining_gain_is_the_integral_of_the_slope(exponent: float) -> None:
    t, remaining, slope = 50.0, 150.0, 0.01
    kind = "log" if exponent == 1.0 else "hyp"
    found = remaining_gain(kind, slope, t, remaining, exponent)
    expected, _ = quad(lambda s: slope * (s / t) ** -exponent, t, t + remaining)
    assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("steps", [1, 2])
def test_tiny_budgets(steps: int) -> None:
    schedule = UTASchedule(optimizer(), steps, 0)
    assert drive(schedule, steps)[0] == 1.0
    assert schedule.get_last_lr() == [pytest.approx(0.1)]


@pytest.mark.parametrize(
    ("change", "named"),
    [({"warmup": 10}, "warmup"), ({"total_steps": 0}, "total_steps"), ({"phi0": 0.0}, "phi0"),
     ({"final_ratio": 1.0}, "final_ratio"), ({"m": 3}, "m is"), ({"drift": "hyp"}, "drift"),
     ({"boundaries": -1}, "boundaries")],
)  # fmt: skip
def test_bad_settings_are_named(change: dict, named: str) -> None:
    settings = {"total_steps": 10, "warmup": 2} | change
    with pytest.raises(ValueError, match=named):
        UTASchedule(optimizer(), **settings)


def test_past_the_budget_the_rate_stays_and_one_warning_is_given() -> None:
    schedule = UTASchedule(optimizer(), 5, 1, 0.2)
    drive(schedule, 5)
    schedule.optimizer.step()
    with pytest.warns(UserWarning, match="total_steps = 5"):
        schedule.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()
    assert schedule.get_last_lr() == [pytest.approx(0.2)]


def test_three_losses_that_are_not_finite_end_the_run() -> None:
    schedule = UTASchedule(optimizer(), 20)
    schedule.observe(1.5)
    schedule.observe(math.nan)
    schedule.observe(math.inf)
    with pytest.raises(FloatingPointError, match=r"last finite loss was 1\.5"):
        schedule.observe(math.nan)


def test_a_probe_that_is_not_finite_or_missed_keeps_phi() -> None:
    schedule = UTASchedule(optimizer(), 40, 4)
    drive(schedule, 40, lambda t: (math.nan, 1.0))
    assert schedule.phi == 0.3
    missed = UTASchedule(optimizer(), 40, 4)
    for _ in range(40):
        missed.optimizer.step()
        missed.observe(1.0)
        missed.step()
    assert (missed.phi, missed.missed) == (0.3, 8)


def test_groups_keep_their_ratios() -> None:
    schedule = UTASchedule(optimizer(1.0, (0.1, 3.0)), 50, 5)
    for _ in range(49):
        drive(schedule, 1)
        one, two, three = schedule.get_last_lr()
        assert (two, three) == (pytest.approx(0.1 * one), pytest.approx(3 * one))


def test_the_average_is_an_exponential_one_and_the_weights_come_back() -> None:
    own = optimizer()
    schedule = UTASchedule(own, 50, ema_horizon=4.0)
    weight = schedule.parameters()[0]
    mean = None
    for t in range(10):
        weight.data = torch.full((3,), float(t * t))
        schedule.observe(1.0)
        mean = float(t * t) if mean is None else mean + (t * t - mean) / 4
    assert schedule.average[0][0].item() == pytest.approx(mean, rel=1e-5)
    seen = []

    def fail() -> None:
        with schedule.averaged():
            seen.append(weight[0].item())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert seen == [pytest.approx(mean, rel=1e-5)]
    assert weight[0].item() == 81.0


@pytest.mark.parametrize(
    ("name", "theirs", "more"),
    [
        ("cosine", "cosine_with_min_lr", {"min_lr_rate": 0.0}),
        ("linear", "linear", {}),
        ("inverse_sqrt", "inverse_sqrt", {}),
        ("poly2", "polynomial", {"power": 2.0, "lr_end": 0.0}),
        ("poly0.5", "polynomial", {"power": 0.5, "lr_end": 0.0}),
        (
            "wsd20",
            "warmup_stable_decay",
            {"num_decay_steps": 12, "num_stable_steps": 48, "decay_type": "linear"},
        ),
    ],
)
def test_baselines_are_transformers_own(name: str, theirs: str, more: dict) -> None:
    ours = make_baseline(name, optimizer(), 66, 6, 0.0)
    peer = get_scheduler(theirs, optimizer(), 6, 66, scheduler_specific_kwargs=more)
    for _ in range(66):
        assert ours.get_last_lr() == [pytest.approx(peer.get_last_lr()[0], abs=1e-12)]
        for one in (ours, peer):
            one.optimizer.step()
            one.step()


@pytest.mark.parametrize("name", ["cosine", "wsd20", "wsd50"])
def test_baselines_have_their_closed_forms(name: str) -> None:
    ours = make_baseline(name, optimizer(), 110, 10, 0.1)
    for t in range(110):
        p = (t - 10) / 100
        expected = t / 10 if t < 10 else 0.1 + 0.9 * SHAPES[name](p)
        assert ours.get_last_lr() == [pytest.approx(expected, abs=1e-9)]
        ours.optimizer.step()
        ours.step()


def test_the_staircase_and_the_root_tail() -> None:
    assert [SHAPES["step"](p) for p in (0.0, 0.49, 0.5, 0.74, 0.75, 1.0)] == pytest.approx(
        [1, 1, 0.1**0.5, 0.1**0.5, 0.1, 0.1]
    )
    root = SHAPES["wsd20_sqrt"]
    assert [root(p) for p in (0.0, 0.8, 0.85, 1.0)] == pytest.approx([1, 1, 0.5, 0])


@pytest.mark.parametrize(("horizon", "stride"), [(8.0, 1), (40.0, 5)])
def test_a_long_average_is_updated_rarely_and_weighs_the_same(horizon: float, stride: int) -> None:
    """After a jump of the weights, the average is 1 - (1 - 1/H)^n of the way there."""
    weight = torch.nn.Parameter(torch.zeros(1))
    schedule = UTASchedule(torch.optim.SGD([weight], lr=0.1), 1000, ema_horizon=horizon)
    schedule.observe(1.0)
    schedule.optimizer.step()
    schedule.step()
    with torch.no_grad():
        weight.fill_(1.0)
    changes, last = 0, 0.0
    for n in range(1, 80):
        schedule.observe(1.0)
        schedule.step()
        now = float(schedule.average[0])
        changes += now != last
        last = now
        low, high = (1 - (1 - 1 / horizon) ** k for k in (n - stride, n + 1))
        assert low - 1e-6 <= now <= high + 1e-6
    assert changes == (79 if stride == 1 else 16)


@given(st.integers(1, 500), st.integers(0, 400), st.integers(0, 40))
def test_boundaries_lie_inside(steps: int, warmup: int, count: int) -> None:
    found = boundary_steps(steps, warmup, count) if warmup < steps else []
    assert found == sorted(set(found))
    assert all(warmup < t < steps for t in found)
    assert len(found) <= count


def test_a_checkpoint_of_another_budget_is_refused() -> None:
    saved = UTASchedule(optimizer(), 50).state_dict()
    with pytest.raises(ValueError, match="total_steps"):
        UTASchedule(optimizer(), 60).load_state_dict(saved)
