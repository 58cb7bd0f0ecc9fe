"""Metrics of retrieval, and confidence intervals of fractions such as recall.

For independent answers, the Clopper–Pearson interval is exact. Frames of a drive are not independent: twenty
failures in one tunnel are one observation. Answers are then grouped into clusters (drives, or blocks of
frames). The number of answers is divided by the design effect: the variance between clusters relative to that
of independent answers (Korn and Graubard 1998). With too few different clusters for an estimate, each cluster
counts as one answer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from scipy.special import betaincinv

from kappaplace.checks import Bools, Floats, booleans, checked_hits, share, within
from kappaplace.errors import KappaPlaceError
from kappaplace.metrics.bootstrap import Interval

KS = (1, 5, 10)
"""Numbers of matches K for which retrieval and calibration are measured."""


def success_at(hits: NDArray[np.bool_], k: int) -> NDArray[np.bool_]:
    """Check whether a positive is among the k best matches of each query.

    Args:
        hits: Whether each match is a positive, N×K booleans, best match first.
        k: Number of matches.

    Returns:
        N booleans.

    Raises:
        KappaPlaceError: If k is out of range, or hits are not booleans.
    """
    return np.any(checked_hits(hits, k, f"R@{k}"), axis=1)


def recall_at(hits: NDArray[np.bool_], k: int) -> float:
    """Compute R@K: the fraction of queries with a positive among their K best matches.

    Args:
        hits: Whether each match is a positive, N×K booleans, best match first.
        k: Number of matches.

    Returns:
        The recall, in [0, 1].

    >>> recall_at(np.array([[True, False], [False, True]]), 1)
    0.5
    """
    return float(success_at(hits, k).mean())


def average_precision_at(
    hits: NDArray[np.bool_], positives: NDArray[np.integer], k: int
) -> NDArray[np.float64]:
    """Compute AP@K of each query: summed precision at its hits, divided by min(K, positives).

    A query without a positive counts as a failure (0), as in R@K. Remove its row to exclude it.

    Args:
        hits: Whether each match is a positive, N×K booleans, best match first.
        positives: Number of positives of each query among all references, N integers.
        k: Number of matches.

    Returns:
        The average precision of each query, N values in [0, 1].

    Raises:
        KappaPlaceError: If k is out of range, or a query has more hits than positives.
    """
    top = checked_hits(hits, k, f"mAP@{k}")
    count = np.asarray(positives)
    hit_count = top.sum(axis=1)
    if count.shape != hit_count.shape or count.dtype.kind not in "iu":
        raise KappaPlaceError(
            f"positives must be an integer for each of {len(top)} queries, "
            f"got {count.dtype} of shape {count.shape}."
        )
    if (hit_count > count).any():
        query = int(np.argmax(hit_count > count))
        raise KappaPlaceError(
            f"positives must be at least the number of hits, got {count[query]} for "
            f"query {query} with {hit_count[query]}."
        )
    hits_so_far = np.cumsum(top, axis=1, dtype=np.int32)  # half the memory, half the time
    precision = (hits_so_far * top) @ (1 / np.arange(1, k + 1))  # summed over the hits
    return precision / np.maximum(np.minimum(count, k), 1)


def mean_average_precision_at(hits: NDArray[np.bool_], positives: NDArray[np.integer], k: int) -> float:
    """Compute mAP@K: the mean of `average_precision_at` over the queries.

    Args:
        hits: Whether each match is a positive, N×K booleans, best match first.
        positives: Number of positives of each query among all references, N integers.
        k: Number of matches.

    Returns:
        The mean average precision, in [0, 1].

    >>> mean_average_precision_at(np.array([[True, False], [False, True]]), np.array([1, 2]), 2)
    0.625
    """
    return float(average_precision_at(hits, positives, k).mean())


LEAST_CLUSTERS = 5
"""Minimum number of clusters with a failure, and of clusters without one, for estimating the design
effect."""


def binomial_interval(failures: float, trials: float, level: float = 0.95) -> tuple[float, float]:
    """Return the two-sided Clopper–Pearson interval of a fraction.

    Args:
        failures: Number of failures; an effective number need not be whole.
        trials: Number of trials.
        level: Confidence level.

    Returns:
        Lower and upper limit.

    Raises:
        KappaPlaceError: If there are more failures than trials.

    >>> low, high = binomial_interval(0, 59, 0.90)
    >>> low, round(high, 3)
    (0.0, 0.05)
    """
    within(trials, "trials", 0)
    within(failures, "failures", 0, trials)
    tail = (1 - share(level, "level")) / 2
    low = 0.0 if failures <= 0 else float(betaincinv(failures, trials - failures + 1, tail))
    high = 1.0 if failures >= trials else float(betaincinv(failures + 1, trials - failures, 1 - tail))
    return low, high


def clustered_interval(
    failures: Bools, clusters: npt.ArrayLike | None = None, level: float = 0.95
) -> Interval:
    """Return the fraction of failures with its interval.

    Args:
        failures: Whether each answer failed, N.
        clusters: Cluster of each answer, N: answers of a cluster may fail together. Default: all answers are
            independent.
        level: Confidence level.

    Returns:
        The fraction and its interval; NaN if there are no answers. The number of undefined resamples is 0.

    Raises:
        KappaPlaceError: If the lengths differ.

    >>> failures = np.repeat([True, False, False, False, False, False, False, False], 20)
    >>> [round(value, 2) for value in clustered_interval(failures)[:3]]
    [0.12, 0.08, 0.19]
    >>> [round(value, 2) for value in clustered_interval(failures, np.arange(160) // 20)[:3]]
    [0.12, 0.0, 0.53]
    """
    failed = booleans(failures, np.shape(failures), "failures")
    answers = len(failed)
    if not answers:
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    rate = float(failed.mean())
    effective = float(answers)
    if clusters is not None:
        of = np.asarray(clusters)
        booleans(failed, of.shape, "failures")
        effective = effective_answers(failed, of, level)
    return Interval(rate, *binomial_interval(rate * effective, effective, level), 0)


def effective_answers(failed: Bools, clusters: npt.NDArray[np.generic], level: float = 0.95) -> float:
    """Return the number of independent answers that are as informative as clustered ones.

    Args:
        failed: Whether each answer failed, N.
        clusters: Cluster of each answer, N.
        level: Confidence level, for the correction of few clusters.

    Returns:
        The effective number, at most N.
    """
    from scipy.stats import t

    _, of = np.unique(clusters, return_inverse=True)
    sizes: Floats = np.bincount(of).astype(float)
    errors = np.bincount(of, weights=failed)
    answers, count = len(failed), len(sizes)
    if count == answers:
        return float(answers)
    if min(np.count_nonzero(errors), np.count_nonzero(errors < sizes)) < LEAST_CLUSTERS:
        return float(count)
    rate = errors.sum() / answers
    variance = count / (count - 1) * np.sum((errors - rate * sizes) ** 2) / answers**2
    effect = variance / (rate * (1 - rate) / answers)
    tail = 1 - (1 - level) / 2
    few = float(t.ppf(tail, answers - 1) / t.ppf(tail, count - 1)) ** 2
    return float(min(answers, answers / effect * few)) if effect > 0 else float(answers)
