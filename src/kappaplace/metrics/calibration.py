"""ECE@K as the paper defines it: equal-width bins over the score, expected success falling from 1 to 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import checked_hits, outcomes
from kappaplace.errors import KappaPlaceError

BINS = 10
Clamp = tuple[float | None, float | None]
BOTH_TAILS: Clamp = (1.0, 99.0)
"""Percentile clamp of the vMF and STUN heads."""
UPPER_TAIL: Clamp = (None, 99.0)
"""Percentile clamp of one-sided scores: L2, PA, SUE."""
NO_CLAMP: Clamp = (None, None)
"""With ``zoom``: the protocol of STUN."""
ZOOM_PER_MILLE = 1
"""Zooming stops once the last bin holds more than this many of a thousand queries."""


class ReliabilityCurve(NamedTuple):
    """Observed against expected success in each bin, from the most certain to the least certain."""

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    observed: NDArray[np.float64]
    """Share of successes in each bin; NaN where a bin is empty."""
    expected: NDArray[np.float64]
    outside: int = 0
    """Queries above the top edge: only zooming leaves any. They add no gap, but count among all queries."""

    @property
    def error(self) -> float:
        """The expected calibration error: mean gap, weighted by the bins' counts."""
        filled = self.counts > 0
        gap = np.abs(self.observed - self.expected)[filled]
        return float((gap * self.counts[filled]).sum() / (self.counts.sum() + self.outside))


def clamp_tails(uncertainty: NDArray[np.float64], clamp: Clamp) -> NDArray[np.float64]:
    """Pull the tails in to these percentiles; clamped scores stay in the end bins, so every query counts."""
    return np.clip(uncertainty, *_limits(np.sort(uncertainty), clamp))


def reliability_curve(
    uncertainty: NDArray[np.floating],
    success: NDArray[np.bool_],
    clamp: Clamp = BOTH_TAILS,
    bins: int = BINS,
    zoom: bool = False,
) -> ReliabilityCurve:
    """Bin queries (or pairs) by uncertainty and compare the success in each bin with what is expected of it.

    Bins have equal width; a score on an inner edge belongs to the bin on its right, the last bin is closed.
    A constant score says nothing, so all of it lies in the last, least certain bin.

    Zoom binning lowers the top edge along the grid until the last bin holds more than 0.1 % of the queries,
    and spreads the bins anew below it; what lies above falls out of the sum, but not out of N. Where no edge
    of the grid does it, the grid stays as it is; a crowd on the lowest score may leave nothing but it.
    """
    scores, outcome = outcomes(uncertainty, success)
    every, right = np.sort(scores), np.sort(scores[outcome])
    limits = _limits(every, clamp)
    return _curve(np.clip(every, *limits), np.clip(right, *limits), bins, zoom)


def expected_calibration_error(
    uncertainty: NDArray[np.floating],
    success: NDArray[np.bool_],
    clamp: Clamp = BOTH_TAILS,
    bins: int = BINS,
    zoom: bool = False,
) -> float:
    """ECE@K, where ``success`` says whether R@K holds for each query.

    >>> scores = np.linspace(0, 1, 100)
    >>> round(expected_calibration_error(scores, scores < 0.5, (None, None)), 3)
    0.222
    """
    return reliability_curve(uncertainty, success, clamp, bins, zoom).error


