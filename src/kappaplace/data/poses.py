"""Arithmetic of rigid motions in plain arrays: SE(2) as x, y, yaw and SE(3) as x, y, z, qx, qy, qz, qw.

The length of the last axis, 3 or 7, distinguishes the two. Units are metres and radians, and quaternions have
the order of TUM files. A pose maps coordinates of a body to coordinates of the world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from scipy.spatial.transform import Rotation

Poses = NDArray[np.float64]
PLANAR, SPATIAL = 3, 7


def check_poses(poses: ArrayLike, name: str = "poses") -> Poses:
    """Check poses and normalize their quaternions.

    Args:
        poses: …×3 or …×7.
        name: Name of the poses, for messages.

    Returns:
        float64 of the same shape.

    Raises:
        KappaPlaceError: If the shape is different, a number is not finite or a quaternion is 0.
    """
    values: Poses = np.asarray(poses, np.float64)
    if values.ndim < 1 or values.shape[-1] not in (PLANAR, SPATIAL):
        raise KappaPlaceError(
            f"Expected {name} as x, y, yaw (3 numbers) or x, y, z, qx, qy, qz, qw (7), "
            f"got shape {values.shape}."
        )
    if not np.isfinite(values).all():
        raise KappaPlaceError(f"Some {name} are NaN or infinite. Omit those frames.")
    if values.shape[-1] == SPATIAL:
        length = np.linalg.norm(values[..., 3:], axis=-1, keepdims=True)
        if (length < 1e-6).any():
            raise KappaPlaceError(f"Some {name} have a quaternion of length 0. Check the order of columns.")
        values = np.concatenate([values[..., :3], values[..., 3:] / length], axis=-1)
    return values


def identity_pose(size: int) -> Poses:
    """Return the pose at the origin, of 3 or 7 numbers."""
    return np.array([0.0] * PLANAR if size == PLANAR else [0.0] * 6 + [1.0])


def compose(a: Poses, b: Poses) -> Poses:
    """Apply one motion after another.

    >>> compose(np.array([1.0, 0.0, np.pi / 2]), np.array([2.0, 0.0, 0.0])).round(6)
    array([1.      , 2.      , 1.570796])

    Args:
        a: Poses.
        b: Motions in the frame of a; broadcast against a.

    Returns:
        Poses after the motions.
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
    """Return the reverse motion."""
    if a.shape[-1] == PLANAR:
        cos, sin = np.cos(a[..., 2]), np.sin(a[..., 2])
        x = -cos * a[..., 0] - sin * a[..., 1]
        y = sin * a[..., 0] - cos * a[..., 1]
        return np.stack([x, y, wrap_angle(-a[..., 2])], axis=-1)
    back = _rotation(a).inv()
    moved = -back.apply(a[..., :3].reshape(-1, 3)).reshape(a[..., :3].shape)
    return np.concatenate([moved, back.as_quat().reshape(a[..., 3:].shape)], axis=-1)


def between(a: Poses, b: Poses) -> Poses:
    """Return the motion from one pose to another: ``compose(a, between(a, b))`` is b.

    Args:
        a: Poses.
        b: Poses; broadcast against a.

    Returns:
        b in the frame of a.
    """
    return compose(inverse(a), b)


def pose_positions(poses: Poses) -> Poses:
    """Return the positions of poses.

    Args:
        poses: …×3 or …×7.

    Returns:
        Metres, …×2 or …×3.
    """
    return poses[..., :2] if poses.shape[-1] == PLANAR else poses[..., :3]


def distance_traveled(poses: Poses) -> Poses:
    """Return the distance travelled up to each pose.

    Args:
        poses: Consecutive poses, N×3 or N×7.

    Returns:
        Metres, N, starting at 0.
    """
    steps = np.linalg.norm(np.diff(pose_positions(poses), axis=0), axis=-1)
    return np.concatenate([[0.0], np.cumsum(steps)])


def chain(start: Poses, steps: Poses) -> Poses:
    """Apply motions one after the other.

    Args:
        start: First pose.
        steps: Motions, each in the frame of the pose before it, N×3 or N×7.

    Returns:
        All N+1 poses, starting with the first.
    """
    poses = [start]
    for step in steps:
        poses.append(compose(poses[-1], step))
    return np.stack(poses)


def wrap_angle(angle: ArrayLike) -> NDArray[np.float64]:
    """Return the same angle in (−π, π].

    Args:
        angle: Radians.

    Returns:
        Radians, of the same shape.
    """
    return -((np.pi - np.asarray(angle)) % (2 * np.pi) - np.pi)


def pose_matrices(poses: Poses) -> Poses:
    """Convert poses to homogeneous matrices.

    Args:
        poses: N×3 or N×7; planar poses are at z = 0.

    Returns:
        N×4×4.
    """
    spatial = as_spatial(poses)
    matrices = np.tile(np.eye(4), (len(spatial), 1, 1))
    matrices[:, :3, :3] = _rotation(spatial).as_matrix()
    matrices[:, :3, 3] = spatial[:, :3]
    return matrices


def poses_from_matrices(values: NDArray[np.floating]) -> Poses:
    """Return SE(3) poses of N×3×4 or N×4×4 matrices."""
    from scipy.spatial.transform import Rotation

    quaternions = Rotation.from_matrix(values[:, :3, :3]).as_quat()
    return np.concatenate([values[:, :3, 3], quaternions], axis=-1)


def as_spatial(poses: Poses) -> Poses:
    """Convert poses to SE(3).

    Args:
        poses: …×3 or …×7; planar poses are at z = 0.

    Returns:
        …×7.
    """
    if poses.shape[-1] == SPATIAL:
        return poses
    half, zero = poses[..., 2] / 2, np.zeros(poses.shape[:-1])
    parts = [poses[..., 0], poses[..., 1], zero, zero, zero, np.sin(half), np.cos(half)]
    return np.stack(parts, axis=-1)


def as_planar(poses: Poses) -> Poses:
    """Convert poses to SE(2): x, y and the direction of the x axis, projected to the ground.

    Args:
        poses: …×3 or …×7.

    Returns:
        …×3.
    """
    if poses.shape[-1] == PLANAR:
        return poses
    forward = _rotation(poses).apply([1.0, 0.0, 0.0]).reshape(poses[..., :3].shape)
    yaw = np.arctan2(forward[..., 1], forward[..., 0])
    return np.stack([poses[..., 0], poses[..., 1], yaw], axis=-1)


def _rotation(poses: Poses) -> Rotation:
    from scipy.spatial.transform import Rotation

    return Rotation.from_quat(poses[..., 3:].reshape(-1, 4))
