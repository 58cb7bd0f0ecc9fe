"""Files of drives: images with odometry as input, pose graphs and trajectories for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import (
    PLANAR,
    PlaceImages,
    Poses,
    TimedPoses,
    as_planar,
    as_spatial,
    between,
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
from kappaplace.files import write_file
from kappaplace.slam.graph_factors import OdometryNoise
from kappaplace.slam.types import Closure
from kappaplace.types import Json

BAGS, TABLES = (".bag", ".mcap", ".db3"), (".parquet", ".csv")
TIMES = "times.txt"
NANOSECONDS = 1e14
"""A file name above this number is a time in nanoseconds, not in seconds."""

SHORTEST = 10
"""Minimum number of frames to check their order."""
UNORDERED = 0.5
"""Rows are unordered if their mean step is longer than this fraction of that in random order."""


@dataclass(frozen=True, eq=False)
class DriveInput:
    """Images in the order of the drive, with their odometry."""

    names: tuple[str, ...]
    """Names of the images."""
    paths: tuple[str, ...]
    """Paths of the images."""
    time: NDArray[np.float64]
    """Time stamps in seconds, or frame numbers."""
    odometry: Poses
    """Pose per image, N×3 or N×7."""
    skipped: int = 0
    """Number of images outside the time of the trajectory."""

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, rows: NDArray[np.int64]) -> DriveInput:
        """Return some of the frames."""
        return DriveInput(
            tuple(self.names[row] for row in rows),
            tuple(self.paths[row] for row in rows),
            self.time[rows],
            self.odometry[rows],
            self.skipped,
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
    """Read frames with their poses.

    Args:
        frames: Folder of images, table written by `kappaplace data import`, or ROS bag.
        odometry: TUM, KITTI or GPX file. Default: the positions of the table or bag.
        dimensions: Pose dimension: 2 for planar poses, 3 for full poses.
        every: Minimum distance travelled between frames, in metres; 0 keeps all of them.
        image_topic: Image topic of a bag. Default: its only one.
        pose_topic: Odometry topic of a bag. Default: its only one.
        unpack: Folder for the images of a bag. Default: next to the bag.

    Returns:
        The frames in the order of the drive.

    Raises:
        KappaPlaceError: If the input cannot be read, has no poses, or has fewer than two frames.
    """
    source = Path(frames)
    if not source.exists():
        raise KappaPlaceError(
            f"There are no frames at {source}. Pass a folder of images, a table or a ROS bag."
        )
    if source.suffix.lower() in BAGS or (source / "metadata.yaml").is_file():
        drive = _from_bag(source, odometry, dimensions, image_topic, pose_topic, unpack)
    elif source.suffix.lower() in TABLES:
        drive = _from_table(PlaceImages.open(source), odometry, dimensions)
    elif source.is_dir():
        if odometry is None:
            raise KappaPlaceError(
                f"The folder {source} has no poses. Pass a TUM, KITTI or GPX file with --odometry."
            )
        drive = _from_folder(source, read_poses(odometry, dimensions))
    else:
        raise KappaPlaceError(f"{source} is not a folder of images, a table or a ROS bag. Pass one.")
    rows = sample_by_distance(np.ascontiguousarray(pose_positions(drive.odometry)[:, :2]), every)
    if len(rows) < 2:
        raise KappaPlaceError(
            f"Only {len(rows)} of {len(drive)} frames remain with every={every:g} m. "
            "Check the odometry, or pass every=0."
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
    """Return the frames of a bag with poses from the file, the odometry of the bag, or GPS, in this order."""
    if odometry is not None:
        path = read_poses(odometry, dimensions)
    elif (recorded := whole_poses(bag, pose_topic)) is not None:
        poses = check_poses(recorded[1], f"poses of {bag}")
        path = TimedPoses(recorded[0], poses if dimensions == 3 else as_planar(poses))
    else:
        table = read_bag(bag, image_topic=image_topic, pose_topic=pose_topic, every=0.0, frames=unpack)
        return _from_table(table, None, dimensions)
    folder = Path(unpack) if unpack else bag.parent / f"{bag.stem}_frames"
    names, time = unpack_images(bag, folder, image_topic)
    return _with_poses(tuple(names), tuple(str(folder / name) for name in names), time, path)


def _from_table(table: PlaceImages, odometry: str | Path | None, dimensions: int) -> DriveInput:
    table = table.select(_drive_order(table))
    names, paths = tuple(table.paths.tolist()), tuple(str(path) for path in table.image_paths())
    time = np.asarray(table.timestamp, np.float64)
    if not np.isfinite(time).all():
        time = np.arange(float(len(time)))
    if odometry is not None:
        return _with_poses(names, paths, time, read_poses(odometry, dimensions))
    if dimensions == 3:
        raise KappaPlaceError(
            "Tables and GPS have positions on the ground only. Pass a TUM or KITTI file with --odometry for "
            "3D."
        )
    posed = np.flatnonzero(table.posed)
    poses = np.zeros((len(names), 3))
    poses[posed] = from_headings(table.positions[posed], table.heading[posed])
    return DriveInput(names, paths, time, poses, len(names) - len(posed)).select(posed)


def _drive_order(table: PlaceImages) -> NDArray[np.int64]:
    """Return the rows in the order of the drive: by time, by frame number, or as they are."""
    if np.isfinite(table.timestamp).all():
        return np.argsort(table.timestamp, kind="stable")
    if table.frame_number is not None:
        return np.argsort(table.frame_number, kind="stable")
    places = table.positions[table.posed]
    if len(places) >= SHORTEST:
        step = np.linalg.norm(np.diff(places, axis=0), axis=1).mean()
        shuffled = places[np.random.default_rng(0).permutation(len(places))]
        if step > UNORDERED * np.linalg.norm(np.diff(shuffled, axis=0), axis=1).mean():
            raise KappaPlaceError(
                f"The rows of the table are not in the order of a drive: consecutive images are "
                f"{step:,.0f} m apart on average. Add a column timestamp or frame_number."
            )
    return np.arange(len(table))


def _from_folder(folder: Path, path: TimedPoses) -> DriveInput:
    names = images_or_error(folder, natural=True)
    paths = tuple(str(folder / name) for name in names)
    return _with_poses(tuple(names), paths, _image_times(folder, names, path), path)


def _with_poses(
    names: tuple[str, ...], paths: tuple[str, ...], time: NDArray[np.float64], path: TimedPoses
) -> DriveInput:
    if path.by_frame:
        if len(names) > len(path.time):
            raise KappaPlaceError(
                f"A KITTI file needs one pose per image, got {len(path.time):,} poses for {len(names):,} "
                "images. Pass the file of this drive."
            )
        time = np.arange(float(len(names)))
    poses, inside = path.at(time)
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(time[rows], kind="stable")]  # in the order of their times, whatever their names
    if not len(rows):
        raise KappaPlaceError(
            f"No image falls into the time of the trajectory, {path.time[0]:.3f} to {path.time[-1]:.3f}. "
            f"Use the same clock for the images, got {np.nanmin(time):.3f} to {np.nanmax(time):.3f}."
        )
    drive = DriveInput(names, paths, time, poses, len(names) - len(rows))
    return drive.select(rows)


def _image_times(folder: Path, names: list[str], path: TimedPoses) -> NDArray[np.float64]:
    """Return the time of each image in seconds: from times.txt, from its name, or one pose per image."""
    for file in (folder / TIMES, folder.parent / TIMES):
        if file.is_file():
            try:
                times = np.loadtxt(file, ndmin=1)
            except ValueError as error:
                raise KappaPlaceError(f"{file} is not a list of times ({error}). Fix it.") from None
            if times.shape != (len(names),):
                raise KappaPlaceError(f"{file} has {times.size:,} times for {len(names):,} images. Fix it.")
            return np.asarray(times, np.float64)
    stems = _as_numbers([Path(name).stem for name in names])
    if stems is not None:
        seconds = np.where(stems > NANOSECONDS, stems * 1e-9, stems)
        if path.by_frame or path.at(seconds)[1].any():
            return seconds
    if len(names) == len(path.time):
        return path.time.copy()
    raise KappaPlaceError(
        f"The times of the {len(names):,} images in {folder} are unknown. Name images by their time in "
        f"seconds, write one time per line to {TIMES}, or pass one pose per image (got {len(path.time):,})."
    )


def _as_numbers(texts: list[str]) -> NDArray[np.float64] | None:
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        return None


def write_g2o(
    file: str | Path,
    poses: Poses,
    odometry: Poses,
    closures: Sequence[Closure],
    noise: OdometryNoise | None = None,
) -> None:
    """Write a pose graph: vertices, edges of odometry and of accepted closures, with information matrices.

    No vertex is marked as fixed, because optimizers fix the first one on their own, and GTSAM stops reading
    at such a line.

    Args:
        file: Output file.
        poses: Poses of the vertices, N×3 or N×7.
        odometry: Raw odometry of the same frames.
        closures: Closures; only accepted ones are written.
        noise: Standard deviations of odometry. Default: `OdometryNoise()`.
    """
    noise, flat = noise or OdometryNoise(), poses.shape[1] == PLANAR
    vertex, edge = ("VERTEX_SE2", "EDGE_SE2") if flat else ("VERTEX_SE3:QUAT", "EDGE_SE3:QUAT")
    lines = [f"{vertex} {row} {_numbers(pose)}" for row, pose in enumerate(poses)]
    for row in range(len(odometry) - 1):
        step = between(odometry[row], odometry[row + 1])
        lines.append(f"{edge} {row} {row + 1} {_numbers(step)} {_upper(noise.sigma(step))}")
    for closure in closures:
        if closure.accepted:
            ends = f"{edge} {closure.match} {closure.query}"
            lines.append(f"{ends} {_numbers(closure.relative)} {_upper(closure.sigma)}")
    _write(file, lines)


def write_tum(file: str | Path, poses: Poses, time: NDArray[np.floating]) -> None:
    """Write a TUM file with one line ``time x y z qx qy qz qw`` per frame.

    Args:
        file: Output file.
        poses: Poses, N×3 (written with z = 0) or N×7.
        time: Time stamps in seconds, N; if one is unknown, frame numbers are written instead.
    """
    stamps = np.asarray(time, np.float64)
    if not np.isfinite(stamps).all():
        stamps = np.arange(float(len(stamps)))
    spatial = as_spatial(poses)
    _write(file, [f"{stamp:.9f} {_numbers(pose)}" for stamp, pose in zip(stamps, spatial, strict=True)])


def write_json_lines(file: str | Path, closures: Iterable[Closure], names: Sequence[str] = ()) -> None:
    """Write one JSON object per proposal, accepted or not.

    Args:
        file: Output file.
        closures: Proposals.
        names: Names of all frames; added to each object if present.
    """
    _write(file, [json.dumps(closure_message(closure, names)) for closure in closures])


def closure_message(closure: Closure, names: Sequence[str] = ()) -> dict[str, Json]:
    """Return a closure as plain values for JSON, with the names of its frames if there are any."""
    pair = {"query_name": names[closure.query], "match_name": names[closure.match]} if names else {}
    return {**closure.to_dict(), **pair}


def _numbers(values: Poses) -> str:
    return " ".join(f"{number:.9g}" for number in values.tolist())


def _upper(sigma: Poses) -> str:
    """Format the upper triangle of a diagonal information matrix, row by row."""
    matrix = np.diag(1.0 / sigma**2)
    return _numbers(matrix[np.triu_indices(len(sigma))])


def _write(file: str | Path, lines: Sequence[str]) -> None:
    write_file(Path(file), "".join(line + "\n" for line in lines))
