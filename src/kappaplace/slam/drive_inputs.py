"""Frames of a drive with their odometry: a folder, a table or a bag, and a trajectory file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import (
    PlaceImages,
    Poses,
    TimedPoses,
    as_planar,
    check_poses,
    from_headings,
    images_or_error,
    pose_positions,
    read_bag,
    read_poses,
    sample_by_distance,
    unpack_images,
    whole_poses,
)
from kappaplace.errors import KappaPlaceError

BAGS, TABLES = (".bag", ".mcap", ".db3"), (".parquet", ".csv")
TIMES = "times.txt"
NANOSECONDS = 1e14
"""A file name above this is a time in nanoseconds, not in seconds."""


@dataclass(frozen=True, eq=False)
class DriveInput:
    """Images in the order of the drive, and where odometry was at each."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    time: NDArray[np.float64]
    """Seconds, or numbers of frames."""
    odometry: Poses
    left_out: int = 0
    """Images outside the trajectory's time."""

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, rows: NDArray[np.int64]) -> DriveInput:
        """Some of the frames."""
        return DriveInput(
            tuple(self.names[row] for row in rows),
            tuple(self.paths[row] for row in rows),
            self.time[rows],
            self.odometry[rows],
            self.left_out,
        )


def read_drive(
    frames: str | Path,
    odometry: str | Path | None = None,
    *,
    dimensions: int = 2,
    every: float = 1.0,
    image_topic: str = "",
    pose_topic: str = "",
    unpack: str = "",
) -> DriveInput:
    """Frames at least ``every`` metres of the way apart (0: all of them), with poses.

    ``frames`` is a folder of images, a table of `kappaplace data import`, or a bag, whose images are
    unpacked into ``unpack``. ``odometry`` is a TUM, KITTI or GPX file; tables and bags may have positions of
    their own.
    """
    place = Path(frames)
    if not place.exists():
        raise KappaPlaceError(
            f"There are no frames at {place}: give a folder of images, a table or a ROS bag."
        )
    if place.suffix.lower() in BAGS or (place / "metadata.yaml").is_file():
        drive = _from_bag(place, odometry, dimensions, image_topic, pose_topic, unpack)
    elif place.suffix.lower() in TABLES:
        drive = _from_table(PlaceImages.open(place), odometry, dimensions)
    elif place.is_dir():
        if odometry is None:
            raise KappaPlaceError(
                f"The folder {place} tells no poses: give a TUM, KITTI or GPX file with --odometry."
            )
        drive = _from_folder(place, read_poses(odometry, dimensions))
    else:
        raise KappaPlaceError(f"{place} is no folder of images, no table and no ROS bag.")
    rows = sample_by_distance(np.ascontiguousarray(pose_positions(drive.odometry)[:, :2]), every)
    if len(rows) < 2:
        raise KappaPlaceError(
            f"{len(rows)} of {len(drive)} frames are {every:g} m apart: nothing to close; check odometry, "
            f"or every=0."
        )
    return drive.select(rows)


def _from_bag(
    bag: Path,
    odometry: str | Path | None,
    dimensions: int,
    image_topic: str,
    pose_topic: str,
    unpack: str,
) -> DriveInput:
    """Poses of the file, else whole ones of the bag's odometry, else GPS and the direction of motion."""
    if odometry is not None:
        path = read_poses(odometry, dimensions)
    elif (known := whole_poses(bag, pose_topic)) is not None:
        poses = check_poses(known[1], f"poses of {bag}")
        path = TimedPoses(known[0], poses if dimensions == 3 else as_planar(poses))
    else:
        table = read_bag(bag, image_topic=image_topic, pose_topic=pose_topic, every=0.0, frames=unpack)
        return _from_table(table, None, dimensions)
    folder = Path(unpack) if unpack else bag.parent / f"{bag.stem}_frames"
    names, time = unpack_images(bag, folder, image_topic)
    return _posed(tuple(names), tuple(str(folder / name) for name in names), time, path)


def _from_table(table: PlaceImages, odometry: str | Path | None, dimensions: int) -> DriveInput:
    order = (
        np.argsort(table.timestamp, kind="stable")
        if np.isfinite(table.timestamp).all()
        else np.arange(len(table))
    )
    table = table.select(order)
    names, paths = tuple(table.paths.tolist()), tuple(str(path) for path in table.image_paths())
    time = np.asarray(table.timestamp, np.float64)
    if odometry is not None:
        return _posed(names, paths, _times_or_numbers(time), read_poses(odometry, dimensions))
    if dimensions == 3:
        raise KappaPlaceError(
            "Tables and GPS tell positions on the ground only; give a TUM or KITTI file for 3D."
        )
    posed = np.flatnonzero(table.posed)
    poses = from_headings(table.positions[posed], table.heading[posed])
    some = DriveInput(names, paths, _times_or_numbers(time), np.zeros((len(names), 3)))
    kept = some.select(posed)
    return DriveInput(kept.names, kept.paths, kept.time, poses, len(names) - len(posed))


def _from_folder(folder: Path, path: TimedPoses) -> DriveInput:
    names = images_or_error(folder, natural=True)
    paths = tuple(str(folder / name) for name in names)
    return _posed(tuple(names), paths, _image_times(folder, names, path), path)


def _posed(
    names: tuple[str, ...], paths: tuple[str, ...], time: NDArray[np.float64], path: TimedPoses
) -> DriveInput:
    if path.by_frame:
        if len(names) > len(path.time):
            raise KappaPlaceError(
                f"There are {len(names):,} images and {len(path.time):,} poses; KITTI has one pose an image."
            )
        time = np.arange(float(len(names)))
    poses, inside = path.at(time)
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(time[rows], kind="stable")]  # as they were taken, whatever their names
    if not len(rows):
        raise KappaPlaceError(
            f"No image falls into the trajectory's time, {path.time[0]:.3f} to {path.time[-1]:.3f}; images "
            f"are at "
            f"{np.nanmin(time):.3f} to {np.nanmax(time):.3f}."
        )
    drive = DriveInput(names, paths, time, poses, len(names) - len(rows))
    return drive.select(rows)


def _image_times(folder: Path, names: list[str], path: TimedPoses) -> NDArray[np.float64]:
    """Seconds of each image: times.txt, names that are times, or one pose an image."""
    for listed in (folder / TIMES, folder.parent / TIMES):
        if listed.is_file():
            try:
                stated = np.loadtxt(listed, ndmin=1)
            except ValueError as error:
                raise KappaPlaceError(f"{listed} is no list of times ({error}).") from None
            if stated.shape != (len(names),):
                raise KappaPlaceError(f"{listed} has {stated.size:,} times for {len(names):,} images.")
            return np.asarray(stated, np.float64)
    stems = _as_numbers([Path(name).stem for name in names])
    if stems is not None:
        seconds = np.where(stems > NANOSECONDS, stems * 1e-9, stems)
        if path.by_frame or path.at(seconds)[1].any():
            return seconds
    if len(names) == len(path.time):
        return path.time.copy()
    raise KappaPlaceError(
        f"It is not known when the {len(names):,} images of {folder} were taken: name them by their time in "
        f"seconds, "
        f"write one time a line into {TIMES}, or give one pose an image ({len(path.time):,} there are)."
    )


def _as_numbers(texts: list[str]) -> NDArray[np.float64] | None:
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        return None


def _times_or_numbers(time: NDArray[np.float64]) -> NDArray[np.float64]:
    return time if np.isfinite(time).all() else np.arange(float(len(time)))
