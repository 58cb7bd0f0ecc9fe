"""The map that grows with the drive: every frame so far, in memory, asked through the usual evidence.

Why not a `PlaceMap` on disk: a frame would be a segment, a swap of the manifest and a look at distinctiveness
each, tens of milliseconds for something that is only of use once the drive is over. Here a frame is a row of
an array that doubles when it is full, and the scores are those of `kappaplace.uncertainty`, asked of the same
`Evidence`; `export` writes what `kappaplace map import` makes a PlaceMap of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import Near, Poses, Source, as_planar, pose_positions
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.retrieval import ArrayReferences, Evidence, Queries, retrieve
from kappaplace.types import Embeddings

FIRST = 256
"""Rows that are set aside at first."""


class GrowingMap:
    """Frames in the order they came; the first n of them are a map like any other."""

    def __init__(self, radius: float, frames: int) -> None:
        """``radius`` in metres, or ``frames`` where poses are unknown: what shows one place."""
        self.radius, self.frames = radius, frames
        self.names: list[str] = []
        self.has_kappa: bool | None = None
        self.pose_size = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def descriptors(self) -> NDArray[np.float32]:
        return self._descriptors[: self._count]

    @property
    def kappa(self) -> NDArray[np.float64]:
        """NaN for a model without."""
        return self._kappa[: self._count]

    @property
    def poses(self) -> Poses:
        """As believed now; N×0 where there is no odometry."""
        return self._poses[: self._count]

    @property
    def way(self) -> NDArray[np.float64]:
        """Metres travelled up to each frame."""
        return self._way[: self._count]

    @property
    def time(self) -> NDArray[np.float64]:
        return self._time[: self._count]

    def append(
        self,
        descriptor: NDArray[np.floating],
        kappa: float | None,
        pose: Poses | None,
        way: float,
        time: float,
        name: str,
    ) -> None:
        """One more frame; it must be of the same kind as the first."""
        vector = np.asarray(descriptor, np.float32)
        if not self._count:
            self._start(vector, kappa, pose)
        size = 0 if pose is None else len(pose)
        if vector.shape != self._descriptors.shape[1:] or size != self.pose_size:
            raise KappaPlaceError(
                f"Frame {self._count} has a descriptor of shape {vector.shape} and {size} numbers of "
                f"odometry, the "
                f"first one had {self._descriptors.shape[1:]} and {self.pose_size}; feed frames of one kind."
            )
        if (kappa is not None) != self.has_kappa:
            raise KappaPlaceError(
                f"κ of frame {self._count} is {'given' if kappa is not None else 'missing'}, that of the "
                f"first was "
                f"{'given' if self.has_kappa else 'missing'}; feed frames of one model."
            )
        if not np.isfinite(vector).all() or abs(float(np.linalg.norm(vector)) - 1.0) > 1e-3:
            raise KappaPlaceError(
                f"The descriptor of frame {self._count} is not of unit length; normalise it."
            )
        if kappa is not None and not 0.0 < kappa < np.inf:
            raise KappaPlaceError(f"κ of frame {self._count} is {kappa}; it must be above 0 and finite.")
        if self._count == len(self._descriptors):
            self._grow()
        row = self._count
        self._descriptors[row], self._kappa[row] = vector, np.nan if kappa is None else kappa
        self._way[row], self._time[row] = way, time
        if pose is not None:
            self._poses[row] = pose
        self.names.append(name)
        self._count += 1

    def evidence(
        self, query: Queries, first: int, k: int, images: Sequence[Source] | None = None
    ) -> Evidence:
        """What is known of a query (1×d) against the first so many frames; ``images`` are those of all."""
        kappa = self.kappa[:first] if self.has_kappa else None
        references = ArrayReferences(
            Embeddings(self.descriptors[:first], kappa), neighborhood=self.near, paths=images
        )
        return retrieve(query, references, min(k, first))

    @property
    def near(self) -> Near:
        """Whether two frames show one place: by believed positions, or by the order of frames.

        Frames that were driven one soon after the other are near, whatever is believed of their positions.
        """
        if not self.pose_size:
            return Near.frames(self.frames)
        return Near.metres(pose_positions(self._poses), self.radius, self._way)

    def export(self, file: str | Path) -> Path:
        """All frames as an .npz that `kappaplace map import` reads; poses as believed now."""
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

        def write(part: Path) -> None:
            with part.open("wb") as stream:
                np.savez(stream, **columns)  # type: ignore[arg-type]  # NumPy's own words for arrays by name

        replace_file(file, write)
        return file

    def _start(self, vector: NDArray[np.float32], kappa: float | None, pose: Poses | None) -> None:
        if vector.ndim != 1:
            raise KappaPlaceError(
                f"A frame has one descriptor, a vector, not an array of shape {vector.shape}."
            )
        self.has_kappa, self.pose_size = kappa is not None, 0 if pose is None else len(pose)
        self._descriptors = np.empty((FIRST, len(vector)), np.float32)
        self._kappa, self._way, self._time = np.empty(FIRST), np.empty(FIRST), np.empty(FIRST)
        self._poses = np.empty((FIRST, self.pose_size))

    def _grow(self) -> None:
        for name in ("_descriptors", "_kappa", "_way", "_time", "_poses"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.empty_like(old)]))
