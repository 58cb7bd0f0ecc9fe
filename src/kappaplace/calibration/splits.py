"""Which labelled queries fit the score and which set the threshold; one query a place on routes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from kappaplace.checks import Rows, checked_seed, finite, share
from kappaplace.errors import KappaPlaceError


class Split(NamedTuple):
    """Rows of two disjoint parts, ascending."""

    fit: Rows
    """For the score and its calibrator."""
    threshold: Rows
    """For the thresholds; nothing else may have seen their outcomes."""


def split_queries(
    queries: int, groups: NDArray[Any] | None = None, seed: int = 0, *, fit_share: float = 0.5
) -> Split:
    """Split at random; ``groups`` (a place, a route, a day) stay whole, so the shares then hold roughly.

    >>> split_queries(4, seed=1)
    Split(fit=array([0, 1]), threshold=array([2, 3]))
    """
    if queries < 2:
        raise KappaPlaceError(f"A split needs at least two labelled queries, got {queries}.")
    share(fit_share, "share of queries to fit on")
    rng = np.random.default_rng(checked_seed(seed))
    if groups is None:
        chosen = np.zeros(queries, dtype=bool)
        chosen[rng.permutation(queries)[: min(max(round(fit_share * queries), 1), queries - 1)]] = True
    else:
        if np.shape(groups) != (queries,):
            raise KappaPlaceError(
                f"Groups name the group of each of {queries:,} queries, got the shape {np.shape(groups)}."
            )
        _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        if len(sizes) < 2:
            raise KappaPlaceError("All labelled queries are of one group; a split needs at least two groups.")
        order = rng.permutation(len(sizes))
        before = np.cumsum(sizes[order]) - sizes[order] / 2  # a group goes where its middle falls
        fits = before <= fit_share * queries
        fits[0], fits[-1] = True, False
        chosen = np.isin(number, order[fits])
    return Split(np.flatnonzero(chosen), np.flatnonzero(~chosen))


def thin_to_places(where: NDArray[Any], spacing: float) -> Rows:
    """Rows, ascending, no two of them closer than ``spacing``; of frames at one place the first is kept.

    ``where`` holds positions in metres (N×2) or frame numbers (N) with the spacing in frames. Neighbouring
    frames of a route fail together; a guarantee that counts them one by one would claim too much.

    >>> thin_to_places(np.array([0, 1, 2, 10, 11, 30]), 10)
    array([0, 3, 5])
    """
    points = finite(where, "positions or frame numbers")
    if points.ndim not in (1, 2) or (points.ndim == 2 and points.shape[1] != 2):
        raise KappaPlaceError(
            f"Thinning needs positions N×2 or frame numbers N, got the shape {points.shape}."
        )
    if not 0 < spacing < np.inf:
        raise KappaPlaceError(f"The spacing between places must be above 0 and finite, got {spacing}.")
    points = points[:, None] if points.ndim == 1 else points
    kept = np.zeros(len(points), dtype=bool)
    covered = np.zeros(len(points), dtype=bool)
    if len(points):
        tree = cKDTree(points)
        for row in range(len(points)):
            if not covered[row]:
                kept[row] = True
                # "Closer than": a hair less than the spacing, for the ball holds its own rim.
                covered[tree.query_ball_point(points[row], np.nextafter(spacing, 0))] = True
    return np.flatnonzero(kept)
