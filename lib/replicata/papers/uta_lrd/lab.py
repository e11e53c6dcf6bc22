"""The theory laboratory: exact second moments, kernels, and the numerically optimal schedule.

A coordinate of curvature h follows m <- (1 - eta l)^2 m, v <- (1 - eta l)^2 v + eta^2 c: SGD has
l = h and c = noise h, an Adam-like step has l = sqrt(h) and c = noise (spec 3.2 and 5.1). The loss
is sum of w h (m + v) / 2. No randomness: two runs give the same numbers.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from replicata.papers.uta_lrd.baselines import SHAPES
from replicata.papers.uta_lrd.family import boundary_steps, factor, phase, remaining_gain

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """One optimizer, spectrum, source and noise.

    Curvatures are log-spaced over four decades, weighted by h^(-1/beta) (a spectrum i^-beta).
    """

    kind: str
    beta: float
    source: float
    noise: float
    modes: int = 200

    @property
    def name(self) -> str:
        """A short name for tables."""
        return f"{self.kind} beta={self.beta:g} source={self.source:g} noise={self.noise:g}"

    @cached_property
    def h(self) -> Array:
        """Curvatures, (modes,)."""
        return np.logspace(-4, 0, self.modes)

    @cached_property
    def rate(self) -> Array:
        """Contraction l per unit of learning rate, (modes,)."""
        return self.h if self.kind == "sgd" else np.sqrt(self.h)

    @cached_property
    def injected(self) -> Array:
        """Noise c per squared learning rate, (modes,)."""
        return self.noise * (self.h if self.kind == "sgd" else np.ones_like(self.h))

    @cached_property
    def weight(self) -> Array:
        """Share of the loss per unit of second moment, (modes,)."""
        density = self.h ** (-1 / self.beta)
        return density / density.sum() * self.h / 2

    @cached_property
    def start(self) -> Array:
        """Squared distances at the start, (modes,)."""
        return self.h**self.source

    @property
    def cap(self) -> float:
        """Largest learning rate: cap times the largest rate is 1."""
        return float(1 / self.rate.max())


def problems(
    betas: tuple[float, ...],
    sources: tuple[float, ...],
    noises: tuple[float, ...],
    kinds: tuple[str, ...] = ("sgd", "adam"),
    modes: int = 200,
) -> list[Problem]:
    """Return all combinations."""
    return [Problem(*p, modes) for p in product(kinds, betas, sources, noises)]


def simulate(problem: Problem, eta: Array) -> Array:
    """Return the final loss of schedules ``eta`` (steps, ...) by the exact recursion."""
    x = np.broadcast_to(problem.start, (*eta.shape[1:], problem.modes)).copy()
    for step in eta:
        step = np.asarray(step)[..., None]
        x = (1 - step * problem.rate) ** 2 * x + step**2 * problem.injected
    return x @ problem.weight


def loss_and_gradient(problem: Problem, eta: Array) -> tuple[float, Array]:
    """Return the final loss of ``eta`` (steps,) and its gradient, by the adjoint recursion."""
    shrink = 1 - eta[:, None] * problem.rate
    states = np.empty((len(eta) + 1, problem.modes))
    states[0] = problem.start
    for t in range(len(eta)):
        states[t + 1] = shrink[t] ** 2 * states[t] + eta[t] ** 2 * problem.injected
    # Share of the moment after step t that is left at the end.
    left = np.ones_like(shrink)
    left[:-1] = np.cumprod(shrink[:0:-1] ** 2, axis=0)[::-1]
    own = 2 * eta[:, None] * problem.injected - 2 * problem.rate * shrink * states[:-1]
    return float(states[-1] @ problem.weight), (left * own) @ problem.weight


def optimum(problem: Problem, steps: int, iterations: int, start: Array) -> tuple[float, Array]:
    """Return the smallest final loss found by L-BFGS on log eta, and its schedule (steps,)."""

    def objective(log_eta: Array) -> tuple[float, Array]:
        eta = np.exp(log_eta)
        loss, gradient = loss_and_gradient(problem, eta)
        return np.log(loss), gradient * eta / loss

    bounds = [(np.log(problem.cap * 1e-6), np.log(problem.cap))] * steps
    found = minimize(
        objective, np.log(start), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": 30,
                 "ftol": 1e-12, "gtol": 1e-9},
    )  # fmt: skip
    return float(np.exp(found.fun)), np.exp(found.x)


def open_loop(name: str, steps: int, final_ratio: float) -> Array:
    """Return a baseline's multiplier (steps,), ending one step before r as in training."""
    shape = SHAPES[name]
    return np.array([final_ratio + (1 - final_ratio) * shape(t / steps) for t in range(steps)])


def closed_loop(problem: Problem, peaks: Array, steps: int, final_ratio: float, phi0: float,
                m: int, drift: str, boundaries: int = 8) -> Array:  # fmt: skip
    """Return UTA's schedules (steps, peaks): noise and drift are known exactly here."""
    shape = (len(peaks), problem.modes)
    bias = np.broadcast_to(problem.start, shape).copy()
    noise = np.zeros(shape)
    at, p, phi = 0, np.zeros(len(peaks)), np.full(len(peaks), phi0)
    eta, losses = np.empty((steps, len(peaks))), [bias @ problem.weight]
    stops = set(boundary_steps(steps, 0, boundaries))
    for t in range(steps):
        f = factor(p + (1 - p) * (t - at) / (steps - at), phi, m)
        if t in stops:
            slope, before = losses[-2] - losses[-1], losses[t // 2 - 1] - losses[t // 2]
            exponent = np.log(np.maximum(before, 1e-300) / np.maximum(slope, 1e-300)) / np.log(2)
            gain = np.maximum(remaining_gain(drift, slope, t, steps - t, exponent), 1e-300)
            phi = np.clip(phi0 * (noise @ problem.weight) / gain, 0.01, 100)
            at, p = t, phase(f, phi, m)
        eta[t] = peaks * (final_ratio + (1 - final_ratio) * f)
        shrink = (1 - eta[t][:, None] * problem.rate) ** 2
        bias, noise = shrink * bias, shrink * noise + eta[t][:, None] ** 2 * problem.injected
        losses.append(bias @ problem.weight)
    return eta


# -------------------------------------------------------------------------------------------------
# The continuous-time problem (spec 3.2)


def kernel_exponent(beta: float, kind: str) -> float:
    """Fit p of K(u) ~ u^-p to the closed-form kernel of the spectrum h_i = i^-beta.

    The sum over i becomes the integral of h c exp(-2 l u) over i, whose integrand is smooth in
    log i; u lies where the spectrum is long on both sides.
    """
    log_i = np.linspace(0, 60, 60001)
    h = np.exp(-beta * log_i)
    rate = h if kind == "sgd" else np.sqrt(h)
    injected = h if kind == "sgd" else np.ones_like(h)
    u = np.logspace(4, 6, 21)
    kernel = [np.trapezoid(h * injected * np.exp(-2 * rate * at + log_i), log_i) for at in u]
    return -float(np.polyfit(np.log(u), np.log(kernel), 1)[0])


def path_to_go(kernel: Array, u: Array, total: float) -> tuple[Array, Array]:
    """Return the optimal eta(u) = (int sqrt K) / (T sqrt K(u)), and the steps to go, tau(u)."""
    root = np.sqrt(kernel)
    width = np.diff(u)
    mass = np.concatenate([[0.0], np.cumsum((root[1:] + root[:-1]) / 2 * width)])
    return mass[-1] / (total * root), total * mass / mass[-1]
