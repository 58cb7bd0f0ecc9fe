"""ECE@K as the paper defines it: equal-width bins of the score, with expected success from 1 down to 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import checked_hits, outcomes, within
from kappaplace.errors import KappaPlaceError

BINS = 10
Clamp = tuple[float | None, float | None]
BOTH_TAILS: Clamp = (1.0, 99.0)
"""Percentile clamp of the vMF and STUN heads."""
UPPER_TAIL: Clamp = (None, 99.0)
"""Percentile clamp of one-sided scores: L2, PA, SUE."""
NO_CLAMP: Clamp = (None, None)
"""No clamp; together with ``zoom`` this is the protocol of STUN."""
ZOOM_PER_MILLE = 1
"""Zooming stops when the last bin contains more than this many of a thousand queries."""


class ReliabilityCurve(NamedTuple):
    """Observed and expected success in each bin, from the most certain to the least certain."""

    edges: NDArray[np.float64]
    """Edges of the bins, one more than bins."""
    counts: NDArray[np.int64]
    """Queries in each bin."""
    observed: NDArray[np.float64]
    """Fraction of correct queries in each bin; NaN for an empty bin."""
    expected: NDArray[np.float64]
    """Expected fraction of correct queries in each bin."""
    outside: int = 0
    """Queries above the top edge, which exist only after zooming. They count as queries but add no gap."""

    @property
    def error(self) -> float:
        """Expected calibration error: mean gap, weighted by the counts of the bins."""
        filled = self.counts > 0
        gap = np.abs(self.observed - self.expected)[filled]
        return float((gap * self.counts[filled]).sum() / (self.counts.sum() + self.outside))


def clamp_tails(uncertainty: NDArray[np.float64], clamp: Clamp) -> NDArray[np.float64]:
    """Clamp scores to percentiles; clamped scores stay in the end bins, so every query counts.

    If the upper percentile is not above the lower limit, because most scores are equal, the upper side stays
    open: otherwise the few larger scores would be lost.

    Args:
        uncertainty: Scores.
        clamp: Lower and upper percentile; None leaves a side open.

    Returns:
        The clamped scores.
    """
    return np.clip(uncertainty, *_limits(np.sort(uncertainty), clamp))


def reliability_curve(
    uncertainty: NDArray[np.floating],
    success: NDArray[np.bool_],
    clamp: Clamp = BOTH_TAILS,
    bins: int = BINS,
    zoom: bool = False,
) -> ReliabilityCurve:
    """Bin queries (or pairs) by uncertainty, and compare observed with expected success in each bin.

    Bins have equal width. A score on an inner edge belongs to the bin on its right; the last bin is closed.
    A constant score contains no information, so all queries are in the last, least certain bin.

    Zoom binning lowers the top edge along the grid until the last bin contains more than 0.1% of the queries.
    The bins are then spread below the new edge. Queries above it are excluded from the sum but count in N.
    The lowest top edge is the first inner edge of the grid, even if the last bin still contains too few
    queries.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.
        clamp: Lower and upper percentile that the scores are clamped to; None leaves a side open.
        bins: Number of bins.
        zoom: Use zoom binning.

    Returns:
        The bins with their observed and expected success.

    Raises:
        KappaPlaceError: If a score is not finite, the shapes differ or bins is below 2.
    """
    scores, outcome = outcomes(uncertainty, success)
    every, correct = np.sort(scores), np.sort(scores[outcome])
    limits = _limits(every, clamp)
    return _curve(np.clip(every, *limits), np.clip(correct, *limits), bins, zoom)


def expected_calibration_error(
    uncertainty: NDArray[np.floating],
    success: NDArray[np.bool_],
    clamp: Clamp = BOTH_TAILS,
    bins: int = BINS,
    zoom: bool = False,
) -> float:
    """Compute ECE@K, the error of `reliability_curve`.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether a positive is among the K best matches of each query, N booleans.
        clamp: Lower and upper percentile that the scores are clamped to; None leaves a side open.
        bins: Number of bins.
        zoom: Use zoom binning, see `reliability_curve`.

    Returns:
        The expected calibration error, in [0, 1].

    Raises:
        KappaPlaceError: If a score is not finite, or the shapes differ.

    >>> scores = np.linspace(0, 1, 100)
    >>> round(expected_calibration_error(scores, scores < 0.5, (None, None)), 3)
    0.222
    """
    return reliability_curve(uncertainty, success, clamp, bins, zoom).error


def match_pairs(
    uncertainty: NDArray[np.floating], hits: NDArray[np.bool_], k: int
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """Return the k·N pairs of the k best matches as two flat arrays, for any metric of scores.

    Args:
        uncertainty: Uncertainty of each match, N×K.
        hits: Whether each match is a positive, N×K booleans, best match first.
        k: Number of matches per query.

    Returns:
        Uncertainty and success of each pair.

    Raises:
        KappaPlaceError: If the shapes differ or k is out of range.
    """
    scores = np.asarray(uncertainty)
    if scores.shape != np.shape(hits):
        raise KappaPlaceError(
            f"Expected one score per match, got {scores.shape} for {np.shape(hits)} matches."
        )
    top = checked_hits(hits, k, "match-level calibration")
    return scores[:, :k].ravel(), top.ravel()


def match_calibration_error(
    uncertainty: NDArray[np.floating],
    hits: NDArray[np.bool_],
    k: int,
    clamp: Clamp = BOTH_TAILS,
    bins: int = BINS,
    zoom: bool = False,
) -> float:
    """Compute the match-level ECE@K: all k·N pairs together, where a pair is correct if it is a positive.

    Args:
        uncertainty: Uncertainty of each match, N×K.
        hits: Whether each match is a positive, N×K booleans, best match first.
        k: Number of matches per query.
        clamp: Lower and upper percentile that the scores are clamped to; None leaves a side open.
        bins: Number of bins.
        zoom: Use zoom binning, see `reliability_curve`.

    Returns:
        The expected calibration error, in [0, 1].

    Raises:
        KappaPlaceError: If the shapes differ, a score is not finite or k is out of range.

    >>> match_calibration_error(np.array([[0.0, 1.0]]), np.array([[True, False]]), 2)
    0.0
    """
    return expected_calibration_error(*match_pairs(uncertainty, hits, k), clamp, bins, zoom)


class EceSurface(NamedTuple):
    """ECE for several numbers of bins and clamps, because the definition of ECE leaves both open."""

    bins: NDArray[np.int64]
    """Numbers of bins."""
    clamp: NDArray[np.float64]
    """Percent clamped at each tail."""
    plain: NDArray[np.float64]
    """ECE without zoom, clamps × bins."""
    zoomed: NDArray[np.float64]
    """ECE with zoom, clamps × bins."""


def ece_surface(
    uncertainty: NDArray[np.floating],
    success: NDArray[np.bool_],
    one_sided: bool = False,
    bins: Sequence[int] = range(5, 31),
    clamp: Sequence[float] = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0),
) -> EceSurface:
    """Compute ECE@K for several numbers of bins and clamps, with and without zoom.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.
        one_sided: Clamp only the upper tail.
        bins: Numbers of bins.
        clamp: Percent of the scores to clamp at each tail.

    Returns:
        ECE for every combination.

    Raises:
        KappaPlaceError: If a score is not finite, or the shapes differ.

    >>> scores = np.linspace(0, 1, 100)
    >>> ece_surface(scores, scores < 0.5, bins=[5, 10], clamp=[0.0, 1.0]).plain.round(2)
    array([[0.1 , 0.22],
           [0.1 , 0.22]])
    """
    scores, outcome = outcomes(uncertainty, success)
    every, correct = np.sort(scores), np.sort(scores[outcome])  # sorted once for all cells
    values = np.empty((2, len(clamp), len(bins)))
    for i, percent in enumerate(clamp):
        limits = _limits(every, (None if one_sided else percent, 100.0 - percent))
        clamped, clamped_correct = np.clip(every, *limits), np.clip(correct, *limits)
        for j, count in enumerate(bins):
            values[0, i, j] = _curve(clamped, clamped_correct, count, zoom=False).error
            values[1, i, j] = _curve(clamped, clamped_correct, count, zoom=True).error
    return EceSurface(np.array(bins), np.array(clamp, dtype=np.float64), values[0], values[1])


def _limits(ordered: NDArray[np.float64], clamp: Clamp) -> tuple[float, float]:
    """Return the two percentiles of sorted scores; infinite for a side that is not clamped."""
    lower, upper = clamp
    low = -np.inf if lower is None else _percentile(ordered, lower)
    high = np.inf if upper is None else _percentile(ordered, upper)
    return low, high if high > max(low, ordered[0]) else np.inf


def _percentile(ordered: NDArray[np.float64], percent: float) -> float:
    """Compute a percentile of sorted scores, as ``np.percentile`` does but without sorting again."""
    position = (len(ordered) - 1) * percent / 100
    before = int(position)
    after = min(before + 1, len(ordered) - 1)
    return float(ordered[before] + (ordered[after] - ordered[before]) * (position - before))


def _curve(
    every: NDArray[np.float64], correct: NDArray[np.float64], bins: int, zoom: bool
) -> ReliabilityCurve:
    """Return the curve from the sorted scores of all queries, and of the correct queries."""
    within(bins, "bins", 2)
    edges = np.linspace(every[0], every[-1], bins + 1)
    if zoom:
        edges = _zoomed(every, edges)
    counts = np.diff(_below(every, edges))
    successes = np.diff(_below(correct, edges))
    observed = np.divide(successes, counts, out=np.full(bins, np.nan), where=counts > 0)
    outside = len(every) - int(counts.sum())
    return ReliabilityCurve(edges, counts, observed, np.linspace(1.0, 0.0, bins), outside)


def _below(scores: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Count the sorted scores below each edge, including those on the top edge: the last bin is closed."""
    below = np.searchsorted(scores, edges, side="left")
    below[-1] = np.searchsorted(scores, edges[-1], side="right")
    return below


def _zoomed(every: NDArray[np.float64], parent: NDArray[np.float64]) -> NDArray[np.float64]:
    for top in parent[:0:-1]:  # without the lowest edge: all bins would be a single point
        edges = np.linspace(parent[0], top, len(parent))
        before, end = _below(every, edges)[-2:]
        if (end - before) * 1000 > ZOOM_PER_MILLE * len(every):
            break
    return edges
