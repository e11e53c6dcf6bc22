"""The closed-loop schedule UTA-R (spec 3.2 to 3.4).

Along the optimal path of a preconditioned diffusion, K(u) eta^2 is constant, with u the intrinsic
time to go and K the forgetting kernel. The schedule does not know K. It decays along

    f_{phi,m}(p) = 1 / (1 + phi/2 tan(pi p/2)^m)

(m = 2 is the published UBA, and phi = 2 its cosine), and sets phi at a few boundaries from what
annealing would remove (N) over what moving on would still gain (D): phi = phi0 N/D. The phase p is
matched at each boundary, so that the learning rate is continuous.
"""

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from replicata.papers.uta_lrd.family import boundary_steps, factor, phase, remaining_gain

LOG = logging.getLogger(__name__)
#: Smallest noise excess and drift, so that their ratio is finite; the clip on phi decides.
EPSILON = 1e-12
#: Largest change of the learning rate by the scale component, either way.
SCALE_LIMIT = 1.5
DRIFTS = ("log", "lin", "hyp")
#: Updates of the averaged weights within one horizon: enough for an average of some hundred steps
#: to cost little, and every step where the horizon is short.
UPDATES_PER_HORIZON = 8


def _check(
    total_steps: int,
    warmup: int,
    final_ratio: float,
    phi0: float,
    m: int,
    boundaries: int,
    drift: str,
) -> None:
    wrong = [
        ("total_steps", total_steps, total_steps >= 1, "a whole number of at least 1"),
        ("warmup", warmup, 0 <= warmup < total_steps, f"0 to {total_steps - 1}, below total_steps"),
        ("final_ratio", final_ratio, 0 <= final_ratio < 1, "a number in [0, 1)"),
        ("phi0", phi0, phi0 > 0, "a number above 0"),
        ("m", m, m in (1, 2), "1 or 2"),
        ("boundaries", boundaries, boundaries >= 0, "a whole number of at least 0"),
        ("drift", drift, drift in DRIFTS[:2], "log or lin (hyp needs the exact drift)"),
    ]
    for name, value, good, expected in wrong:
        if not good:
            raise ValueError(f"{name} is {value!r}, expected {expected}.")


