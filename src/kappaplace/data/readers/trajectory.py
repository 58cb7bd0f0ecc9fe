"""Trajectories of a camera: TUM, KITTI and GPX files, interpolation in time, sampling by distance.

Whole poses, not only positions, out of TUM, KITTI and GPX files, and at the times of images.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from kappaplace.data.geodesy import project
from kappaplace.data.poses import PLANAR, Poses, as_planar, check_poses, poses_from_matrices, wrap_angle
from kappaplace.data.readers.text import unix_time
from kappaplace.errors import KappaPlaceError

_PLANES = {"xy": (0, 1), "xz": (0, 2), "yz": (1, 2)}


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Where the camera was when: seconds (or frame numbers, for KITTI) and metres."""

    time: NDArray[np.float64]
    positions: NDArray[np.float64]
    frame: str = "local"
    by_frame: bool = False
    """KITTI: pose i belongs to frame i, there is no clock."""
    accuracy: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        order = np.argsort(self.time, kind="stable")
        object.__setattr__(self, "time", self.time[order])
        object.__setattr__(self, "positions", self.positions[order])
        if self.accuracy is not None:
            object.__setattr__(self, "accuracy", self.accuracy[order])
        if len(self.time) < 2 or not np.isfinite(self.positions).all() or not np.isfinite(self.time).all():
            raise KappaPlaceError("A trajectory needs at least two poses, each with a time and a position.")

    def at(self, time: NDArray[Any]) -> NDArray[np.float64]:
        """Positions at some times; NaN outside the trajectory, never extrapolated."""
        axes = [np.interp(time, self.time, self.positions[:, axis]) for axis in (0, 1)]
        inside = (np.asarray(time) >= self.time[0]) & (np.asarray(time) <= self.time[-1])
        return np.where(inside[:, None], np.column_stack(axes), np.nan)

    def accuracy_at(self, time: NDArray[Any]) -> NDArray[np.float64] | None:
        return None if self.accuracy is None else np.interp(time, self.time, self.accuracy)


def sample_by_distance(positions: NDArray[np.float64], every: float) -> NDArray[np.int64]:
    """Rows to keep so that about one remains every ``every`` metres of the way; unposed rows are left out.

    Zero keeps every posed row.

    >>> sample_by_distance(np.column_stack([np.arange(10.0), np.zeros(10)]), every=3.0).tolist()
    [0, 3, 6, 9]
    """
    if not every >= 0:
        raise KappaPlaceError(f"every={every:g} is no distance: give metres, or 0 for every image.")
    rows = np.flatnonzero(np.isfinite(positions[:, 0]))
    if not len(rows) or every == 0:
        return rows
    way = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(positions[rows], axis=0).T))])
    step = np.floor(way / every + 1e-9)
    return rows[np.concatenate([[True], np.diff(step) > 0])]


def headings(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Direction of motion in degrees clockwise from north: where a forward-looking camera looks."""
    if len(positions) < 2:
        return np.full(len(positions), np.nan)
    step = np.gradient(positions, axis=0)
    angle = np.degrees(np.arctan2(step[:, 0], step[:, 1])) % 360.0
    return np.where(np.hypot(*step.T) > 1e-6, angle, np.nan)


def read_trajectory(file: Path, plane: str = "") -> Trajectory:
    """GPX by its suffix; in plain text, TUM has 8 numbers a line (t x y z qx qy qz qw), KITTI 12 (3×4).

    ``plane`` names the two horizontal axes: xy for TUM (z points up), xz for KITTI (z points forward).
    """
    if not file.is_file():
        raise KappaPlaceError(f"There is no trajectory {file}.")
    if file.suffix.lower() == ".gpx":
        return _read_gpx(file)
    numbers = pose_numbers(file)
    width = numbers.shape[1]
    if plane and plane not in _PLANES:
        raise KappaPlaceError(f"plane={plane!r} is unknown; choose {', '.join(_PLANES)}.")
    if width == 8:
        return Trajectory(numbers[:, 0], numbers[:, 1:4][:, _PLANES[plane or "xy"]])
    if width == 12:
        translation = numbers[:, [3, 7, 11]]
        return Trajectory(
            np.arange(float(len(numbers))), translation[:, _PLANES[plane or "xz"]], by_frame=True
        )
    raise KappaPlaceError(f"{file} has {width} numbers a line: TUM has 8, KITTI 12, GPX is XML.")


def pose_numbers(file: Path) -> NDArray[np.float64]:
    """The numbers of a text file with one pose a line: 8 columns of TUM, 12 of KITTI, or whatever is
    there.
    """
    if not file.is_file():
        raise KappaPlaceError(f"There is no trajectory {file}.")
    first = _first_line(file)
    if not first:
        raise KappaPlaceError(f"{file} is empty: a trajectory needs at least two poses.")
    try:
        return np.loadtxt(file, comments="#", ndmin=2, delimiter="," if "," in first else None)
    except ValueError as error:
        raise KappaPlaceError(f"{file} is no table of numbers ({error}).") from None


def _first_line(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as stream:
        return next((line for line in stream if line.strip() and not line.startswith("#")), "")


def _read_gpx(file: Path) -> Trajectory:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise KappaPlaceError(f"{file} is not UTF-8 text: save it as UTF-8.") from None
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise KappaPlaceError(f"{file} declares XML entities, which no GPX needs: it is refused.")
    try:
        tree = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise KappaPlaceError(f"{file} is no valid GPX ({error}).") from None
    points = [e for e in tree.iter() if e.tag.rpartition("}")[2] in ("trkpt", "rtept")]
    times = []
    for point in points:
        stamp = next((e.text or "" for e in point if e.tag.rpartition("}")[2] == "time"), "")
        times.append(unix_time(stamp))
    if len(points) < 2 or np.isnan(times).any():
        raise KappaPlaceError(f"{file} needs at least two points, each with a time.")
    positions, frame = project(*(_degrees(points, side, file) for side in ("lat", "lon")))
    return Trajectory(np.array(times), positions, frame)


def _degrees(points: list[ElementTree.Element], side: str, file: Path) -> list[float]:
    degrees = []
    for i, point in enumerate(points, start=1):
        try:
            degrees.append(float(point.get(side, "")))
        except ValueError:
            raise KappaPlaceError(f"{file}: {side} of point {i} is not a number.") from None
    return degrees


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
            return np.column_stack([where, wrap_angle(yaw)]), inside
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
        time, poses, by_frame = numbers[:, 0], check_poses(numbers[:, 1:], f"poses of {file}"), False
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
    return np.column_stack([positions, wrap_angle(np.pi / 2 - np.radians(degrees))])


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
    return poses_from_matrices(np.concatenate([turned, moved[:, :, None]], axis=2))
