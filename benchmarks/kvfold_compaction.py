"""Compaction and folding of one context: our batched code against a straightforward reference.

Run with::

    OMP_NUM_THREADS=1 python benchmarks/kvfold_compaction.py

The reference does what the method section says, one head at a time: softmax weights in full, the
bias by scipy's bounded least squares on the whole design matrix, the values by a dense
least-squares solver on the ridge-stacked system, the direction likewise. Both run in turns on the
same made-up layers; errors are those of our result from the reference's.
"""

import argparse
import time
from statistics import median

import numpy as np
import torch
from scipy.optimize import lsq_linear

from replicata.papers.kvfold.attention_matching import BIAS_BOUNDS, attention_matching
from replicata.papers.kvfold.method import FOLD_RIDGE, fold_layer

VALUE_RIDGE = 1e-4


def make_layer(seed: int, heads: int, length: int, queries: int, d: int) -> list[torch.Tensor]:
    """Return made-up keys, values and queries of a layer; queries have a mean, as real ones do."""
    draw = torch.Generator().manual_seed(seed)
    keys = torch.randn(heads, length, d, generator=draw)
    values = torch.randn(heads, length, d, generator=draw)
    mean = torch.randn(heads, 1, d, generator=draw)
    return [keys, values, mean + torch.randn(heads, queries, d, generator=draw)]


def ours(layer: list[torch.Tensor], budget: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bias, values and folded keys by the package."""
    keys, values, queries = layer
    scale = keys.shape[-1] ** -0.5
    compacted = attention_matching(keys, values, queries, budget, scale, ridge=VALUE_RIDGE)
    folded = fold_layer(compacted, queries, scale)
    return compacted.bias.numpy(), compacted.values.numpy(), folded.cache.keys.numpy()


def reference(layer: list[torch.Tensor], budget: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same head by head with dense solvers in float64."""
    lower, upper = (np.exp(bound) for bound in BIAS_BOUNDS["highest_attention"])
    biases, fitted, folded = [], [], []
    for k, v, q in zip(*(tensor.double().numpy() for tensor in layer), strict=True):
        n, d = q.shape
        scale = d**-0.5
        logits = scale * q @ k.T
        weights = np.exp(logits - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        kept = np.sort(np.argsort(-np.sqrt((weights**2).mean(0)), kind="stable")[:budget])
        mass = lsq_linear(weights[:, kept], np.ones(n), (lower, upper), method="bvls").x
        bias = np.log(mass)
        p = np.exp(scale * q @ k[kept].T + bias)
        p /= p.sum(1, keepdims=True)
        ridge = np.sqrt(VALUE_RIDGE) * np.linalg.norm(p, 2) * np.eye(budget)
        target = np.vstack([weights @ v, np.zeros((budget, d))])
        c2 = np.linalg.lstsq(np.vstack([p, ridge]), target, rcond=None)[0]
        shrink = np.sqrt(n * FOLD_RIDGE * (q**2).sum() / n / d) * np.eye(d)
        ones = np.concatenate([np.ones(n), np.zeros(d)])
        u = np.linalg.lstsq(np.vstack([q, shrink]), ones, rcond=None)[0]
        biases.append(bias)
        fitted.append(c2)
        folded.append(k[kept] + bias[:, None] / scale * u)
    return np.stack(biases), np.stack(fitted), np.stack(folded)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--length", type=int, default=450)
    parser.add_argument("--queries", type=int, default=1023)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| budget | ours, s a layer | reference, s a layer | reference / ours | largest difference "
        "of bias, nats | of values | of folded keys |"
    )
    print("| --- " * 7 + "|")
    for budget in (22, 45, 90):
        times, errors = {"ours": [], "reference": []}, np.zeros(3)
        for seed in range(options.layers):
            layer = make_layer(seed, 3, options.length, options.queries, 64)
            results = []
            for name, function in (("ours", ours), ("reference", reference)):
                start = time.perf_counter()
                results.append(function(layer, budget))
                times[name].append(time.perf_counter() - start)
            found = [float(np.abs(a - b).max()) for a, b in zip(*results, strict=True)]
            errors = np.maximum(errors, found)
        fast, slow = median(times["ours"]), median(times["reference"])
        cells = [f"{fast:.4f}", f"{slow:.3f}", f"{slow / fast:.0f}", *(f"{e:.1e}" for e in errors)]
        print(f"| {budget} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
