"""ECE@K as the paper defines it: equal-width bins over the score, expected success falling from 1 to 0."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError

BINS = 10
Clamp = tuple[float | None, float | None]
BOTH_TAILS: Clamp = (1.0, 99.0)
"""Percentile clamp of the vMF and STUN heads."""
UPPER_TAIL: Clamp = (None, 99.0)
"""Percentile clamp of one-sided scores: L2, PA, SUE."""


class ReliabilityCurve(NamedTuple):
    """Observed against expected success in each bin, from the most certain to the least certain."""

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    observed: NDArray[np.float64]
    """Share of successes in each bin; NaN where a bin is empty."""
    expected: NDArray[np.float64]

    @property
    def error(self) -> float:
        """The expected calibration error: mean gap, weighted by the bins' counts."""
        filled = self.counts > 0
        gap = np.abs(self.observed - self.expected)[filled]
        return float((gap * self.counts[filled]).sum() / self.counts.sum())


def clamp_tails(uncertainty: NDArray[np.float64], clamp: Clamp) -> NDArray[np.float64]:
    """Pull the tails in to these percentiles; clamped scores stay in the end bins, so every query counts."""
    lower, upper = clamp
    low = -np.inf if lower is None else np.percentile(uncertainty, lower)
    high = np.inf if upper is None else np.percentile(uncertainty, upper)
    return np.clip(uncertainty, low, high)


def reliability_curve(
    uncertainty: NDArray[np.floating], success: NDArray[np.bool_], clamp: Clamp = BOTH_TAILS, bins: int = BINS
) -> ReliabilityCurve:
    """Bin queries (or pairs) by uncertainty and compare the success in each bin with what is expected of it.

    Bins have equal width; a score on an inner edge belongs to the bin on its right, the last bin is closed.
    A constant score says nothing, so all of it lies in the last, least certain bin.
    """
    scores = np.asarray(uncertainty, dtype=np.float64)
    if scores.shape != success.shape or scores.ndim != 1 or not len(scores):
        raise KappaPlaceError(
            f"Calibration needs one score and one outcome a query, got {scores.shape} and {success.shape}."
        )
    if not np.isfinite(scores).all():
        raise KappaPlaceError("Calibration needs finite scores, some are NaN or infinite; check the model.")
    if bins < 2:
        raise KappaPlaceError(f"Calibration needs at least two bins, got {bins}.")
    scores = clamp_tails(scores, clamp)
    edges = np.linspace(scores.min(), scores.max(), bins + 1)
    position = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, bins - 1)
    counts = np.bincount(position, minlength=bins)
    successes = np.bincount(position, weights=success, minlength=bins)
    observed = np.divide(successes, counts, out=np.full(bins, np.nan), where=counts > 0)
    return ReliabilityCurve(edges, counts, observed, np.linspace(1.0, 0.0, bins))


def expected_calibration_error(
    uncertainty: NDArray[np.floating], success: NDArray[np.bool_], clamp: Clamp = BOTH_TAILS, bins: int = BINS
) -> float:
    """ECE@K, where ``success`` says whether R@K holds for each query.

    >>> scores = np.linspace(0, 1, 100)
    >>> round(expected_calibration_error(scores, scores < 0.5, (None, None)), 3)
    0.222
    """
    return reliability_curve(uncertainty, success, clamp, bins).error
