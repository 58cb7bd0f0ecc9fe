"""Is a probability worth its name? Proper scores and calibration of numbers in [0, 1]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import checked_probabilities
from kappaplace.errors import KappaPlaceError

BINS = 15
LEAST = 1e-12
"""Probabilities are kept this far from 0 and 1 in the log-loss."""


class MassBins(NamedTuple):
    """Bins of (nearly) as many queries each; those that ties leave empty are left out."""

    counts: NDArray[np.int64]
    probability: NDArray[np.float64]
    """Mean probability in each bin."""
    observed: NDArray[np.float64]
    """Share of successes in each bin."""


def mass_bins(probability: NDArray[np.floating], success: NDArray[np.bool_], bins: int = BINS) -> MassBins:
    """Cut the queries, sorted by probability, into equally full bins.

    Equal probabilities share a bin, whatever their order: the one that holds the middle of their ranks.

    >>> mass_bins(np.array([0.1, 0.2, 0.8, 0.9]), np.ones(4, bool), 2).probability.round(2)
    array([0.15, 0.85])
    """
    values, outcome = checked_probabilities(probability, success)
    if bins < 1:
        raise KappaPlaceError(f"Equal-mass calibration needs at least one bin, got {bins}.")
    _, group, ties = np.unique(values, return_inverse=True, return_counts=True)
    twice_the_middle = 2 * np.cumsum(ties) - ties  # whole numbers, so no rounding decides
    position = (twice_the_middle * bins // (2 * len(values)))[group]
    counts = np.bincount(position, minlength=bins)
    filled = counts > 0
    counts = counts[filled]
    mean = np.bincount(position, values, minlength=bins)[filled] / counts
    observed = np.bincount(position, outcome, minlength=bins)[filled] / counts
    return MassBins(counts, mean, observed)


def equal_mass_ece(probability: NDArray[np.floating], success: NDArray[np.bool_], bins: int = BINS) -> float:
    """Mean |observed − predicted| over equally full bins. Biased upwards: noise alone makes it positive.

    >>> round(equal_mass_ece(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]), 2), 3)
    0.15
    """
    curve = mass_bins(probability, success, bins)
    return float(np.average(np.abs(curve.observed - curve.probability), weights=curve.counts))


def debiased_ece(probability: NDArray[np.floating], success: NDArray[np.bool_], bins: int = BINS) -> float:
    """Root-mean-square calibration error over equally full bins, less what sampling noise adds to it.

    From each squared gap the estimated variance of the bin's success rate, ȳ(1 − ȳ)/(n − 1), is taken off
    (Kumar, Liang and Ma, "Verified Uncertainty Calibration", 2019); below zero the result is 0. A bin of one
    query has no variance to take off.

    >>> debiased_ece(np.full(4, 0.5), np.array([True, True, False, False]))
    0.0
    """
    curve = mass_bins(probability, success, bins)
    noise = curve.observed * (1 - curve.observed) / np.maximum(curve.counts - 1, 1)
    square = np.average((curve.observed - curve.probability) ** 2 - noise, weights=curve.counts)
    return float(np.sqrt(max(0.0, square)))


class BrierParts(NamedTuple):
    """The Brier score and what it is made of: score = reliability − resolution + uncertainty + within."""

    score: float
    reliability: float
    """Mean squared gap of predicted and observed success over the bins; 0 is best."""
    resolution: float
    """How far the bins' success differs from the average; more is better."""
    uncertainty: float
    """Variance of success itself: what a constant, right probability scores."""
    within: float
    """What the bins cannot see: differences of probability inside a bin; 0 where each bin holds one value."""


def brier(probability: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Mean squared difference of probability and outcome.

    >>> brier(np.array([0.5, 1.0]), np.array([True, True]))
    0.125
    """
    values, outcome = checked_probabilities(probability, success)
    return float(np.square(values - outcome).mean())


def brier_parts(
    probability: NDArray[np.floating], success: NDArray[np.bool_], bins: int = BINS
) -> BrierParts:
    """Murphy's decomposition over equally full bins.

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
    """Mean of −log of the probability given to what happened, in nats.

    Probabilities are kept 1e-12 from 0 and 1, so that one certain error costs 27.6 and not everything.

    >>> round(log_loss(np.array([0.5, 0.5]), np.array([True, False])), 4)
    0.6931
    """
    values, outcome = checked_probabilities(probability, success)
    given = np.where(outcome, values, 1 - values)
    return float(-np.log(np.clip(given, LEAST, 1 - LEAST)).mean())
