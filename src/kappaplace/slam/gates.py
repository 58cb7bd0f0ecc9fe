"""Two checks of a proposed closure against odometry: support from recent proposals, and plausible positions.

Recent proposals support a closure if their matches move like the camera, as they do if a place is seen again.

Plausible positions: if the closure is correct, the estimated positions of both frames differ only by drift.
Drift is normal with a standard deviation of ``drift`` times the distance travelled between them. If it is
incorrect, the match can be anywhere in the map. The ratio of the two densities multiplies the odds of the
closure (Bayes' rule, because errors of images and odometry are independent):

    odds' = odds · ((1 − slip)·N₂(δ; 0, s²) + slip/area)·area,      s² = (drift·distance)² + spread²

Wheels slip and robots are carried: ``slip`` keeps every closure possible, at a price.

Headings count too, because two streets at the same junction may look alike. The density is multiplied by
exp(−½·(Δ/t)²), where Δ is the difference of the estimated headings and t² = (``TURN``·distance)² +
``TURN_SPREAD``². It is never raised, because the fraction of incorrect matches with a similar heading is
unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kappaplace.data import Poses, between, compose, pose_positions

FASTEST = 3.0
"""Without odometry: largest number of map frames that may pass per query frame."""
SLIP = 0.01
"""Probability that odometry is unusable between the two frames."""
TURN = 5e-4
"""Heading drift of odometry in radians per metre."""
TURN_SPREAD = 0.25
"""Heading difference in radians between two images of the same place."""
LEAST_AREA = 1000.0
"""Smallest area of a map in square metres."""


class Proposal(NamedTuple):
    """A frame and the earlier frame that it resembles."""

    query: int
    match: int


def support(
    proposal: Proposal,
    recent: Sequence[Proposal],
    odometry: Sequence[Poses] | None,
    poses: Poses,
    tolerance: float,
) -> int:
    """Count the recent proposals that agree with this one.

    With odometry, the motion since the other proposal, applied to its match, must end close to this match.
    Drift is negligible over a few frames, and scattered or mirrored matches do not fit. Without odometry,
    matches must advance in order, at most three times as fast as the queries.

    Args:
        proposal: The proposal to check.
        recent: Proposals before it.
        odometry: Raw poses of all frames; None if unknown.
        poses: Estimated poses of the map.
        tolerance: Largest distance from the match, in metres.

    Returns:
        The number of proposals in ``recent`` that agree.
    """
    if odometry is None:
        gaps = ((proposal.query - other.query, proposal.match - other.match) for other in recent)
        return sum(-1 <= passed <= FASTEST * driven + 1 for driven, passed in gaps)
    if not recent:
        return 0
    matches = np.array([other.match for other in recent])
    motion = between(np.stack([odometry[other.query] for other in recent]), odometry[proposal.query][None])
    expected = compose(poses[matches], motion)
    gap = np.linalg.norm(pose_positions(expected) - pose_positions(poses[proposal.match]), axis=-1)
    return int((gap <= tolerance).sum())


def likelihood_ratio(
    displacement: float,
    distance: float,
    area: float,
    *,
    drift: float,
    spread: float,
    turn: float = 0.0,
) -> float:
    """Return how much more likely a displacement is for a correct closure than for an incorrect one.

    Args:
        displacement: Distance of the estimated positions in metres.
        distance: Distance travelled between the frames in metres.
        area: Area of the map in square metres.
        drift: Odometry drift (standard deviation) as a fraction of the distance travelled.
        spread: Standard deviation in metres between two images of the same place.
        turn: Angle between the estimated headings in radians.

    Returns:
        The factor for the odds of the closure.

    >>> round(likelihood_ratio(0.0, 100.0, 10_000.0, drift=0.05, spread=5.0), 1)
    31.5
    >>> round(likelihood_ratio(500.0, 100.0, 10_000.0, drift=0.05, spread=5.0), 3)
    0.01
    >>> round(likelihood_ratio(0.0, 100.0, 10_000.0, drift=0.05, spread=5.0, turn=np.pi / 2), 3)
    0.01
    """
    variance = (drift * distance) ** 2 + spread**2
    density = np.exp(-0.5 * displacement**2 / variance) / (2 * np.pi * variance)
    alike = np.exp(-0.5 * turn**2 / ((TURN * distance) ** 2 + TURN_SPREAD**2))
    return float((1 - SLIP) * density * alike * area + SLIP)


def update(probability: float, ratio: float) -> float:
    """Multiply the odds of a probability by a ratio.

    >>> update(0.5, 9.0)
    0.9
    """
    up = probability * ratio
    return float(up / (up + (1 - probability))) if up > 0 else 0.0  # in this order, 1 − p loses no digits


def covered_area(poses: Poses) -> float:
    """Return the area in square metres of a uniform disc with the same variance as the positions."""
    ground = pose_positions(poses)[:, :2]
    return float(max(2 * np.pi * ground.var(axis=0).sum(), LEAST_AREA))
