"""Arithmetic of rigid motions as plain arrays: SE(2) as x, y, yaw and SE(3) as x, y, z, qx, qy, qz, qw.

The last axis tells which of both it is: 3 or 7 numbers, metres and radians, quaternions in the order of TUM
files. A pose is where a body stands in the world, and turns its coordinates into the world's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from kappaplace.errors import KappaPlaceError

Poses = NDArray[np.float64]
PLANAR, SPATIAL = 3, 7


def check_poses(poses: Any, what: str = "poses") -> Poses:
    """As float64 of shape …×3 or …×7, finite, quaternions at unit length; anything else is one sentence."""
    values: Poses = np.asarray(poses, np.float64)
    if values.ndim < 1 or values.shape[-1] not in (PLANAR, SPATIAL):
        raise KappaPlaceError(
            f"The {what} have the shape {values.shape}: give x, y, yaw (3 numbers) or x, y, z, qx, qy, qz, "
            f"qw (7)."
        )
    if not np.isfinite(values).all():
        raise KappaPlaceError(f"Some {what} are NaN or infinite; leave those frames out.")
    if values.shape[-1] == SPATIAL:
        length = np.linalg.norm(values[..., 3:], axis=-1, keepdims=True)
        if (length < 1e-6).any():
            raise KappaPlaceError(
                f"Some {what} have a quaternion of length 0; check the order of the columns."
            )
        values = np.concatenate([values[..., :3], values[..., 3:] / length], axis=-1)
    return values


def identity_pose(size: int) -> Poses:
    """The pose at the origin."""
    return np.array([0.0] * PLANAR if size == PLANAR else [0.0] * 6 + [1.0])


def compose(a: Poses, b: Poses) -> Poses:
    """a, then b as seen from a; broadcasts.

    >>> compose(np.array([1.0, 0.0, np.pi / 2]), np.array([2.0, 0.0, 0.0])).round(6)
    array([1.      , 2.      , 1.570796])
    """
    a, b = np.broadcast_arrays(a, b)
    if a.shape[-1] == PLANAR:
        cos, sin = np.cos(a[..., 2]), np.sin(a[..., 2])
        x = a[..., 0] + cos * b[..., 0] - sin * b[..., 1]
        y = a[..., 1] + sin * b[..., 0] + cos * b[..., 1]
        return np.stack([x, y, wrap_angle(a[..., 2] + b[..., 2])], axis=-1)
    turn, then = _rotation(a), _rotation(b)
    moved = a[..., :3] + turn.apply(b[..., :3].reshape(-1, 3)).reshape(a[..., :3].shape)
    return np.concatenate([moved, (turn * then).as_quat().reshape(a[..., 3:].shape)], axis=-1)


def inverse(a: Poses) -> Poses:
    """The motion back."""
    if a.shape[-1] == PLANAR:
        cos, sin = np.cos(a[..., 2]), np.sin(a[..., 2])
        x = -cos * a[..., 0] - sin * a[..., 1]
        y = sin * a[..., 0] - cos * a[..., 1]
        return np.stack([x, y, wrap_angle(-a[..., 2])], axis=-1)
    back = _rotation(a).inv()
    moved = -back.apply(a[..., :3].reshape(-1, 3)).reshape(a[..., :3].shape)
    return np.concatenate([moved, back.as_quat().reshape(a[..., 3:].shape)], axis=-1)


def between(a: Poses, b: Poses) -> Poses:
    """b as seen from a: compose(a, between(a, b)) is b."""
    return compose(inverse(a), b)


def pose_positions(poses: Poses) -> Poses:
    """Where they are: …×2 or …×3 metres."""
    return poses[..., :2] if poses.shape[-1] == PLANAR else poses[..., :3]


def distance_travelled(poses: Poses) -> Poses:
    """Metres of the way up to each pose, N."""
    steps = np.linalg.norm(np.diff(pose_positions(poses), axis=0), axis=-1)
    return np.concatenate([[0.0], np.cumsum(steps)])


def chain(start: Poses, steps: Poses) -> Poses:
    """The poses that follow from a first one and the motions after it: len(steps) + 1 of them."""
    out = [start]
    for step in steps:
        out.append(compose(out[-1], step))
    return np.stack(out)


def wrap_angle(angle: Any) -> Any:
    """The same angle in (−π, π]."""
    return -((np.pi - np.asarray(angle)) % (2 * np.pi) - np.pi)


def pose_matrices(poses: Poses) -> Poses:
    """As N×4×4 matrices, for programs that want those; planar poses lie at z = 0."""
    spatial = as_spatial(poses)
    out = np.tile(np.eye(4), (len(spatial), 1, 1))
    out[:, :3, :3] = _rotation(spatial).as_matrix()
    out[:, :3, 3] = spatial[:, :3]
    return out


def poses_from_matrices(values: NDArray[np.floating]) -> Poses:
    """SE(3) poses from N×3×4 or N×4×4 matrices."""
    turned = Rotation.from_matrix(values[:, :3, :3]).as_quat()
    return np.concatenate([values[:, :3, 3], turned], axis=-1)


def as_spatial(poses: Poses) -> Poses:
    """SE(3) of any poses: planar ones at z = 0, turned about z."""
    if poses.shape[-1] == SPATIAL:
        return poses
    half, nought = poses[..., 2] / 2, np.zeros(poses.shape[:-1])
    parts = [poses[..., 0], poses[..., 1], nought, nought, nought, np.sin(half), np.cos(half)]
    return np.stack(parts, axis=-1)


def as_planar(poses: Poses) -> Poses:
    """SE(2) of any poses: their shadow on the ground, x, y and the direction of their x axis."""
    if poses.shape[-1] == PLANAR:
        return poses
    forward = _rotation(poses).apply([1.0, 0.0, 0.0]).reshape(poses[..., :3].shape)
    yaw = np.arctan2(forward[..., 1], forward[..., 0])
    return np.stack([poses[..., 0], poses[..., 1], yaw], axis=-1)


def _rotation(poses: Poses) -> Rotation:
    return Rotation.from_quat(poses[..., 3:].reshape(-1, 4))
