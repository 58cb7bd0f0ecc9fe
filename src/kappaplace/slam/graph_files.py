"""Pose graphs and trajectories for other programs: g2o, TUM and JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import PLANAR, Poses, as_spatial, between
from kappaplace.files import write_file
from kappaplace.slam.graph_factors import OdometryNoise
from kappaplace.slam.types import Closure
from kappaplace.types import Json


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
