"""Whole poses, not only positions, out of TUM, KITTI and GPX files, and at the times of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from kappaplace.data.readers.trajectory import headings, pose_numbers, read_trajectory
from kappaplace.errors import KappaPlaceError
from kappaplace.slam.poses import PLANAR, Poses, as_planar, checked, from_matrices, wrap

# KITTI's camera looks along z with y down; here x is ahead, y to the left and z up.
_CAMERA = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])


@dataclass(frozen=True, eq=False)
class TimedPoses:
    """Poses at times; the time of KITTI's is the number of the frame."""

    time: NDArray[np.float64]
    poses: Poses
    by_frame: bool = False

    def __post_init__(self) -> None:
        if len(self.time) != len(self.poses) or len(self.time) < 2:
            raise KappaPlaceError("A trajectory needs at least two poses, each with a time.")
        order = np.argsort(self.time, kind="stable")
        fresh = np.concatenate([[True], np.diff(self.time[order]) > 0])  # of one moment the first
        object.__setattr__(self, "time", self.time[order][fresh])
        object.__setattr__(self, "poses", self.poses[order][fresh])

    def at(self, time: NDArray[Any]) -> tuple[Poses, NDArray[np.bool_]]:
        """Poses at some times, and which of them the trajectory covers; nothing is extrapolated."""
        asked = np.asarray(time, np.float64)
        inside = (asked >= self.time[0]) & (asked <= self.time[-1])
        moment = np.clip(np.where(np.isnan(asked), self.time[0], asked), self.time[0], self.time[-1])
        size = self.poses.shape[1]
        where = np.stack(
            [np.interp(moment, self.time, self.poses[:, axis]) for axis in range(2 if size == PLANAR else 3)],
            axis=1,
        )
        if size == PLANAR:
            yaw = np.interp(moment, self.time, np.unwrap(self.poses[:, 2]))
            return np.column_stack([where, wrap(yaw)]), inside
        turned = Slerp(self.time, Rotation.from_quat(self.poses[:, 3:]))(moment).as_quat()
        return np.concatenate([where, turned], axis=1), inside


def read_poses(file: str | Path, dimensions: int = 2) -> TimedPoses:
    """TUM (8 numbers a line), KITTI (12) or GPX as poses in the plane or in space.

    GPX knows no direction: that of motion stands in, so it is for the plane only.
    """
    file = Path(file)
    if dimensions not in (2, 3):
        raise KappaPlaceError(f"Poses have 2 or 3 dimensions, not {dimensions}.")
    if file.suffix.lower() == ".gpx":
        if dimensions == 3:
            raise KappaPlaceError(f"{file} knows no directions: a GPX track is for two dimensions.")
        path = read_trajectory(file)
        return TimedPoses(path.time, from_headings(path.positions, headings(path.positions)))
    numbers = pose_numbers(file)
    if numbers.shape[1] == 8:
        time, poses, by_frame = numbers[:, 0], checked(numbers[:, 1:], f"poses of {file}"), False
    elif numbers.shape[1] == 12:
        time, poses, by_frame = np.arange(float(len(numbers))), _from_kitti(numbers, file), True
    else:
        raise KappaPlaceError(
            f"{file} has {numbers.shape[1]} numbers a line: TUM has 8, KITTI 12, GPX is XML."
        )
    if not np.isfinite(time).all():
        raise KappaPlaceError(f"Some times of {file} are no numbers.")
    return TimedPoses(time, poses if dimensions == 3 else as_planar(poses), by_frame)


def from_headings(positions: NDArray[np.float64], heading: NDArray[np.floating]) -> Poses:
    """SE(2) from positions and degrees clockwise from north; where unknown, the last known direction
    holds.
    """
    degrees = np.asarray(heading, np.float64)
    known = np.flatnonzero(np.isfinite(degrees))
    if not len(known):
        degrees = np.zeros(len(degrees))
    else:
        rows = np.maximum.accumulate(np.where(np.isfinite(degrees), np.arange(len(degrees)), known[0]))
        degrees = degrees[rows]
    return np.column_stack([positions, wrap(np.pi / 2 - np.radians(degrees))])


def _from_kitti(numbers: NDArray[np.float64], file: Path) -> Poses:
    camera = numbers.reshape(-1, 3, 4)
    if not np.isfinite(camera).all():
        raise KappaPlaceError(f"Some poses of {file} are NaN or infinite; leave those frames out.")
    if (np.abs(np.linalg.det(camera[:, :, :3]) - 1.0) > 0.1).any():
        raise KappaPlaceError(
            f"Some lines of {file} are no poses: KITTI has a rotation and a position a line, three rows of "
            "four numbers one after the other."
        )
    turned = _CAMERA @ camera[:, :, :3] @ _CAMERA.T
    moved = camera[:, :, 3] @ _CAMERA.T
    return from_matrices(np.concatenate([turned, moved[:, :, None]], axis=2))