class UTASchedule(LRScheduler):
    """UTA-R around any torch optimizer, as an ``LRScheduler``.

    After each ``optimizer.step()`` call ``observe(loss)``; where ``needs_probe()``, measure one
    fixed batch with the current and with the averaged weights (``with schedule.averaged():``) and
    call ``probe(now, averaged)``; then ``step()``. Without observations it is UBA with phi0.

    Update t (from 0) uses t/warmup of the peak during warmup, and afterwards
    r + (1-r) f(q(t)) with q = 1 at ``total_steps``, as transformers' schedules do.

    Parameters
    ----------
    optimizer
        Its parameter groups keep their ratios.
    total_steps, warmup
        Optimizer steps, not micro-batches.
    final_ratio
        r, the final over the peak learning rate.
    phi0, m
        Gain of the loop, and exponent of the tail.
    boundaries
        How often phi is set.
    ema_horizon
        Steps over which the weights are averaged; 4 % of the budget by default.
    clip
        Range of phi.
    drift
        ``log`` or ``lin``, see `remaining_gain`.
    scale_alpha
        Exponent of the scale component; 0 turns it off.
    use_noise, use_drift, lag_correction, match_phase
        Ablations (spec 3.5).

    Raises
    ------
    ValueError
        A setting out of its range, or an optimizer without a learning rate.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_steps: int,
        warmup: int = 0,
        final_ratio: float = 0.1,
        phi0: float = 0.3,
        m: int = 2,
        boundaries: int = 8,
        ema_horizon: float | None = None,
        clip: tuple[float, float] = (0.01, 100.0),
        drift: str = "log",
        scale_alpha: float = 0.0,
        use_noise: bool = True,
        use_drift: bool = True,
        lag_correction: bool = True,
        match_phase: bool = True,
    ) -> None:
        _check(total_steps, warmup, final_ratio, phi0, m, boundaries, drift)
        if any("lr" not in group for group in optimizer.param_groups):
            raise ValueError("the optimizer has a parameter group without 'lr', expected one.")
        self.total_steps, self.warmup, self.final_ratio = total_steps, warmup, final_ratio
        self.phi0, self.m, self.clip, self.drift = phi0, m, clip, drift
        self.horizon = max(1.0, 0.04 * total_steps if ema_horizon is None else ema_horizon)
        self.stride = max(1, int(self.horizon / UPDATES_PER_HORIZON))
        self.scale_alpha = scale_alpha
        self.use_noise, self.use_drift = use_noise, use_drift
        self.lag_correction, self.match_phase = lag_correction, match_phase
        self.boundaries = boundary_steps(total_steps, warmup, boundaries)
        # State: the piece (phi from phase at step start), what was observed, what was averaged.
        self.phi, self.phase, self.start = phi0, 0.0, warmup
        self.losses: list[float] = []
        self.average: list[torch.Tensor] = []
        self.history: list[dict[str, float]] = []
        self.bad_losses, self.missed, self.warned = 0, 0, False
        self.grad_norm, self.grad_reference = 0.0, 0.0
        super().__init__(optimizer)

    # The open-loop part: the learning rate as a function of the step and the piece.

    def decay(self, t: int) -> float:
        """Return f at step ``t`` after warmup under the current piece."""
        progress = min(1.0, (t - self.start) / (self.total_steps - self.start))
        return float(factor(self.phase + (1 - self.phase) * progress, self.phi, self.m))

    def multiplier(self, t: int) -> float:
        """Return the learning rate at step ``t`` over its peak."""
        if t < self.warmup:
            return t / self.warmup
        f = self.decay(t)
        if self.scale_alpha and self.grad_norm and self.grad_reference:
            scale = (self.grad_reference / self.grad_norm) ** self.scale_alpha
            f = min(1.0, f * min(max(scale, 1 / SCALE_LIMIT), SCALE_LIMIT))
        return self.final_ratio + (1 - self.final_ratio) * f

    def get_lr(self) -> list[float]:
        """Return the learning rate of every parameter group; held at r past the budget."""
        t = self.last_epoch
        if (
            t in self.boundaries
            and self.losses
            and (not self.history or self.history[-1]["step"] < t)
        ):
            self.missed += 1
            LOG.warning("no probe at step %d: phi stays at %g", t, self.phi)
        if t > self.total_steps and not self.warned:
            self.warned = True
            warnings.warn(
                f"step() was called past total_steps = {self.total_steps}: the learning rate "
                "stays at its final value.",
                stacklevel=3,
            )
        multiplier = self.multiplier(t)
        return [base * multiplier for base in self.base_lrs]

    # The closed loop: what is observed, and what follows at a boundary.

    def parameters(self) -> list[torch.Tensor]:
        """Return the optimizer's parameters, in its order."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @torch.no_grad()
    def observe(self, loss: float | torch.Tensor) -> None:
        """Take the loss of the optimizer step just done, and average the weights.

        Raises
        ------
        FloatingPointError
            After three losses in a row that are not finite.
        """
        value = float(loss)
        if math.isfinite(value):
            self.losses.append(value)
            self.bad_losses = 0
        else:
            finite = [x for x in self.losses if math.isfinite(x)]
            self.losses.append(math.nan)
            self.bad_losses += 1
            if self.bad_losses >= 3:
                last = finite[-1] if finite else "none"
                raise FloatingPointError(
                    f"three losses in a row are not finite, the last at step "
                    f"{self.last_epoch + 1}; the last finite loss was {last}."
                )
            return
        self._average_weights()
        if self.scale_alpha:
            self._observe_gradients()

    def _average_weights(self) -> None:
        """Move the average towards the weights, once in ``stride`` steps by as much as in each."""
        weights = [p.detach() for p in self.parameters()]
        if not self.average:
            self.average = [w.clone() for w in weights]
        elif (self.last_epoch + 1) % self.stride == 0:
            rate = 1 - (1 - 1 / self.horizon) ** self.stride
            torch._foreach_lerp_(self.average, weights, rate)

    def _observe_gradients(self) -> None:
        """Average ||g||_1; its value at the end of warmup is the reference."""
        size = sum(float(p.grad.abs().sum()) for p in self.parameters() if p.grad is not None)
        rate = 1 / self.horizon
        self.grad_norm = size if not self.grad_norm else (1 - rate) * self.grad_norm + rate * size
        if self.last_epoch + 1 >= self.warmup and not self.grad_reference:
            self.grad_reference = self.grad_norm

    def needs_probe(self) -> bool:
        """Whether the next step is a boundary (and there is something to probe)."""
        return self.last_epoch + 1 in self.boundaries and bool(self.average)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averaged weights in place, and the current ones back, whatever happens."""
        weights = [p.data for p in self.parameters()]
        try:
            for p, mean in zip(self.parameters(), self.average, strict=True):
                p.data = mean
            yield
        finally:
            for p, own in zip(self.parameters(), weights, strict=True):
                p.data = own

    def loss_slope(self) -> float:
        """Return B of the fit A - B ln t to the running loss over [t/2, t] (spec 3.4)."""
        t = len(self.losses)
        steps = np.arange(1, t + 1)
        window = (steps >= t / 2) & np.isfinite(self.losses)
        if window.sum() < 2:
            return 0.0
        return -float(np.polyfit(np.log(steps[window]), np.asarray(self.losses)[window], 1)[0])

    def probe(self, loss_now: float, loss_average: float) -> None:
        """Set phi and match the phase at the boundary reached by the next ``step()``.

        Parameters
        ----------
        loss_now, loss_average
            Loss of one batch under the current and under the averaged weights, in one unit.
        """
        t = self.last_epoch + 1
        remaining = self.total_steps - t
        current = self.decay(t)  # under the old phi: the other order loses one step
        excess, drift = float(loss_now) - float(loss_average), self.loss_slope()
        if not math.isfinite(excess):
            LOG.warning("the probe at step %d is not finite: phi stays at %g", t, self.phi)
            self.history.append({"step": t, "noise": excess, "drift": math.nan, "phi": self.phi})
            return
        slope = drift / t
        noise = max(EPSILON, excess + (slope * self.horizon if self.lag_correction else 0.0))
        gain = max(EPSILON, float(remaining_gain(self.drift, slope, t, remaining)))
        ratio = (noise if self.use_noise else 1.0) / (gain if self.use_drift else remaining / t)
        self.set_piece(t, float(np.clip(self.phi0 * ratio, *self.clip)), current)
        self.history.append({"step": t, "noise": noise, "drift": gain, "phi": self.phi})

    def set_piece(self, t: int, phi: float, current: float) -> None:
        """Begin a piece at step ``t`` with a new phi, from the current factor."""
        self.phi, self.start = phi, t
        if self.match_phase:
            self.phase = float(phase(current, phi, self.m))
        else:  # ablation: restart at the phase of the clock; the learning rate jumps
            self.phase = (t - self.warmup) / (self.total_steps - self.warmup)

    # Checkpoints.

    _FIXED = ("total_steps", "warmup", "final_ratio", "phi0", "m", "drift", "horizon")

    def state_dict(self) -> dict[str, object]:
        """Return everything but the optimizer; holds tensors, lists and numbers only."""
        state = super().state_dict()
        state["average"] = [mean.clone() for mean in self.average]
        state["losses"], state["history"] = list(self.losses), [dict(h) for h in self.history]
        return state

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Take over a saved state.

        Raises
        ------
        ValueError
            Where it was saved under another budget or setting, which define the schedule, or for
            parameters of other shapes.
        """
        for name in self._FIXED:
            if state_dict[name] != getattr(self, name):
                raise ValueError(
                    f"the checkpoint has {name} = {state_dict[name]!r}, expected "
                    f"{getattr(self, name)!r}: it belongs to another schedule."
                )
        weights, average = self.parameters(), state_dict["average"]
        shapes = [mean.shape for mean in average]
        if average and shapes != [p.shape for p in weights]:
            raise ValueError("the checkpoint's averaged weights have other shapes, expected same.")
        state = dict(state_dict)
        state["average"] = [
            mean.detach().to(device=p.device, dtype=p.dtype, copy=True)
            for mean, p in zip(average, weights, strict=False)
        ]
        state["losses"], state["history"] = list(state["losses"]), list(state["history"])
        super().load_state_dict(state)
