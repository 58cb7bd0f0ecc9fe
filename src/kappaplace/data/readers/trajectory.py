"""Trajectories of a camera in TUM, KITTI and GPX files: positions or poses, interpolated in time."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from kappaplace.checks import choice, within
from kappaplace.data.geodesy import project
from kappaplace.data.poses import PLANAR, Poses, as_planar, check_poses, poses_from_matrices, wrap_angle
from kappaplace.data.readers.layout import unix_time
from kappaplace.errors import KappaPlaceError
from kappaplace.files import telling

_PLANES = {"xy": (0, 1), "xz": (0, 2), "yz": (1, 2)}


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Positions of a camera over time."""

    time: NDArray[np.float64]
    """Times in seconds; frame numbers for KITTI."""
    positions: NDArray[np.float64]
    """Positions in metres, N×2."""
    frame: str = "local"
    """Frame of the positions."""
    by_frame: bool = False
    """Whether pose i belongs to frame i and there are no times, as in KITTI."""
    accuracy: NDArray[np.float64] | None = None
    """Accuracy of each position in metres, if known."""

    def __post_init__(self) -> None:
        order = np.argsort(self.time, kind="stable")
        object.__setattr__(self, "time", self.time[order])
        object.__setattr__(self, "positions", self.positions[order])
        if self.accuracy is not None:
            object.__setattr__(self, "accuracy", self.accuracy[order])
        if len(self.time) < 2 or not np.isfinite(self.positions).all() or not np.isfinite(self.time).all():
            raise KappaPlaceError(
                "A trajectory must have at least two poses, each with a time and a position."
            )

    def at(self, time: NDArray[np.float64]) -> NDArray[np.float64]:
        """Interpolate positions; NaN outside the trajectory."""
        axes = [np.interp(time, self.time, axis, left=np.nan, right=np.nan) for axis in self.positions.T]
        return np.column_stack(axes)

    def accuracy_at(self, time: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Interpolate the accuracy; None if it is unknown."""
        return None if self.accuracy is None else np.interp(time, self.time, self.accuracy)


def sample_by_distance(positions: NDArray[np.float64], every: float) -> NDArray[np.int64]:
    """Select rows at regular distances along a trajectory.

    Args:
        positions: N×2 metres; NaN for rows without a position, which are never selected.
        every: Distance between rows in metres along the trajectory; 0 selects every row with a position.

    Returns:
        Row numbers.

    Raises:
        KappaPlaceError: If every is negative or NaN.

    >>> sample_by_distance(np.column_stack([np.arange(10.0), np.zeros(10)]), every=3.0).tolist()
    [0, 3, 6, 9]
    """
    if not every >= 0:
        raise KappaPlaceError(f"every must be a distance in metres, or 0 for every image, got {every:g}.")
    rows = np.flatnonzero(np.isfinite(positions[:, 0]))
    if not len(rows) or every == 0:
        return rows
    distance = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(positions[rows], axis=0).T))])
    step = np.floor(distance / every + 1e-9)
    return rows[np.concatenate([[True], np.diff(step) > 0])]


def headings(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the direction of motion in degrees clockwise from north, for a camera that looks forward."""
    if len(positions) < 2:
        return np.full(len(positions), np.nan)
    step = np.gradient(positions, axis=0)
    angle = np.degrees(np.arctan2(step[:, 0], step[:, 1])) % 360.0
    return np.where(np.hypot(*step.T) > 1e-6, angle, np.nan)


def read_trajectory(file: Path, plane: str = "") -> Trajectory:
    """Read a trajectory file.

    Args:
        file: A .gpx file, or text with 8 numbers per line (TUM: t x y z qx qy qz qw) or 12 (KITTI, a 3×4
            matrix).
        plane: The two horizontal axes: xy, xz or yz. Default: xy for TUM (z points up), xz for KITTI (z
            points forward).

    Returns:
        The trajectory.

    Raises:
        KappaPlaceError: If the file is not a trajectory.
    """
    if file.suffix.lower() == ".gpx":
        return _read_gpx(file)
    if plane:
        choice(plane, _PLANES, "plane")
    time, numbers, by_frame = _pose_numbers(file)
    positions = numbers[:, [3, 7, 11]] if by_frame else numbers[:, :3]
    return Trajectory(time, positions[:, _PLANES[plane or ("xz" if by_frame else "xy")]], by_frame=by_frame)


def _pose_numbers(file: Path) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Read a text file with one pose per line; return times, poses, and whether it is a KITTI file."""
    if not file.is_file():
        raise KappaPlaceError(f"There is no trajectory {file}. Check the path.")
    with telling(f"{file} is not a trajectory in TUM or KITTI format"):
        lines = file.read_text(encoding="utf-8", errors="replace").replace(",", " ").splitlines()
        rows = [words for line in lines if (words := line.partition("#")[0].split())]
        numbers = np.array(rows, np.float64, ndmin=2)
    width = numbers.shape[1]
    if width == 8:
        return numbers[:, 0], numbers[:, 1:], False
    if width == 12:
        return np.arange(float(len(numbers))), numbers, True
    raise KappaPlaceError(f"{file} must have 8 (TUM) or 12 (KITTI) numbers per line, got {width}.")


def _read_gpx(file: Path) -> Trajectory:
    with telling(f"{file} is not valid GPX"):
        text = file.read_text(encoding="utf-8")
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise KappaPlaceError(
                f"{file} declares XML entities, which are not allowed in GPX files. Export it again."
            )
        tree = ElementTree.fromstring(text)
    points = [e for e in tree.iter() if e.tag.rpartition("}")[2] in ("trkpt", "rtept")]
    stamps = [[e.text or "" for e in p if e.tag.rpartition("}")[2] == "time"] for p in points]
    times = [unix_time(stamp[0]) if stamp else np.nan for stamp in stamps]
    if len(points) < 2 or np.isnan(times).any():
        raise KappaPlaceError(f"{file} has fewer than two points with a time. Use a longer recording.")
    positions, frame = project(*(_degrees(points, side, file) for side in ("lat", "lon")))
    return Trajectory(np.array(times), positions, frame)


def _degrees(points: list[ElementTree.Element], side: str, file: Path) -> list[float]:
    degrees = []
    for i, point in enumerate(points, start=1):
        try:
            degrees.append(float(point.get(side, "")))
        except ValueError:
            raise KappaPlaceError(f"{file}: {side} of point {i} must be a number.") from None
    return degrees


# KITTI's camera looks along z with y down; here x is ahead, y to the left and z up.
_CAMERA = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])


@dataclass(frozen=True, eq=False)
class TimedPoses:
    """Poses of a camera over time."""

    time: NDArray[np.float64]
    """Times in seconds; frame numbers for KITTI."""
    poses: Poses
    """N×3 (x, y, yaw) or N×7 (x, y, z, quaternion), in metres and radians."""
    by_frame: bool = False
    """Whether pose i belongs to frame i and there are no times, as in KITTI."""

    def __post_init__(self) -> None:
        if len(self.time) != len(self.poses) or len(self.time) < 2:
            raise KappaPlaceError("A trajectory must have at least two poses, each with a time.")
        order = np.argsort(self.time, kind="stable")
        first = np.concatenate([[True], np.diff(self.time[order]) > 0])  # the first pose of each time
        object.__setattr__(self, "time", self.time[order][first])
        object.__setattr__(self, "poses", self.poses[order][first])

    def at(self, time: npt.ArrayLike) -> tuple[Poses, NDArray[np.bool_]]:
        """Interpolate poses; outside the trajectory the nearest pose is used.

        Args:
            time: Times, N.

        Returns:
            The poses, and which of the times the trajectory covers.
        """
        from scipy.spatial.transform import Rotation, Slerp

        times = np.asarray(time, np.float64)
        inside = (times >= self.time[0]) & (times <= self.time[-1])
        moment = np.clip(np.where(np.isnan(times), self.time[0], times), self.time[0], self.time[-1])
        size = self.poses.shape[1]
        axes = self.poses[:, : 2 if size == PLANAR else 3].T
        position = np.column_stack([np.interp(moment, self.time, axis) for axis in axes])
        if size == PLANAR:
            yaw = np.interp(moment, self.time, np.unwrap(self.poses[:, 2]))
            return np.column_stack([position, wrap_angle(yaw)]), inside
        rotation = Slerp(self.time, Rotation.from_quat(self.poses[:, 3:]))(moment).as_quat()
        return np.concatenate([position, rotation], axis=1), inside


def read_poses(file: str | Path, dimensions: int = 2) -> TimedPoses:
    """Read a TUM, KITTI or GPX file as poses in the plane or in space.

    Args:
        file: TUM (8 numbers per line), KITTI (12) or GPX. GPX contains no directions, so the direction of
            motion is used, and only in the plane.
        dimensions: 2 (x, y, yaw) or 3 (x, y, z, quaternion).

    Returns:
        The poses.

    Raises:
        KappaPlaceError: If the file is not a trajectory.
    """
    file = Path(file)
    within(dimensions, "dimensions", 2, 3)
    if file.suffix.lower() == ".gpx":
        if dimensions == 3:
            raise KappaPlaceError(f"{file} contains no directions. Use a GPX file in two dimensions only.")
        path = read_trajectory(file)
        return TimedPoses(path.time, from_headings(path.positions, headings(path.positions)))
    time, numbers, by_frame = _pose_numbers(file)
    poses = _from_kitti(numbers, file) if by_frame else check_poses(numbers, f"poses of {file}")
    if not np.isfinite(time).all():
        raise KappaPlaceError(f"Some times in {file} are not finite numbers. Correct these lines.")
    return TimedPoses(time, poses if dimensions == 3 else as_planar(poses), by_frame)


def from_headings(positions: NDArray[np.float64], heading: NDArray[np.floating]) -> Poses:
    """Return planar poses from positions and headings.

    Args:
        positions: N×2 metres.
        heading: Degrees clockwise from north, N; NaN is replaced by the previous heading.

    Returns:
        Poses x, y, yaw, N×3.
    """
    degrees = np.asarray(heading, np.float64)
    finite = np.isfinite(degrees)
    if finite.any():
        rows = np.maximum.accumulate(np.where(finite, np.arange(len(degrees)), np.argmax(finite)))
        degrees = degrees[rows]
    else:
        degrees = np.zeros(len(degrees))
    return np.column_stack([positions, wrap_angle(np.pi / 2 - np.radians(degrees))])


def _from_kitti(numbers: NDArray[np.float64], file: Path) -> Poses:
    camera = numbers.reshape(-1, 3, 4)
    if not np.isfinite(camera).all():
        raise KappaPlaceError(f"Some poses in {file} are NaN or infinite. Remove these lines.")
    if (np.abs(np.linalg.det(camera[:, :, :3]) - 1.0) > 0.1).any():
        raise KappaPlaceError(
            f"Some lines of {file} are not poses. A KITTI line contains a rotation and a position, as three "
            "rows of four numbers."
        )
    rotation = _CAMERA @ camera[:, :, :3] @ _CAMERA.T
    position = camera[:, :, 3] @ _CAMERA.T
    return poses_from_matrices(np.concatenate([rotation, position[:, :, None]], axis=2))
