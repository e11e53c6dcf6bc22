"""Numerical proofs: Theorem 1, the kept-mass identity and the decomposition on random draws.

Everything is float64 and enumerated over the vocabulary; nothing is sampled but the distributions
themselves. The finite differences know nothing of f or S: they take a step on the logits and
compute the entropy anew.
"""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from replicata.papers.rlvr_entropy.experiment import Params
from replicata.papers.rlvr_entropy.method import (
    State,
    decompose,
    entropy_score,
    sharpness_gap,
)
from replicata.papers.rlvr_entropy.samplers import Sampler, sampler_log_probs
from replicata.workflow.cells import Cell
from replicata.workflow.seeds import derive_seed

#: Step of the finite differences on the logits.
ETA = 1e-5
#: Below this size of a drift its finite difference is rounding, and no relative error is taken.
SMALL = 1e-6
#: Expected sign of the gap: likelihood ratio q/p rising with p, falling, constant.
SIGNS = {"topk": 1, "topp": 1, "minp": 1, "cool": 1, "hot": -1, "mix": -1, "exact": 0}
#: A ratio that is not monotone: the likeliest token is never drawn. It must break the theorem.
CONTROL = "drop_first"
#: Distributions per vocabulary size in one batch.
BATCH = 100


def theorem(params: Params, cell: Cell) -> pd.DataFrame:
    """Check ``params.draws`` pairs of a distribution and a sampler; rows of worst errors."""
    rng = np.random.default_rng(derive_seed(params.seed, "rlvr_entropy", cell.group))
    kinds = [*SIGNS, CONTROL]
    rounds = -(-params.draws // (BATCH * len(SIGNS)))
    rows: list[dict[str, object]] = []
    for index in range(rounds):
        logits = draw_logits(rng, BATCH)
        for kind in kinds:
            q, kept = draw_sampler(kind, logits, rng)
            for metric, values in _check(kind, logits, q, kept, rng).items():
                rows += [
                    {"arm": kind, "unit": f"round-{index:03d}", "metric": metric, "value": value}
                    for value in values
                ]
        rows.append(
            {
                "arm": "batch",
                "unit": f"round-{index:03d}",
                "metric": "identity_error",
                "value": batch_identity_error(rng),
            }
        )
    return pd.concat([pd.DataFrame(rows), score_curve()], ignore_index=True)


def draw_logits(rng: np.random.Generator, count: int) -> Tensor:
    """Return logits (count, V) of one random size V in 2..64: peaked, flat, and with exact ties."""
    size = int(rng.integers(2, 65))
    spread = np.exp(rng.uniform(np.log(0.1), np.log(6.0), size=(count, 1)))
    logits = spread * rng.standard_normal((count, size))
    tied = rng.random(count) < 0.2
    logits[tied] = np.round(logits[tied])
    return torch.from_numpy(logits)


def draw_sampler(kind: str, logits: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return q and the kept set, each (count, V), of a random sampler of a kind."""
    size = logits.shape[-1]
    p = logits.softmax(-1)
    everything = torch.ones_like(p, dtype=torch.bool)
    if kind == "mix":
        share = float(rng.uniform(0.05, 0.95))
        return (1 - share) * p + share / size, everything
    if kind == CONTROL:
        kept = everything.scatter(-1, p.argmax(-1, keepdim=True), False)
        return sampler_log_probs(logits, kept, 1.0).exp(), kept
    sampler = {
        "exact": lambda: Sampler(),
        "topk": lambda: Sampler(top_k=int(rng.integers(1, size + 1))),
        "topp": lambda: Sampler(top_p=float(rng.uniform(0.05, 0.999))),
        "minp": lambda: Sampler(min_p=float(rng.uniform(0.001, 0.9))),
        "cool": lambda: Sampler(temperature=float(rng.uniform(0.1, 0.99))),
        "hot": lambda: Sampler(temperature=float(rng.uniform(1.01, 4.0))),
    }[kind]()
    kept = sampler.kept(logits)
    return sampler_log_probs(logits, kept, sampler.temperature).exp(), kept


def entropy_of(logits: Tensor) -> Tensor:
    """Return the entropy (...), nats, by torch's own categorical distribution."""
    return torch.distributions.Categorical(logits=logits).entropy()


def finite_difference(logits: Tensor, direction: Tensor) -> Tensor:
    """Return dH along a direction of the logits, by central differences with step `ETA`."""
    ahead, behind = (entropy_of(logits + side * ETA * direction) for side in (1, -1))
    return (ahead - behind) / (2 * ETA)


def _check(
    kind: str, logits: Tensor, q: Tensor, kept: Tensor, rng: np.random.Generator
) -> dict[str, list[float]]:
    p = logits.softmax(-1)
    gap = sharpness_gap(p, q)
    found = {"gap": gap.tolist(), "entropy": entropy_of(logits).tolist()}
    if kind == CONTROL:
        return found
    measured = finite_difference(logits, q - p)  # a constant advantage of 1
    found["difference_error"] = _relative(-gap, measured)

    # Importance ratios (3.4), by enumeration: E_q[(p/q) (e_y - p)].
    ratio = torch.where(q > 0, p / q.where(q > 0, 1.0), 0.0)
    weighted = q * ratio - (q * ratio).sum(-1, keepdim=True) * p
    mass = (p * kept).sum(-1, keepdim=True)
    if kind in ("topk", "topp", "minp"):
        found["kept_mass_error"] = (weighted - mass * (q - p)).abs().amax(-1).tolist()
        _, f = entropy_score(p.log())
        usable = gap.abs() > SMALL
        ratios = ((weighted * f).sum(-1) / gap)[usable]
        found["drift_ratio_error"] = (ratios - mass[:, 0][usable]).abs().tolist()
    else:
        found["removed_error"] = weighted.abs().amax(-1).tolist()

    # (3), with advantages that depend on the token.
    advantage = torch.from_numpy(rng.standard_normal(p.shape))
    _, f = entropy_score(p.log())
    mean = (q * advantage).sum(-1)
    covariance = (q * advantage * f).sum(-1) - mean * (q * f).sum(-1)
    step = q * advantage - mean[:, None] * p
    found["drift_error"] = (
        (finite_difference(logits, step) + covariance + mean * gap).abs().tolist()
    )
    return found


def _relative(predicted: Tensor, measured: Tensor) -> list[float]:
    """Return relative errors where the prediction is not small, and absolute ones elsewhere."""
    scale = torch.where(predicted.abs() > SMALL, predicted.abs(), 1.0)
    return ((predicted - measured).abs() / scale).tolist()


def batch_identity_error(rng: np.random.Generator, responses: int = 12, length: int = 7) -> float:
    """Return |sum w A S - (N S̄ + Cov_w(A, S))| (4) of a made-up batch of ragged responses."""
    lengths = rng.integers(1, length + 1, size=responses)
    mask = torch.from_numpy(np.arange(length) < lengths[:, None])
    weights = torch.from_numpy(rng.random(mask.shape)) * mask
    weights = weights / weights.sum()
    gap, chosen, expected = torch.from_numpy(rng.standard_normal((3, *mask.shape)))
    state = State(gap, gap, gap, expected, chosen)
    advantage = torch.from_numpy(rng.standard_normal(responses))
    drift = decompose(advantage, weights, state)
    direct = (weights * advantage[:, None] * gap).sum()
    return float((drift.mismatch - direct).abs())


def score_curve(entropies: tuple[float, ...] = (0.5, 1.5, 3.0)) -> pd.DataFrame:
    """Return f(p) = p (log p + H) on a grid of p, for figure 1."""
    p = np.geomspace(1e-3, 1.0, 120)
    parts = [
        pd.DataFrame({"p": p, "value": p * (np.log(p) + h), "entropy_level": h}) for h in entropies
    ]
    return pd.concat(parts).assign(arm="curve", unit="curve", metric="score")
