"""Options of a calibration, and the selection of labelled queries: two parts, one query per place.

The command line reads the options, so this module imports nothing that loads slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from kappaplace.checks import Rows, check_compared, checked_seed, finite, share
from kappaplace.errors import KappaPlaceError
from kappaplace.records import Help, Setting

REJECT_RISK = 0.2
OUTSIDE_RATE = 0.1
"""Default fraction of out-of-map queries, if these are labelled queries whose place was removed."""
RERANK = 10
"""Default number of matches to re-rank by patch matching, if the model and the images allow it."""


@dataclass(frozen=True)
class CalibrateOptions:
    """Options of a calibration: the fit and the guarantee.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    max_risk: Annotated[float | None, Help("Maximum error rate among accepted answers.")] = 0.05
    """None if no decisions are needed; then every query is used to fit the score."""
    confidence: Annotated[float, Help("Confidence level of the risk guarantee.")] = 0.95
    outside_rate: Annotated[
        float | None,
        Help(
            "Expected fraction of out-of-map queries. Default: the fraction among the labelled queries, "
            "or 0.1."
        ),
    ] = None
    rerank: Annotated[
        int | None,
        Help(
            "Number of top matches to re-rank by patch matching, now and whenever the map is queried (0 "
            "for none). Default: the number used for the labels, or 10 if the model allows it.",
            ("--rerank", "--verify"),
        ),
    ] = None
    thin: Annotated[bool, Help("Use only one labelled query per place.")] = True
    """Neighbouring queries fail together, but the guarantee assumes independent ones."""
    keep_twins: Annotated[
        bool, Help("Also use labelled queries that are near-copies of map images (easier than real queries).")
    ] = False
    groups: Annotated[
        str,
        Help(
            "Guarantee the risk in each group of queries separately: `kappa` for three ranges of κ, or a "
            "column of the labels, such as condition."
        ),
    ] = ""
    seed: Annotated[int, Setting("random seed for the data split and the image degradation.")] = 0
    calibrator: str = "best"
    """A name of `CALIBRATORS`, or "best"."""
    reject_risk: float | None = REJECT_RISK
    """Maximum fraction of correct answers among the rejected. None to reject nothing."""
    method: str = "multi-start"
    """Method to test thresholds, see `control_risk`."""
    fit_share: float = 0.5
    """Fraction of the queries that the score is fitted on; the thresholds are set on the others."""

    radius_level: Annotated[
        float, Setting("probability that the true position is within the radius of an answer.")
    ] = 0.95

    def __post_init__(self) -> None:
        if self.max_risk is not None:
            share(self.max_risk, "risk")
        share(self.confidence, "confidence")
        share(self.radius_level, "level of the radius")
        if self.outside_rate is not None:
            share(self.outside_rate, "expected fraction of out-of-map queries", ends=True)
        checked_seed(self.seed)
        check_compared(self.rerank or 0)


class Split(NamedTuple):
    """Rows of two disjoint parts, ascending."""

    fit: Rows
    """Rows for the score and its calibrator."""
    threshold: Rows
    """Rows for the thresholds, which are used for nothing else."""


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


def thin_to_places(points: NDArray[Any], spacing: float) -> Rows:
    """Select rows that are at least ``spacing`` apart, starting with the first row.

    Neighboring frames of a route fail together, so a guarantee must not count them as independent.

    Args:
        points: Positions in metres (N×2), or frame numbers (N).
        spacing: Minimum distance in metres, or in frames.

    Returns:
        Rows, ascending.

    Raises:
        KappaPlaceError: If a shape or the spacing is not valid.

    >>> thin_to_places(np.array([0, 1, 2, 10, 11, 30]), 10)
    array([0, 3, 5])
    """
    places = finite(points, "positions or frame numbers")
    if places.ndim not in (1, 2) or (places.ndim == 2 and places.shape[1] != 2):
        raise KappaPlaceError(
            f"Thinning needs positions (N×2) or frame numbers (N), got shape {places.shape}. Pass one "
            f"of them."
        )
    if not 0 < spacing < np.inf:
        raise KappaPlaceError(f"The spacing between places must be above 0 and finite, got {spacing}.")
    places = places[:, None] if places.ndim == 1 else places
    selected = np.zeros(len(places), dtype=bool)
    covered = np.zeros(len(places), dtype=bool)
    if len(places):
        tree = cKDTree(places)
        for row in range(len(places)):
            if not covered[row]:
                selected[row] = True
                # Slightly less than the spacing, because the ball includes its boundary.
                covered[tree.query_ball_point(places[row], np.nextafter(spacing, 0))] = True
    return np.flatnonzero(selected)
