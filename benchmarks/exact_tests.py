"""Time and error of the exact tests against scipy: ``python benchmarks/exact_tests.py``.

Prints a Markdown table. Error is the distance to exact rational arithmetic, where that was counted.
"""

import time
from collections.abc import Callable

import numpy as np
from scipy import stats

from replicata.statistics import exact
from replicata.statistics.exact import sign_flip_exact, sign_flip_p_values
from replicata.statistics.labels import label_permutation_exact

REPEATS = 5
DRAWS = 99_999


def best_time(call: Callable[[], float]) -> tuple[float, float]:
    """Return the shortest of a few wall times in seconds, and the result."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return min(times), result


def scipy_paired(data: np.ndarray) -> float:
    """Run scipy's vectorized sign-flip test."""
    return stats.permutation_test(
        (data,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        n_resamples=DRAWS,
        alternative="greater",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).pvalue


def scipy_labels(x: np.ndarray, y: np.ndarray) -> float:
    """Run scipy's vectorized label permutation test."""
    return stats.permutation_test(
        (x, y),
        lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        n_resamples=DRAWS,
        alternative="greater",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).pvalue


def drawn(data: np.ndarray) -> float:
    """Run our Monte Carlo where counting would do, to compare like with like."""
    limits = exact.MAX_WORK, exact.MAX_ENUMERATED
    exact.MAX_WORK, exact.MAX_ENUMERATED = 0, 0
    try:
        return sign_flip_exact(data, "greater", seed=0, n_resamples=DRAWS).p_value
    finally:
        exact.MAX_WORK, exact.MAX_ENUMERATED = limits


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    outcomes = rng.choice([-1, 0, 1], p=[0.1, 0.7, 0.2], size=64)
    counts = rng.integers(-8, 11, size=64)
    large = rng.integers(-8, 11, size=256)
    yes, no = (rng.random(64) < 0.3).astype(int), (rng.random(64) < 0.2).astype(int)
    x, y = rng.integers(0, 12, 40), rng.integers(0, 10, 40)
    both, first = np.concatenate([yes, no]), np.arange(128) < 64
    pooled, treated = np.concatenate([x, y]), np.arange(80) < 40

    rows = [
        ("paired 0/1, n = 64: binomial", outcomes, scipy_paired),
        ("paired counts, n = 64: dynamic programming", counts, scipy_paired),
        ("paired counts, n = 256: dynamic programming", large, scipy_paired),
    ]
    print(f"scipy: permutation_test, vectorized, {DRAWS:,} draws; best of {REPEATS}\n")
    print("| test | scipy, ms | ours, ms | ratio | scipy's error | ours |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")

    def row(
        name: str, theirs: Callable[[], float], ours: Callable[[], float], truth: float
    ) -> None:
        slow, p_scipy = best_time(theirs)
        fast, p_ours = best_time(ours)
        print(
            f"| {name} | {slow * 1e3:.1f} | {fast * 1e3:.3f} | {slow / fast:,.0f}x "
            f"| {abs(p_scipy - truth):.1e} | {abs(p_ours - truth):.1e} |"
        )

    for name, data, theirs in rows:
        truth = sign_flip_exact(data, "greater").p_value
        row(
            name,
            lambda data=data, theirs=theirs: theirs(data),
            lambda data=data: sign_flip_exact(data, "greater").p_value,
            truth,
        )
    for name, data in (("n = 64", counts), ("n = 256", large)):
        truth = sign_flip_exact(data, "greater").p_value
        row(
            f"paired counts, {name}: Monte Carlo",
            lambda data=data: scipy_paired(data),
            lambda data=data: drawn(data),
            truth,
        )
    row(
        "labels 0/1, 64 + 64: hypergeometric",
        lambda: scipy_labels(yes, no),
        lambda: label_permutation_exact(both, first, "greater").p_value,
        label_permutation_exact(both, first, "greater").p_value,
    )
    row(
        "labels, counts, 40 + 40: dynamic programming",
        lambda: scipy_labels(x, y),
        lambda: label_permutation_exact(pooled, treated, "greater").p_value,
        label_permutation_exact(pooled, treated, "greater").p_value,
    )
    studies = rng.choice([-1, 0, 1], size=(2000, 64))
    seconds, _ = best_time(lambda: float(sign_flip_p_values(studies).mean()))
    print(f"\n2,000 simulated 0/1 studies of 64 worlds: {seconds * 1e3:.1f} ms, exact")


if __name__ == "__main__":
    main()
