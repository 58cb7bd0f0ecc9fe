"""Split labelled queries into two parts (score and thresholds), and keep one query per place."""

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
    """Rows for the score and its calibrator."""
    threshold: Rows
    """Rows for the thresholds; their outcomes are used for nothing else."""


def split_queries(
    queries: int, groups: NDArray[Any] | None = None, seed: int = 0, *, fit_share: float = 0.5
) -> Split:
    """Split queries at random.

    Args:
        queries: Number of queries.
        groups: Group of each query (a place, a route, a day). Groups are never split, so the fraction is
            approximate.
        seed: Random seed.
        fit_share: Fraction of the queries in the part ``fit``.

    Returns:
        Rows of the two parts.

    Raises:
        KappaPlaceError: If there are fewer than two queries or groups.

    >>> split_queries(4, seed=1)
    Split(fit=array([0, 1]), threshold=array([2, 3]))
    """
    if queries < 2:
        raise KappaPlaceError(f"A split needs at least two labelled queries, got {queries}. Label more.")
    share(fit_share, "fraction of queries to fit on")
    rng = np.random.default_rng(checked_seed(seed))
    if groups is None:
        fits = np.zeros(queries, dtype=bool)
        fits[rng.permutation(queries)[: min(max(round(fit_share * queries), 1), queries - 1)]] = True
    else:
        if np.shape(groups) != (queries,):
            raise KappaPlaceError(
                f"groups must have one value per query ({queries:,}), got shape {np.shape(groups)}."
            )
        _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        if len(sizes) < 2:
            raise KappaPlaceError("A split needs two groups, but all queries are in one. Label other places.")
        order = rng.permutation(len(sizes))
        middle = np.cumsum(sizes[order]) - sizes[order] / 2
        first = middle <= fit_share * queries
        first[0], first[-1] = True, False
        fits = np.isin(number, order[first])
    return Split(np.flatnonzero(fits), np.flatnonzero(~fits))


def thin_to_places(where: NDArray[Any], spacing: float) -> Rows:
    """Select rows of which no two are closer than ``spacing``; the first row of each place is selected.

    Neighboring frames of a route fail together, so a guarantee must not count them as independent.

    Args:
        where: Positions in metres (N×2), or frame numbers (N).
        spacing: Minimum distance in metres, or in frames.

    Returns:
        Rows, ascending.

    Raises:
        KappaPlaceError: If a shape or the spacing is not valid.

    >>> thin_to_places(np.array([0, 1, 2, 10, 11, 30]), 10)
    array([0, 3, 5])
    """
    points = finite(where, "positions or frame numbers")
    if points.ndim not in (1, 2) or (points.ndim == 2 and points.shape[1] != 2):
        raise KappaPlaceError(
            f"Thinning needs positions (N×2) or frame numbers (N), got shape {points.shape}."
        )
    if not 0 < spacing < np.inf:
        raise KappaPlaceError(f"The spacing between places must be above 0 and finite, got {spacing}.")
    points = points[:, None] if points.ndim == 1 else points
    selected = np.zeros(len(points), dtype=bool)
    covered = np.zeros(len(points), dtype=bool)
    if len(points):
        tree = cKDTree(points)
        for row in range(len(points)):
            if not covered[row]:
                selected[row] = True
                # Slightly less than the spacing: the ball includes its boundary.
                covered[tree.query_ball_point(points[row], np.nextafter(spacing, 0))] = True
    return np.flatnonzero(selected)
