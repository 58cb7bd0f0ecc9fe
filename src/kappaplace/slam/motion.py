"""Where a camera may be next, as a sparse matrix over the frames of a map: by odometry, or by their order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.spatial import cKDTree

from kappaplace.errors import KappaPlaceError
from kappaplace.slam.poses import Poses, as_planar, checked, compose, positions

NEIGHBOURS = 6
"""Frames of the map that a moved belief is spread over."""
FARTHEST = 3.0
"""Deviations beyond which a frame is not where one came to: then one has left the map."""


class PoseMotion:
    """Maps whose frames have poses: what was driven is put after every one of them."""

    def __init__(self, poses: Poses, *, metres: float = 5.0, turn: float = 0.5) -> None:
        """Deviations of a step that ends between frames: ``metres`` (at least their spacing) and ``turn``
        radians.
        """
        self.poses = checked(poses, "poses of the map")
        if self.poses.ndim != 2 or len(self.poses) < 2:
            raise KappaPlaceError(f"A map needs two poses or more, got an array of shape {self.poses.shape}.")
        self.metres, self.turn = metres, turn
        self._tree = cKDTree(self._features(self.poses))
        own = self._tree.query(self._features(self.poses), k=min(NEIGHBOURS, len(self.poses)))[0]
        self._usual = float(np.median(np.exp(-0.5 * own**2).sum(axis=1)))

    def __len__(self) -> int:
        return len(self.poses)

    def matrix(self, step: Poses) -> csr_matrix:
        """To (row) from (column): columns sum to 1, or to less where the step leads out of the map."""
        moved = compose(self.poses, checked(step, "a step of odometry"))
        count = len(self.poses)
        gap, found = self._tree.query(self._features(moved), k=min(NEIGHBOURS, count))
        near = gap <= FARTHEST
        weight = np.where(near, np.exp(-0.5 * gap**2), 0.0)
        # Between two frames there is as much of the map around as usual, beyond its end ever less.
        weight /= np.maximum(weight.sum(axis=1, keepdims=True), self._usual / 2)
        columns = np.repeat(np.arange(count), weight.shape[1])
        return csr_matrix((weight.ravel(), (found.ravel(), columns)), shape=(count, count))

    def _features(self, poses: Poses) -> NDArray[np.float64]:
        """Position and direction in deviations, so that distance is comparable."""
        yaw = as_planar(poses)[:, 2:]
        return np.concatenate(
            [positions(poses) / self.metres, np.cos(yaw) / self.turn, np.sin(yaw) / self.turn], 1
        )


class RouteMotion:
    """Maps that are one route without poses: forward by some frames, as fast as then or a little
    otherwise.
    """

    def __init__(self, frames: int, *, speed: float = 1.0, deviation: float = 0.7) -> None:
        """``speed``: frames of the map that pass while one of now does."""
        if frames < 2 or speed <= 0 or deviation <= 0:
            raise KappaPlaceError("A route needs two frames or more, and speeds above 0.")
        self.frames, self.speed, self.deviation = frames, speed, deviation

    def __len__(self) -> int:
        return self.frames

    def matrix(self, step: Poses | None = None) -> csr_matrix:
        """As above; what was driven is not known, so every step is alike."""
        reach = int(np.ceil(self.speed + FARTHEST * self.deviation))
        shifts = np.arange(0, reach + 1)
        weight = np.exp(-0.5 * ((shifts - self.speed) / self.deviation) ** 2)
        start = np.repeat(np.arange(self.frames), len(shifts))
        end = start + np.tile(shifts, self.frames)
        inside = end < self.frames
        values = np.tile(weight / weight.sum(), self.frames)[inside]
        return csr_matrix((values, (end[inside], start[inside])), shape=(self.frames, self.frames))
