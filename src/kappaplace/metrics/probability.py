"""Metrics of calibrated probabilities: proper scores and calibration errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import checked_probabilities, within

BINS = 15
LEAST = 1e-12
"""Smallest distance of probabilities from 0 and 1 in the log-loss."""


class MassBins(NamedTuple):
    """Bins with (nearly) equal numbers of queries; bins that are empty because of ties are omitted."""

    counts: NDArray[np.int64]
    """Queries in each bin."""
    probability: NDArray[np.float64]
    """Mean probability in each bin."""
    observed: NDArray[np.float64]
    """Fraction of correct queries in each bin."""


def mass_bins(probability: NDArray[np.floating], success: NDArray[np.bool_], bins: int = BINS) -> MassBins:
    """Divide the queries, sorted by probability, into bins of equal size.

    Equal probabilities are in the same bin, which is the bin of their middle rank.

    Args:
        probability: Probability that each query is correct, N values in [0, 1].
        success: Whether each query is correct, N booleans.
        bins: Number of bins.

    Returns:
        The bins.

    Raises:
        KappaPlaceError: If a probability is not in [0, 1], or the shapes differ.

    >>> mass_bins(np.array([0.1, 0.2, 0.8, 0.9]), np.ones(4, bool), 2).probability.round(2)
    array([0.15, 0.85])
    """
    values, outcome = checked_probabilities(probability, success)
    within(bins, "bins", 1)
    _, group, ties = np.unique(values, return_inverse=True, return_counts=True)
    twice_the_middle = 2 * np.cumsum(ties) - ties  # integers, so that rounding has no effect
    position = (twice_the_middle * bins // (2 * len(values)))[group]
    counts = np.bincount(position, minlength=bins)
    filled = counts > 0
    counts = counts[filled]
    mean = np.bincount(position, values, minlength=bins)[filled] / counts
    observed = np.bincount(position, outcome, minlength=bins)[filled] / counts
    return MassBins(counts, mean, observed)


def equal_mass_ece(probability: NDArray[np.floating], success: NDArray[np.bool_], bins: int = BINS) -> float:
    """Compute the mean |observed − predicted| over bins of equal size.

    It is biased upwards, because sampling noise makes it positive.

    Args:
        probability: Probability that each query is correct, N values in [0, 1].
        success: Whether each query is correct, N booleans.
        bins: Number of bins.

    Returns:
        The expected calibration error, in [0, 1].

    Raises:
        KappaPlaceError: If a probability is not in [0, 1], or the shapes differ.

    >>> round(equal_mass_ece(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]), 2), 3)
    0.15
    """
    curve = mass_bins(probability, success, bins)
    return float(np.average(np.abs(curve.observed - curve.probability), weights=curve.counts))


def debiased_ece(probability: NDArray[np.floating], success: NDArray[np.bool_], bins: int = BINS) -> float:
    """Compute the root-mean-square calibration error over bins of equal size, corrected for sampling noise.

    The estimated variance of the bin's success rate, ȳ(1 − ȳ)/(n − 1), is subtracted from each squared gap
    (Kumar, Liang and Ma, "Verified Uncertainty Calibration", 2019). A negative result becomes 0. A bin with
    one query has no variance to subtract.

    Args:
        probability: Probability that each query is correct, N values in [0, 1].
        success: Whether each query is correct, N booleans.
        bins: Number of bins.

    Returns:
        The calibration error, in [0, 1].

    Raises:
        KappaPlaceError: If a probability is not in [0, 1], or the shapes differ.

    >>> debiased_ece(np.full(4, 0.5), np.array([True, True, False, False]))
    0.0
    """
    curve = mass_bins(probability, success, bins)
    noise = curve.observed * (1 - curve.observed) / np.maximum(curve.counts - 1, 1)
    square = np.average((curve.observed - curve.probability) ** 2 - noise, weights=curve.counts)
    return float(np.sqrt(max(0.0, square)))


class BrierParts(NamedTuple):
    """The Brier score and its parts: score = reliability − resolution + uncertainty + within."""

    score: float
    """The Brier score."""
    reliability: float
    """Mean squared difference of predicted and observed success over the bins; 0 is best."""
    resolution: float
    """Mean squared difference of the bins' success from the average; higher is better."""
    uncertainty: float
    """Variance of success: the score of the best constant probability."""
    within: float
    """Effect of different probabilities inside a bin; 0 if each bin contains one value."""


def brier(probability: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Compute the Brier score: the mean squared difference of probability and outcome.

    Args:
        probability: Probability that each query is correct, N values in [0, 1].
        success: Whether each query is correct, N booleans.

    Returns:
        The score, in [0, 1]; 0 is best.

    Raises:
        KappaPlaceError: If a probability is not in [0, 1], or the shapes differ.

    >>> brier(np.array([0.5, 1.0]), np.array([True, True]))
    0.125
    """
    values, outcome = checked_probabilities(probability, success)
    return float(np.square(values - outcome).mean())


def brier_parts(
    probability: NDArray[np.floating], success: NDArray[np.bool_], bins: int = BINS
) -> BrierParts:
    """Decompose the Brier score by Murphy's method, over bins of equal size.

    Args:
        probability: Probability that each query is correct, N values in [0, 1].
        success: Whether each query is correct, N booleans.
        bins: Number of bins.

    Returns:
        The score and its parts.

    Raises:
        KappaPlaceError: If a probability is not in [0, 1], or the shapes differ.

    >>> parts = brier_parts(np.array([0.2, 0.2, 0.8, 0.8]), np.array([False, False, True, False]), 2)
    >>> [round(part, 3) for part in parts]
    [0.19, 0.065, 0.062, 0.188, 0.0]
    """
    score = brier(probability, success)
    curve = mass_bins(probability, success, bins)
    base = float(np.average(curve.observed, weights=curve.counts))
    reliability = float(np.average((curve.probability - curve.observed) ** 2, weights=curve.counts))
    resolution = float(np.average((curve.observed - base) ** 2, weights=curve.counts))
    uncertainty = base * (1 - base)
    within = score - (reliability - resolution + uncertainty)
    return BrierParts(score, reliability, resolution, uncertainty, within)


def log_loss(probability: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Compute the mean of −log of the probability of the actual outcome, in nats.

    Probabilities are limited to [1e-12, 1 − 1e-12], so that one certain error costs 27.6 instead of infinity.

    Args:
        probability: Probability that each query is correct, N values in [0, 1].
        success: Whether each query is correct, N booleans.

    Returns:
        The log-loss; 0 is best.

    Raises:
        KappaPlaceError: If a probability is not in [0, 1], or the shapes differ.

    >>> round(log_loss(np.array([0.5, 0.5]), np.array([True, False])), 4)
    0.6931
    """
    values, outcome = checked_probabilities(probability, success)
    likelihood = np.where(outcome, values, 1 - values)
    return float(-np.log(np.clip(likelihood, LEAST, 1 - LEAST)).mean())
