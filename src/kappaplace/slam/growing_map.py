"""The map of a drive in progress: all frames so far, in memory, searched like any other map.

A `PlaceMap` on disk would need a segment and a new manifest per frame. This takes tens of milliseconds, and
the files are used only after the drive. Here a frame is a row of an array that doubles when it is full. The
scores are the same as those of a map. `GrowingMap.export` writes a file for `kappaplace map import`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.data import Near, Poses, Source, as_planar, pose_positions
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.retrieval import ArrayReferences, Evidence, Queries, retrieve
from kappaplace.types import Embeddings

FIRST = 256
"""Number of rows allocated at first."""


def save_arrays(file: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Replace an .npz file in one step.

    Args:
        file: File to write.
        arrays: Arrays by name.
    """

    def write(part: Path) -> None:
        with part.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]  # NumPy's own parameters come first

    replace_file(file, write)


class GrowingMap:
    """Frames in input order; the first n of them can be searched like a map."""

    def __init__(self, radius: float, frames: int) -> None:
        """Start an empty map.

        Args:
            radius: Distance in metres within which two frames show the same place.
            frames: Number of frames within which they do; used if poses are unknown.
        """
        self.radius, self.frames = radius, frames
        self.names: list[str] = []
        self.has_kappa: bool | None = None
        self.pose_size = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def descriptors(self) -> NDArray[np.float32]:
        """Unit vectors, N×d."""
        return self._descriptors[: self._count]

    @property
    def kappa(self) -> NDArray[np.float64]:
        """Concentrations, N; NaN if the model has no κ."""
        return self._kappa[: self._count]

    @property
    def poses(self) -> Poses:
        """Estimated poses, N×3 or N×7; N×0 without odometry."""
        return self._poses[: self._count]

    @property
    def distance(self) -> NDArray[np.float64]:
        """Distance travelled up to each frame, in metres."""
        return self._distance[: self._count]

    @property
    def time(self) -> NDArray[np.float64]:
        """Time stamp of each frame, in seconds."""
        return self._time[: self._count]

    def append(
        self,
        descriptor: NDArray[np.floating],
        kappa: float | None,
        pose: Poses | None,
        distance: float,
        time: float,
        name: str,
    ) -> None:
        """Add a frame of the same kind as the first one.

        Args:
            descriptor: Unit vector, d.
            kappa: Concentration; None if the model has no κ.
            pose: Estimated pose, 3 or 7 numbers; None without odometry.
            distance: Distance travelled so far, in metres.
            time: Time stamp in seconds.
            name: Name of the image, may be empty.

        Raises:
            KappaPlaceError: If the frame is invalid or does not fit the first one.
        """
        vector = np.asarray(descriptor, np.float32)
        if not self._count:
            self._start(vector, kappa, pose)
        size = 0 if pose is None else len(pose)
        if vector.shape != self._descriptors.shape[1:] or size != self.pose_size:
            raise KappaPlaceError(
                f"Frame {self._count} has a descriptor of shape {vector.shape} and a pose of {size} numbers, "
                f"expected {self._descriptors.shape[1:]} and {self.pose_size}. "
                "Pass frames like the first one."
            )
        if (kappa is not None) != self.has_kappa:
            raise KappaPlaceError(
                f"Frame {self._count} has {'a' if kappa is not None else 'no'} κ, unlike the first frame. "
                "Pass frames of the same model."
            )
        if not np.isfinite(vector).all() or abs(float(np.linalg.norm(vector)) - 1.0) > 1e-3:
            raise KappaPlaceError(
                f"The descriptor of frame {self._count} does not have unit length. Normalize it."
            )
        if kappa is not None and not 0.0 < kappa < np.inf:
            raise KappaPlaceError(f"κ of frame {self._count} must be above 0 and finite, got {kappa}.")
        if self._count == len(self._descriptors):
            self._grow()
        row = self._count
        self._descriptors[row], self._kappa[row] = vector, np.nan if kappa is None else kappa
        self._distance[row], self._time[row] = distance, time
        if pose is not None:
            self._poses[row] = pose
        self.names.append(name)
        self._count += 1

    def evidence(
        self, query: Queries, first: int, k: int, images: Sequence[Source] | None = None
    ) -> Evidence:
        """Search the first frames of the drive.

        Args:
            query: A single query.
            first: Number of frames to search.
            k: Number of matches.
            images: Images of all frames, for patch matching.

        Returns:
            The best ``min(k, first)`` matches.
        """
        kappa = self.kappa[:first] if self.has_kappa else None
        references = ArrayReferences(
            Embeddings(self.descriptors[:first], kappa), neighborhood=self.near, paths=images
        )
        return retrieve(query, references, min(k, first))

    @property
    def near(self) -> Near:
        """The rule that two frames show the same place: by estimated positions, or by the order of frames.

        Frames with a short distance travelled between them are near, whatever their estimated positions.
        """
        if not self.pose_size:
            return Near.frames(self.frames)
        return Near.meters(pose_positions(self._poses), self.radius, self._distance)

    def export(self, file: str | Path) -> Path:
        """Write all frames to an .npz file for `kappaplace map import`, with their estimated poses."""
        file = Path(file)
        columns: dict[str, NDArray[np.generic]] = {
            "name": np.array([name or f"{row:07d}" for row, name in enumerate(self.names)]),
            "descriptors": self.descriptors,
            "time": self.time,
        }
        if self.has_kappa:
            columns["kappa"] = self.kappa.astype(np.float32)
        if self.pose_size:
            ground = as_planar(self.poses)
            columns |= {"x": ground[:, 0], "y": ground[:, 1]}
            columns["heading"] = np.degrees(np.pi / 2 - ground[:, 2]) % 360.0
        save_arrays(file, columns)
        return file

    def _start(self, vector: NDArray[np.float32], kappa: float | None, pose: Poses | None) -> None:
        if vector.ndim != 1:
            raise KappaPlaceError(f"The descriptor of a frame must be a vector, got shape {vector.shape}.")
        self.has_kappa, self.pose_size = kappa is not None, 0 if pose is None else len(pose)
        self._descriptors = np.empty((FIRST, len(vector)), np.float32)
        self._kappa, self._distance, self._time = np.empty(FIRST), np.empty(FIRST), np.empty(FIRST)
        self._poses = np.empty((FIRST, self.pose_size))

    def _grow(self) -> None:
        for name in ("_descriptors", "_kappa", "_distance", "_time", "_poses"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.empty_like(old)]))