def match_pairs(
    uncertainty: NDArray[np.floating], hits: NDArray[np.bool_], k: int
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """The k·N pairs of the k best matches as two flat arrays; any metric of scores takes them.

    Both inputs are N×K: the uncertainty of each match, and whether it is a positive.
    """
    scores = np.asarray(uncertainty)
    if scores.shape != np.shape(hits):
        raise KappaPlaceError(
            f"Match-level metrics need one score per match, got shapes {scores.shape} and {np.shape(hits)}."
        )
    top = checked_hits(hits, k, f"Match level at K = {k}")
    return scores[:, :k].ravel(), top.ravel()


def match_calibration_error(
    uncertainty: NDArray[np.floating],
    hits: NDArray[np.bool_],
    k: int,
    clamp: Clamp = BOTH_TAILS,
    bins: int = BINS,
    zoom: bool = False,
) -> float:
    """Match-level ECE@K: the K·N pairs are pooled, success of a pair is being a positive.

    >>> match_calibration_error(np.array([[0.0, 1.0]]), np.array([[True, False]]), 2)
    0.0
    """
    return expected_calibration_error(*match_pairs(uncertainty, hits, k), clamp, bins, zoom)


class EceSurface(NamedTuple):
    """ECE for every choice that its definition leaves open."""

    bins: NDArray[np.int64]
    clamp: NDArray[np.float64]
    """Percent cut from each clamped tail."""
    plain: NDArray[np.float64]
    """clamps × bins, without zoom."""
    zoomed: NDArray[np.float64]
    """clamps × bins, with zoom."""


def ece_surface(
    uncertainty: NDArray[np.floating],
    success: NDArray[np.bool_],
    one_sided: bool = False,
    bins: Sequence[int] = range(5, 31),
    clamp: Sequence[float] = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0),
) -> EceSurface:
    """How ECE@K moves with the number of bins, the clamp in percent of each tail, and zoom.

    ``one_sided`` clamps the upper tail only.

    >>> scores = np.linspace(0, 1, 100)
    >>> ece_surface(scores, scores < 0.5, bins=[5, 10], clamp=[0.0, 1.0]).plain.round(2)
    array([[0.1 , 0.22],
           [0.1 , 0.22]])
    """
    scores, outcome = outcomes(uncertainty, success)
    every, right = np.sort(scores), np.sort(scores[outcome])  # sorted once for all cells
    values = np.empty((2, len(clamp), len(bins)))
    for i, percent in enumerate(clamp):
        limits = _limits(every, (None if one_sided else percent, 100.0 - percent))
        clamped, clamped_right = np.clip(every, *limits), np.clip(right, *limits)
        for j, count in enumerate(bins):
            values[0, i, j] = _curve(clamped, clamped_right, count, zoom=False).error
            values[1, i, j] = _curve(clamped, clamped_right, count, zoom=True).error
    return EceSurface(np.array(bins), np.array(clamp, dtype=np.float64), values[0], values[1])


def _limits(ordered: NDArray[np.float64], clamp: Clamp) -> tuple[float, float]:
    """The two percentiles of sorted scores; infinite on a side that is not clamped."""
    lower, upper = clamp
    low = -np.inf if lower is None else _percentile(ordered, lower)
    high = np.inf if upper is None else _percentile(ordered, upper)
    return low, high


def _percentile(ordered: NDArray[np.float64], percent: float) -> float:
    """As ``np.percentile``, which would search what is sorted already."""
    position = (len(ordered) - 1) * percent / 100
    before = int(position)
    after = min(before + 1, len(ordered) - 1)
    return float(ordered[before] + (ordered[after] - ordered[before]) * (position - before))


def _curve(every: NDArray[np.float64], right: NDArray[np.float64], bins: int, zoom: bool) -> ReliabilityCurve:
    """The curve from the sorted scores of all queries and the sorted scores of the right ones."""
    if bins < 2:
        raise KappaPlaceError(f"Calibration needs at least two bins, got {bins}.")
    edges = np.linspace(every[0], every[-1], bins + 1)
    if zoom:
        edges = _zoomed(every, edges)
    counts = np.diff(_below(every, edges))
    successes = np.diff(_below(right, edges))
    observed = np.divide(successes, counts, out=np.full(bins, np.nan), where=counts > 0)
    outside = len(every) - int(counts.sum())
    return ReliabilityCurve(edges, counts, observed, np.linspace(1.0, 0.0, bins), outside)


def _below(scores: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many of the sorted scores lie below each edge, or on the top one: the last bin is closed."""
    below = np.searchsorted(scores, edges, side="left")
    below[-1] = np.searchsorted(scores, edges[-1], side="right")
    return below


def _zoomed(every: NDArray[np.float64], parent: NDArray[np.float64]) -> NDArray[np.float64]:
    for top in parent[::-1]:
        edges = np.linspace(parent[0], top, len(parent))
        before, end = _below(every, edges)[-2:]
        if (end - before) * 1000 > ZOOM_PER_MILLE * len(every):
            return edges
    return parent
