"""The laboratory against Monte Carlo, finite differences and closed forms."""

import math

import numpy as np
import pytest

from replicata.papers.uta_lrd import lab

PROBLEM = lab.Problem("adam", 2.0, 0.0, 0.01, modes=20)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_the_recursion_agrees_with_simulated_paths(kind: str) -> None:
    problem = lab.Problem(kind, 2.0, 0.0, 0.05, modes=4)
    eta = np.linspace(0.5, 0.1, 40) * problem.cap
    rng = np.random.default_rng(0)
    x = np.broadcast_to(np.sqrt(problem.start), (20_000, 4)).copy()
    for step in eta:
        noise = rng.standard_normal(x.shape) * np.sqrt(problem.injected)
        x = x - step * (problem.rate * x + noise)
    sample = x**2 @ problem.weight
    exact = lab.simulate(problem, eta[:, None])[0]
    assert abs(sample.mean() - exact) < 3 * sample.std() / np.sqrt(len(sample))


def test_the_gradient_agrees_with_differences() -> None:
    eta = np.linspace(0.4, 0.05, 30) * PROBLEM.cap
    loss, gradient = lab.loss_and_gradient(PROBLEM, eta)
    assert loss == pytest.approx(lab.simulate(PROBLEM, eta[:, None])[0], rel=1e-12)
    for t in (0, 13, 29):
        bump = np.zeros(30)
        bump[t] = 1e-6
        up, down = (lab.simulate(PROBLEM, (eta + s * bump)[:, None])[0] for s in (1, -1))
        assert gradient[t] == pytest.approx((up - down) / 2e-6, rel=1e-4)


def test_one_mode_is_solved_by_the_greedy_recursion() -> None:
    """With one mode the optimum obeys 1/eta' = 1/eta + l, exactly."""
    problem = lab.Problem("sgd", 2.0, 0.0, 1.0, modes=1)
    rate, c, x = float(problem.rate[0]), float(problem.injected[0]), 1.0
    greedy = []
    for _ in range(40):
        step = rate * x / (rate**2 * x + c)
        x = (1 - step * rate) ** 2 * x + step**2 * c
        greedy.append(step)
    assert np.diff(1 / np.array(greedy)) == pytest.approx(rate, abs=1e-12)


def test_the_optimum_satisfies_its_condition() -> None:
    """K(u) eta^2 is constant along the optimal path, where the cap does not bind."""
    steps = 300
    start = np.full(steps, 0.3 * PROBLEM.cap)
    loss, eta = lab.optimum(PROBLEM, steps, 400, start)
    assert loss < lab.simulate(PROBLEM, start[:, None])[0]
    to_go = eta.sum() - np.cumsum(eta)
    kernel = np.array(
        [
            (2 * PROBLEM.weight * PROBLEM.injected * np.exp(-2 * PROBLEM.rate * u)).sum()
            for u in to_go
        ]
    )
    free = (eta < 0.2 * PROBLEM.cap) & (np.arange(steps) > steps / 2)
    constant = kernel[free] * eta[free] ** 2
    assert free.sum() > 50
    assert constant.std() / constant.mean() < 0.05


@pytest.mark.parametrize("beta", [1.5, 2.0, 3.0])
def test_kernel_exponents(beta: float) -> None:
    assert lab.kernel_exponent(beta, "sgd") == pytest.approx(2 - 1 / beta, abs=0.01)
    assert lab.kernel_exponent(beta, "adam") == pytest.approx(2 - 2 / beta, abs=0.01)


def test_an_exponential_kernel_gives_inverse_time_decay() -> None:
    u = np.linspace(0, 1, 20_001)
    eta, tau = lab.path_to_go(np.exp(-6 * u), u, 100)
    line = np.polyfit(tau, 1 / eta, 1)
    assert np.abs(np.polyval(line, tau) * eta - 1).max() < 1e-6


@pytest.mark.parametrize(("p", "q"), [(0.5, 1 / 3), (1.0, 1.0), (4 / 3, 2.0), (1.5, 3.0)])
def test_a_power_law_kernel_gives_the_tail_exponent(p: float, q: float) -> None:
    u = np.logspace(-14, 0, 40_001)
    eta, tau = lab.path_to_go(u**-p, u, 1.0)
    keep = (tau > 0.05) & (tau < 0.5)
    assert np.polyfit(np.log(tau[keep]), np.log(eta[keep]), 1)[0] == pytest.approx(q, rel=0.03)


def test_no_feasible_path_is_better_than_the_cauchy_schwarz_one() -> None:
    u = np.linspace(0, 1, 2001)
    kernel = (1 + 20 * u) ** -1.3
    eta, _ = lab.path_to_go(kernel, u, 50.0)
    best = np.trapezoid(kernel * eta, u) / 2
    rng = np.random.default_rng(0)
    for _ in range(200):
        other = eta * np.exp(rng.normal() * np.cos(rng.uniform(1, 9) * u + rng.uniform(0, 6)))
        other *= np.trapezoid(1 / other, u) / 50.0  # the same number of steps
        assert np.trapezoid(kernel * other, u) / 2 > best - 1e-12


def test_the_closed_loop_with_a_frozen_phi_is_the_open_loop() -> None:
    peaks = PROBLEM.cap * np.array([0.1, 0.5])
    frozen = lab.closed_loop(PROBLEM, peaks, 60, 0.01, 0.3, 2, "hyp", boundaries=0)
    assert frozen == pytest.approx(lab.open_loop("uba0.3", 60, 0.01)[:, None] * peaks, abs=1e-12)


def test_the_labs_loop_sets_phi_from_exact_noise_and_drift() -> None:
    """One boundary, by plain loops over modes; the second half must follow the phi they give."""
    problem = lab.Problem("adam", 2.0, 0.0, 0.01, modes=12)
    steps, phi0, peak = 40, 3.0, 0.2
    found = lab.closed_loop(problem, np.array([peak]), steps, 0.0, phi0, 2, "lin", boundaries=1)

    def f(p: float, phi: float) -> float:
        return 1 / (1 + phi / 2 * math.tan(math.pi * p / 2) ** 2)

    bias, noise = list(problem.start), [0.0] * 12
    losses = []
    for t in range(20):
        losses.append(sum(w * b for w, b in zip(problem.weight, bias, strict=True)))
        eta = peak * f(t / steps, phi0)
        for i, (rate, injected) in enumerate(zip(problem.rate, problem.injected, strict=True)):
            shrink = (1 - eta * rate) ** 2
            bias[i], noise[i] = shrink * bias[i], shrink * noise[i] + eta**2 * injected
    losses.append(sum(w * b for w, b in zip(problem.weight, bias, strict=True)))
    removed = sum(w * n for w, n in zip(problem.weight, noise, strict=True))
    phi = phi0 * removed / ((losses[-2] - losses[-1]) * 20)
    assert 0.01 < phi < 100
    start = 2 / math.pi * math.atan(math.sqrt(2 * (1 / f(0.5, phi0) - 1) / phi))
    for t in range(20, steps):
        expected = peak * f(start + (1 - start) * (t - 20) / 20, phi)
        assert found[t, 0] == pytest.approx(expected, rel=1e-9)
