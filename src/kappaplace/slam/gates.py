"""Do the last proposals tell one story? A place that is really seen again moves with the camera.

What odometry has to say about a closure: is the place where the camera could be?

If the closure is right, the believed positions of both frames differ by drift alone, normal with a deviation
of ``drift`` times the way between them. If it is wrong, the match lies anywhere in the map. The ratio of
both densities multiplies the odds of the closure (Bayes' rule: images and odometry err independently of each
other):

    odds' = odds · ((1 − slip)·N₂(δ; 0, s²) + slip/area)·area,      s² = (drift·way)² + spread²

Wheels slip and are carried: ``slip`` keeps a closure possible whatever odometry believes, at a price.

Directions count as well: at one junction two streets may look alike, and a closure says "the same pose". The
density is lowered by exp(−½·(Δ/t)²) where the believed directions differ by Δ, t² = (``TURN``·way)² +
``TURN_SPREAD``². It is never raised: how often wrong matches look the same way is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kappaplace.data import Poses, between, compose, pose_positions

FASTEST = 3.0
"""Without odometry: how many frames of the map one frame of now may pass, as speeds differ."""


class Proposal(NamedTuple):
    """A frame and the earlier one it looks like."""

    query: int
    match: int


def support(
    now: Proposal,
    before: Sequence[Proposal],
    odometry: Sequence[Poses] | None,
    poses: Poses,
    tolerance: float,
) -> int:
    """How many of the proposals before agree with this one.

    With odometry: what was driven since then, put after the other match, must end within ``tolerance``
    metres of this match. ``odometry`` holds the raw poses of all frames, ``poses`` those believed of the
    map. Over a few frames drift is nothing, and a mirrored or scattered row of matches does not fit.

    Without: matches must go on in order, neither backwards nor more than three times as fast.
    """
    if odometry is None:
        gaps = ((now.query - old.query, now.match - old.match) for old in before)
        return sum(-1 <= passed <= FASTEST * driven + 1 for driven, passed in gaps)
    if not before:
        return 0
    matches = np.array([old.match for old in before])
    driven = between(np.stack([odometry[old.query] for old in before]), odometry[now.query][None])
    expected = compose(poses[matches], driven)
    gap = np.linalg.norm(pose_positions(expected) - pose_positions(poses[now.match]), axis=-1)
    return int((gap <= tolerance).sum())


SLIP = 0.01
TURN = 5e-4
"""Radians by which odometry turns away over a metre."""
TURN_SPREAD = 0.25
"""Radians between two images of one place."""
LEAST_AREA = 1000.0
"""Square metres that any map is taken to cover."""


def likelihood_ratio(
    displacement: float,
    way: float,
    area: float,
    *,
    drift: float,
    spread: float,
    turned: float = 0.0,
    slip: float = SLIP,
) -> float:
    """How much likelier this displacement (metres on the ground) is for a right closure than for a wrong one.

    ``turned`` is the angle between the believed directions.

    >>> round(likelihood_ratio(0.0, 100.0, 10_000.0, drift=0.05, spread=5.0), 1)
    31.5
    >>> round(likelihood_ratio(500.0, 100.0, 10_000.0, drift=0.05, spread=5.0), 3)
    0.01
    >>> round(likelihood_ratio(0.0, 100.0, 10_000.0, drift=0.05, spread=5.0, turned=np.pi / 2), 3)
    0.01
    """
    variance = (drift * way) ** 2 + spread**2
    density = np.exp(-0.5 * displacement**2 / variance) / (2 * np.pi * variance)
    alike = np.exp(-0.5 * turned**2 / ((TURN * way) ** 2 + TURN_SPREAD**2))
    return float((1 - slip) * density * alike * area + slip)


def updated(probability: float, ratio: float) -> float:
    """A probability after its odds were multiplied.

    >>> updated(0.5, 9.0)
    0.9
    """
    up = probability * ratio
    return float(up / (up + (1 - probability))) if up > 0 else 0.0  # in this order: 1 − p loses no digit


def covered_area(poses: Poses) -> float:
    """Square metres of the ground over which poses are spread: that of an even disc of the same variance."""
    ground = pose_positions(poses)[:, :2]
    return float(max(2 * np.pi * ground.var(axis=0).sum(), LEAST_AREA))
