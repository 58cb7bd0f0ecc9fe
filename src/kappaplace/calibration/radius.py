"""A radius around an estimated position: "within r metres with 95%", or unknown.

The error of place recognition has two modes. A correct or nearly correct match is some metres off, the others
are anywhere on the map, so no single radius describes both. Therefore:

1. On one half of the queries, a logistic curve estimates the probability that an answer of this uncertainty
   is near (at most ``limit`` metres off). If it is far off more than half as often as the level allows, its
   error is unknown: a radius of both modes would be that of the map.
2. The other answers are divided into at most four groups of similar difficulty. The radius of a group is the
   conformal quantile of the errors of the other half of the queries: the ⌈(n + 1)·level⌉-th smallest of n.

New queries of the same kind lie within the radius of their group with at least this probability, on average
over calibrations. The covariance describes the near mode, and ``far`` is the probability of the other one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.calibration.calibrators import LEAST_QUERIES, Calibrator, fit_calibrator
from kappaplace.checks import Bools, Floats, share
from kappaplace.errors import KappaPlaceError

RadiusSource = Literal["labels", "map"]
Variance: TypeAlias = "tuple[float, float, float]"
LEVEL = 0.95
"""Default probability of a radius."""
LIMIT = 4.0
"""Largest radius in radii of a place. Farther answers are on another street, and count as far off."""
GROUPS, EACH = 4, 40
"""Largest number of groups of similar difficulty, and queries per group."""
ANY_HEADING = math.pi**2 / 3
"""Variance of an unknown heading, in radians²."""


class RadiusEstimate(NamedTuple):
    """Errors to expect of some answers."""

    radius: Floats
    """Metres, N; NaN if unknown."""
    far: Floats
    """Probability that the answer is far off, N."""
    covariance: Floats
    """Covariance of east, north (metres) and heading (radians, clockwise) of the near mode, N×3×3."""


@dataclass(frozen=True)
class RadiusModel:
    """Errors of positions by the uncertainty of their answers; see `fit_radius`."""

    level: float
    """Probability of the radii."""
    limit: float
    """Errors above this many metres are far off."""
    source: str
    """What it was fitted on: "labels", or "map" (images of the map itself, which guarantees nothing)."""
    near: Calibrator
    """Probability that an answer is at most ``limit`` metres off."""
    until: tuple[float, ...]
    """Largest uncertainty of each group, ascending. Answers above the last one have no radius."""
    radii: tuple[float | None, ...]
    """Radius of each group in metres; None if unknown."""
    variances: tuple[Variance, ...]
    """Mean squares of the near errors of each group and of the remaining answers: forward and sideways in the
    direction of view of the best match (metres²), and of the heading (radians²)."""

    def group(self, uncertainty: ArrayLike) -> NDArray[np.int64]:
        """Return the group of each answer, N; the number of groups for answers above the last one."""
        return np.searchsorted(np.asarray(self.until, float), np.asarray(uncertainty, float))

    def estimate(self, uncertainty: ArrayLike, heading: ArrayLike) -> RadiusEstimate:
        """Return the errors to expect.

        Args:
            uncertainty: Calibrated uncertainty of each answer, N.
            heading: Heading of each best match in degrees clockwise from north, N; NaN if unknown.

        Returns:
            Radius, probability of a far error and covariance of the near errors.
        """
        group = self.group(uncertainty)
        radii = np.array([math.nan if radius is None else radius for radius in (*self.radii, None)], float)
        variances = np.array(self.variances, float)[group]
        far = 1 - self.near.probability(np.asarray(uncertainty, float))
        return RadiusEstimate(radii[group], far, _turned(variances, np.asarray(heading, float)))


def _turned(variances: Floats, heading: Floats) -> Floats:
    """Return covariances in the directions east and north from variances forward and sideways."""
    turn = np.radians(heading)
    known = np.isfinite(turn)
    mean = variances[:, :2].mean(axis=1)
    forward, side = (np.where(known, variances[:, i], mean) for i in (0, 1))
    turn = np.where(known, turn, 0.0)
    sin, cos = np.sin(turn), np.cos(turn)
    covariance = np.zeros((len(variances), 3, 3))
    covariance[:, 0, 0] = forward * sin**2 + side * cos**2
    covariance[:, 1, 1] = forward * cos**2 + side * sin**2
    covariance[:, 0, 1] = covariance[:, 1, 0] = (forward - side) * sin * cos
    covariance[:, 2, 2] = variances[:, 2]
    return covariance


def position_errors(estimated: ArrayLike, true: ArrayLike) -> Floats:
    """Return how far estimated poses are from the true ones.

    Args:
        estimated: Poses x, y, heading (degrees clockwise from north), N×3.
        true: True poses, N×3. Headings may be NaN.

    Returns:
        Error forward and sideways in the estimated direction of view (along y and x if that is unknown), in
        metres, and of the heading, in degrees, N×3. NaN if a value is unknown.

    >>> position_errors([[0.0, 0.0, 90.0]], [[3.0, 1.0, 80.0]]).round(6).tolist()
    [[3.0, -1.0, -10.0]]
    """
    first, second = np.asarray(estimated, float), np.asarray(true, float)
    east, north = (second[:, :2] - first[:, :2]).T
    turn = np.radians(np.where(np.isfinite(first[:, 2]), first[:, 2], 0.0))
    forward = east * np.sin(turn) + north * np.cos(turn)
    side = east * np.cos(turn) - north * np.sin(turn)
    return np.column_stack([forward, side, (second[:, 2] - first[:, 2] + 180.0) % 360.0 - 180.0])


def distances(errors: ArrayLike) -> Floats:
    """Return the distances in metres of `position_errors`, N."""
    values = np.asarray(errors, float)
    return np.hypot(values[:, 0], values[:, 1])


def conformal_radius(distance: ArrayLike, level: float) -> float:
    """Return the radius that contains a new error with at least this probability.

    Args:
        distance: Errors of calibration queries in metres, N.
        level: Probability.

    Returns:
        The ⌈(N + 1)·level⌉-th smallest error; infinity if there are too few.

    >>> conformal_radius(range(1, 20), 0.95), conformal_radius(range(1, 19), 0.95)
    (19.0, inf)
    """
    values = np.sort(np.asarray(distance, float))
    rank = math.ceil(round((len(values) + 1) * level, 9))
    return float(values[rank - 1]) if rank <= len(values) else math.inf


def fit_radius(
    uncertainty: tuple[Floats, Floats],
    errors: tuple[Floats, Floats],
    limit: float,
    level: float = LEVEL,
    source: RadiusSource = "labels",
) -> RadiusModel | None:
    """Fit the radii of answers on two independent halves of the queries.

    Args:
        uncertainty: Calibrated uncertainty of the queries of each half.
        errors: Errors of each half, N×3 as `position_errors` returns them.
        limit: Errors above this many metres are far off.
        level: Probability of the radii.
        source: What the queries are: "labels", or "map" for images of the map itself.

    Returns:
        The radii; None if there are too few queries to estimate how often answers are near.

    Raises:
        KappaPlaceError: If the level or the limit is out of range.
    """
    share(level, "level of the radius")
    if not 0 < limit < math.inf:
        raise KappaPlaceError(f"The limit of a radius must be above 0 and finite, got {limit}.")
    distance = [distances(each) for each in errors]
    is_near = [each <= limit for each in distance]
    if len(is_near[0]) < LEAST_QUERIES or not len(is_near[1]) or not np.ptp(uncertainty[0]):
        return None
    near = _near_curve(uncertainty[0], is_near[0])
    first = np.sort(uncertainty[0])
    probable = first[near.probability(first) >= (1 + level) / 2]
    count = 0 if not len(probable) else int((uncertainty[1] <= probable[-1]).sum())
    groups = min(max(count // EACH, 1), GROUPS)
    until = np.unique(np.quantile(probable, np.arange(1, groups + 1) / groups)) if count else np.zeros(0)
    which = np.searchsorted(until, uncertainty[1])
    radii = [conformal_radius(distance[1][which == group], level) for group in range(len(until))]
    every, of = np.concatenate(errors), np.concatenate([np.searchsorted(until, u) for u in uncertainty])
    mode = np.concatenate(is_near)
    variances = [_variance(every[mode & (of == group)], every[mode]) for group in range(len(until) + 1)]
    return RadiusModel(
        level,
        limit,
        source,
        near,
        tuple(until.tolist()),
        tuple(radius if radius <= limit else None for radius in radii),
        tuple(variances),
    )


def _near_curve(uncertainty: Floats, near: Bools) -> Calibrator:
    """Return the probability that an answer is near, by its uncertainty."""
    if near.all() or not near.any():  # two imaginary queries keep the curve finite
        uncertainty = np.concatenate([uncertainty, [uncertainty.min(), uncertainty.max()]])
        near = np.concatenate([near, [True, False]])
    return fit_calibrator("logistic", uncertainty, near)


def _variance(own: Floats, every: Floats) -> Variance:
    """Return the mean squares of errors; of all near errors if the group has too few."""
    errors = own if len(own) >= LEAST_QUERIES else every
    if not len(errors):
        return (0.0, 0.0, ANY_HEADING)
    forward, side = (errors[:, :2] ** 2).mean(axis=0).tolist()
    turn = np.radians(errors[np.isfinite(errors[:, 2]), 2])
    if not len(turn):  # without headings, "forward" is only a name
        forward = side = (forward + side) / 2
    return (forward, side, float((turn**2).mean()) if len(turn) else ANY_HEADING)
