"""Confidence intervals of a fraction, for independent answers and for answers that fail together.

For independent answers, the Clopper–Pearson interval is exact. Frames of a drive are not independent: twenty
failures in one tunnel are one observation. Answers are then grouped into clusters (drives, or blocks of
frames). The number of answers is divided by the design effect: the variance between clusters relative to that
of independent answers (Korn and Graubard 1998). With too few different clusters for an estimate, each cluster
counts as one answer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv
from scipy.stats import t

from kappaplace.checks import Bools, Floats, booleans, share, within
from kappaplace.metrics.bootstrap import Interval

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
