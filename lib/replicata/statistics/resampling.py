"""Resampling: intervals from a bootstrap over clusters."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from replicata.statistics.checks import between, constant, one_of, vector, whole


def cluster_means(frame: pd.DataFrame, cluster: str, value: str) -> pd.Series:
    """Return the mean of ``value`` in each cluster, indexed and sorted by cluster.

    Parameters
    ----------
    frame
        One row per measurement.
    cluster, value
        Column names.

    Raises
    ------
    ValueError
        If a column is missing, the frame is empty, a value is not a finite number or a cluster
        label is missing.
    """
    for column in (cluster, value):
        if column not in frame.columns:
            known = ", ".join(map(str, frame.columns))
            raise ValueError(f"the table has no column {column!r}, only {known}.")
    values = vector(frame[value].to_numpy(), value, 1)
    labels = frame[cluster]
    if labels.isna().any():
        row = int(np.flatnonzero(labels.isna())[0])
        raise ValueError(f"{cluster} has no label in row {row}.")
    means = pd.Series(values, name=value).groupby(labels.to_numpy()).mean()
    return means.rename_axis(cluster)


@dataclass(frozen=True)
class BootstrapResult:
    """A cluster-bootstrap interval.

    Attributes
    ----------
    estimate
        The statistic of the cluster means.
    interval
        Lower and upper end.
    standard_error
        Standard deviation of the resampled statistic.
    confidence, method
        As asked.
    n_clusters, n_values
        Clusters, and values in them.
    degenerate
        Whether all cluster means are the same: then the interval is a point, and says nothing
        about clusters not seen.
    """

    estimate: float
    interval: tuple[float, float]
    standard_error: float
    confidence: float
    method: str
    n_clusters: int
    n_values: int
    degenerate: bool

    def describe(self, unit: str) -> str:
        """Return the interval in words for ``Evidence.interval_kind``; ``unit``: "contexts"."""
        level = f"{100 * self.confidence:g} %"
        return f"{level} cluster bootstrap ({self.method}) over {self.n_clusters} {unit}"


def cluster_bootstrap(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike | None = None,
    *,
    seed: int,
    statistic: Callable[..., Any] = np.mean,
    confidence: float = 0.95,
    n_resamples: int = 9_999,
    method: str = "percentile",
) -> BootstrapResult:
    """Return a bootstrap interval for a statistic of the cluster means.

    Values are averaged within their cluster first, and whole clusters are drawn with replacement
    (Davison and Hinkley 1997, section 3.8). So every cluster weighs the same however many values
    it has, and the interval is about new clusters, not about new values in the same clusters.

    Few clusters make it too narrow: the resampled spread is √((k-1)/k) of the real one, and no
    t quantile makes up for an estimated spread. Normal cluster means are covered by a nominal
    95 % percentile interval about 80 % of the time with k = 4, 88 % with k = 8 and 92 % with
    k = 16 (the tests simulate it); `tost_paired` gives a t interval.

    Parameters
    ----------
    values
        Shape (n,).
    clusters
        Shape (n,): the label of each value's cluster; None if each value is a cluster of its own.
        At least 2 clusters.
    seed
        Of the draws.
    statistic
        ``statistic(means, axis=...)`` over shape (..., k); the mean by default.
    confidence
        In (0, 1).
    n_resamples
        Bootstrap samples.
    method
        ``percentile``, or ``BCa`` (Efron 1987, doi 10.1080/01621459.1987.10478410).

    Raises
    ------
    ValueError
        If values are not finite or not one-dimensional, labels do not match, there are fewer than
        2 clusters, an option is out of range, or BCa is undefined for these data.
    """
    data = vector(values, "values", 1)
    one_of(method, "method", ("percentile", "BCa"))
    level = between(confidence, "confidence", 0, 1)
    draws = whole(n_resamples, "n_resamples", 1)
    rng = np.random.default_rng(whole(seed, "seed", 0))
    means = data
    if clusters is not None:
        labels = np.asarray(clusters)
        if labels.shape != data.shape:
            raise ValueError(f"clusters has shape {labels.shape}, expected {data.shape}.")
        frame = pd.DataFrame({"clusters": labels, "values": data})
        means = cluster_means(frame, "clusters", "values").to_numpy()
    if means.size < 2:
        raise ValueError(f"a cluster bootstrap needs at least 2 clusters, got {means.size}.")

    estimate = float(statistic(means, axis=-1))
    degenerate = constant(means, 0.0)
    if degenerate:
        interval, error = (estimate, estimate), 0.0
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # answered below
            result = stats.bootstrap(
                (means,),
                statistic,
                vectorized=True,
                confidence_level=level,
                n_resamples=draws,
                batch=max(1, 1_000_000 // means.size),
                method=method,
                rng=rng,
            )
        interval = (float(result.confidence_interval.low), float(result.confidence_interval.high))
        error = float(result.standard_error)
    if not np.all(np.isfinite([estimate, *interval])):
        raise ValueError(f"the {method} interval of these {means.size} clusters is undefined.")
    return BootstrapResult(
        estimate=estimate,
        interval=interval,
        standard_error=error,
        confidence=level,
        method=method,
        n_clusters=means.size,
        n_values=data.size,
        degenerate=degenerate,
    )
