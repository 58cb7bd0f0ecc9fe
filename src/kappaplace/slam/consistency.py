"""Do the last proposals tell one story? A place that is really seen again moves with the camera."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kappaplace.slam.poses import Poses, between, compose, positions

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
    gap = np.linalg.norm(positions(expected) - positions(poses[now.match]), axis=-1)
    return int((gap <= tolerance).sum())
