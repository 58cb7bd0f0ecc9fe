"""Metrics of calibrated probabilities: proper scores, and calibration errors with bins or without."""

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


CELLS = 2048
"""Number of grid cells on [0, 1]."""
FINEST = 2.5 / CELLS
"""Narrowest kernel. At 2.5 cells, the grid represents a Gaussian to 4e-14."""
REACH = 20
"""Number of cells to each side on which this kernel is evaluated: 8 σ, where it falls below 1e-13."""


def smooth_ece(probability: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Compute the smooth ECE, a calibration error without bins (Błasiok and Nakkiran, "Smooth ECE", 2023).

    The residuals y − p are smoothed over p with a Gaussian of width σ that is reflected at 0 and 1. The
    absolute value of the result r(t) is then integrated over t. The integral decreases with σ. The smooth ECE
    is the σ that is equal to the integral.

    Args:
        probability: Probability that each query is correct, N values in [0, 1].
        success: Whether each query is correct, N booleans.

    Returns:
        The smooth ECE, in [0, 1]. Below 0.0012, the width of the narrowest kernel, it is the integral for
        this kernel.

    Raises:
        KappaPlaceError: If a probability is not in [0, 1], or the shapes differ.

    >>> round(smooth_ece(np.full(4, 0.5), np.array([True, True, True, False])), 6)
    0.25
    """
    from scipy.optimize import brentq

    values, outcome = checked_probabilities(probability, success)
    # The reflected Gaussian is the heat kernel of [0, 1], so smoothing multiplies the k-th cosine coefficient
    # of the residuals by exp(−(πkσ)²/2). Each σ needs two short Fourier transforms of these coefficients.
    coefficients = _cosine_coefficients(values, (outcome - values) / len(values))

    def excess(width: float) -> float:
        return _smoothed_error(coefficients, width) - width

    finest = excess(FINEST)
    if finest <= 0:
        return finest + FINEST
    # No error exceeds 1, so there is a root below any number above 1.
    return min(1.0, float(brentq(excess, FINEST, 1.5, xtol=1e-12)))


def _cosine_coefficients(at: NDArray[np.float64], mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ mass·cos(πk·at) for k = 0 … CELLS, damped by the narrowest kernel.

    The circle of circumference 2 represents [0, 1] and its mirror image; the real part of a transform on it
    is equivalent to reflection. Spreading with the kernel, instead of rounding to the grid, keeps it exact.
    """
    position = at * CELLS
    cell = np.rint(position).astype(np.int64)
    circle = np.zeros(2 * CELLS)
    width = FINEST * CELLS
    for offset in range(-REACH, REACH + 1):
        kernel = np.exp(-0.5 * ((cell + offset - position) / width) ** 2)
        circle += np.bincount((cell + offset) % (2 * CELLS), mass * kernel, minlength=2 * CELLS)
    return np.fft.rfft(circle).real / (width * np.sqrt(2 * np.pi))


def _smoothed_error(coefficients: NDArray[np.float64], width: float) -> float:
    """Return ∫|r(t)|dt for a kernel width.

    Between two sign changes, the integral is a difference of r's antiderivative R. If r changes sign within a
    cell, R at the crossing comes from the cubic through R and r at both ends of the cell.
    """
    k = np.arange(CELLS + 1)
    damped = coefficients * np.exp(-0.5 * (np.pi * k) ** 2 * (width**2 - FINEST**2))
    r = 2 * CELLS * np.fft.irfft(damped)[: CELLS + 1]
    waves = np.zeros(CELLS + 1, dtype=np.complex128)
    waves[1:] = -1j * damped[1:] / (np.pi * k[1:])
    area = damped[0] * k / CELLS + 2 * CELLS * np.fft.irfft(waves)[: CELLS + 1]
    total = float(np.abs(np.diff(area)).sum())
    crossing = np.flatnonzero(r[:-1] * r[1:] < 0)
    left, right = area[crossing], area[crossing + 1]
    slope_left, slope_right = r[crossing] / CELLS, r[crossing + 1] / CELLS
    x = slope_left / (slope_left - slope_right)
    middle = (
        left * (1 + 2 * x) * (1 - x) ** 2
        + slope_left * x * (1 - x) ** 2
        + right * x**2 * (3 - 2 * x)
        + slope_right * x**2 * (x - 1)
    )
    return total + float((np.abs(middle - left) + np.abs(right - middle) - np.abs(right - left)).sum())
