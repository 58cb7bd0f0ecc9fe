"""Localization of a camera along a map: a Bayes filter over its frames, and averages of scores (SeqSLAM).

A belief is a probability for each frame of the map, and one for being outside of it. A step of odometry
moves it, an image weighs it. With probability p that the match is correct the camera is at the match;
otherwise the image provides no information:

    L_i = (1 − p) + p·N·w_i,      w: the matches, weighted by their probabilities, spread over their place.

So an image that is probably incorrect changes nothing, however similar it looks. In every step a fraction of
the belief (``lost``) is spread over the whole map, so that a few good images correct a false belief.

`PoseMotion` and `RouteMotion` predict the next frame as a sparse matrix over the map, from odometry or from
the order of frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.spatial import cKDTree

from kappaplace.data import Poses, as_planar, check_poses, compose, pose_positions
from kappaplace.errors import KappaPlaceError

MOST = 0.999
"""Largest probability that is assumed for a single image."""


Motion: TypeAlias = "PoseMotion | RouteMotion"
"""Prediction of the next frame."""


class Estimate(NamedTuple):
    """Estimated place of the camera."""

    frame: int
    """Most probable frame of the map."""
    probability: float
    """Probability of the place around it."""
    outside: float
    """Probability of being outside the map."""


class HistogramFilter:
    """Belief over the frames of a map; call `move` and `see` in turn."""

    def __init__(
        self, motion: Motion, place: csr_matrix, *, lost: float = 0.02, outside: float = 0.1
    ) -> None:
        """Start with a uniform belief over the map.

        Args:
            motion: Prediction of the next frame.
            place: Which frames show the same place, N×N (`place_matrix`).
            lost: Fraction of the belief that is spread over the whole map in every step.
            outside: Probability of being outside the map, at first and for the spread belief.

        Raises:
            KappaPlaceError: If sizes differ or a fraction is out of range.
        """
        if place.shape != (len(motion),) * 2:
            raise KappaPlaceError(
                f"place must have one row and column per frame ({len(motion)}), got shape {place.shape}."
            )
        if not (0 <= lost < 1 and 0 <= outside < 1):
            raise KappaPlaceError(
                f"lost and outside must be at least 0 and below 1, got {lost:g} and {outside:g}."
            )
        self.motion, self.place, self.lost, self.outside_share = motion, place, lost, outside
        self.reset()

    def reset(self) -> None:
        """Forget all observations."""
        count = len(self.motion)
        self.belief = np.full(count, (1 - self.outside_share) / count)
        self.outside = self.outside_share

    def move(self, step: Poses) -> None:
        """Apply the motion since the last image.

        Args:
            step: New pose relative to the last one (`data.poses.between`), 3 or 7 numbers.
        """
        self.advance(self.motion.matrix(step))

    def advance(self, matrix: csr_matrix) -> None:
        """Apply a motion matrix that was computed before, N×N."""
        count = len(self.belief)
        moved = matrix @ self.belief
        away = self.outside + max(0.0, float(self.belief.sum() - moved.sum()))  # left the map
        lost = self.lost
        self.belief = (1 - lost) * moved + lost * (1 - self.outside_share) / count
        self.outside = (1 - lost) * away + lost * self.outside_share
        self._normalize()

    def see(self, indices: NDArray[np.integer], probabilities: NDArray[np.floating]) -> None:
        """Apply an image.

        Args:
            indices: Matches of the image as frames of the map, K.
            probabilities: Probability that each match is correct, K.
        """
        self.belief = self.belief * likelihood(self.place, indices, probabilities)
        self.outside *= 1.0 - min(float(np.max(probabilities, initial=0.0)), MOST)
        self._normalize()

    @property
    def estimate(self) -> Estimate:
        """The most probable place and its probability."""
        around = self.place_sums
        best = int(np.argmax(around))
        return Estimate(int(self._peak(best)), float(around[best]), float(self.outside))

    @property
    def place_sums(self) -> NDArray[np.float64]:
        """Probability of the place around each frame, N."""
        return np.asarray((self.place > 0).astype(np.float64) @ self.belief)

    def _peak(self, best: int) -> int:
        members = self.place[best].indices
        return int(members[np.argmax(self.belief[members])]) if len(members) else best

    def _normalize(self) -> None:
        total = float(self.belief.sum() + self.outside)
        self.belief, self.outside = self.belief / total, self.outside / total


def likelihood(
    place: csr_matrix, indices: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return the likelihood of an image at every frame of the map, up to a factor.

    Args:
        place: Which frames show the same place, N×N (`place_matrix`).
        indices: Matches of the image, K.
        probabilities: Probability that each match is correct, K.

    Returns:
        L_i of the module description, N.

    Raises:
        KappaPlaceError: If the shapes differ or a probability is out of range.
    """
    matches, weights = np.asarray(indices, np.int64), np.asarray(probabilities, np.float64)
    if matches.ndim != 1 or matches.shape != weights.shape or not len(matches):
        raise KappaPlaceError(
            f"indices and probabilities need the same shape, got {matches.shape} and {weights.shape}."
        )
    if not np.isfinite(weights).all() or weights.min() < 0 or weights.max() > 1:
        raise KappaPlaceError(
            f"Probabilities of matches must be between 0 and 1, got {weights.min():g} to {weights.max():g}."
        )
    count, most = place.shape[0], min(float(weights.max()), MOST)
    if most == 0:
        return np.ones(count)
    spread = np.asarray(place[matches].T @ (weights / weights.sum()))
    return (1 - most) + most * count * spread


def place_matrix(near: NDArray[np.bool_] | NDArray[np.floating]) -> csr_matrix:
    """Normalize marks of frames that show the same place.

    Args:
        near: Which frames show the same place, or how much they do, N×N; the diagonal must be positive.

    Returns:
        The same matrix with rows that sum to 1.

    Raises:
        KappaPlaceError: If the diagonal is not positive or a value is negative.
    """
    marks = csr_matrix(np.asarray(near, np.float64))
    if (marks.diagonal() <= 0).any() or marks.data.min() < 0:
        raise KappaPlaceError(
            "near must be above 0 on the diagonal and 0 or more elsewhere, because a frame shows its own "
            "place."
        )
    sums = np.asarray(marks.sum(axis=1)).ravel()
    return csr_matrix(marks.multiply(1.0 / sums[:, None]))


def average_scores(
    similarities: NDArray[np.floating], length: int, speeds: Sequence[float] = (0.8, 0.9, 1.0, 1.1, 1.2)
) -> NDArray[np.float64]:
    """Average similarities along the best straight line of a route (SeqSLAM).

    Lines of the first queries are shorter; lines that would leave the map stay at its first frame.

    Args:
        similarities: Similarities of queries and map frames in order, N×R.
        length: Number of queries per line.
        speeds: Map frames per query frame.

    Returns:
        Mean similarity along the best line that ends at each query and map frame, N×R.

    Raises:
        KappaPlaceError: If the shape or length is invalid.
    """
    values = np.asarray(similarities, np.float64)
    if values.ndim != 2 or length < 1:
        raise KappaPlaceError(
            f"similarities must be N×R and length at least 1, got shape {values.shape} and {length}."
        )
    queries, references = values.shape
    columns = np.arange(references)
    best = np.full(values.shape, -np.inf)
    for speed in speeds if length > 1 else speeds[:1]:
        total, used = np.zeros_like(values), np.zeros((queries, 1))
        for back in range(length):
            shifted = np.maximum(columns - round(back * speed), 0)
            total[back:] += values[: queries - back][:, shifted]
            used[back:] += 1
        best = np.maximum(best, total / used)
    return best


NEIGHBORS = 6
"""Number of map frames over which a moved belief is spread."""
FARTHEST = 3.0
"""Standard deviations beyond which a frame cannot be reached: the camera has left the map."""


class PoseMotion:
    """Motion on a map with poses: the step of odometry is applied to every frame."""

    def __init__(self, poses: Poses, *, meters: float = 5.0, turn: float = 0.5) -> None:
        """Prepare a search in the poses of a map.

        Args:
            poses: Poses of the map frames, N×3 or N×7.
            meters: Standard deviation of a step in metres; at least the spacing of the frames.
            turn: Standard deviation of a step in radians.

        Raises:
            KappaPlaceError: If there are fewer than two poses.
        """
        self.poses = check_poses(poses, "poses of the map")
        if self.poses.ndim != 2 or len(self.poses) < 2:
            raise KappaPlaceError(
                f"poses must have at least two rows, got an array of shape {self.poses.shape}."
            )
        self.meters, self.turn = meters, turn
        self._tree = cKDTree(self._features(self.poses))
        gap = self._tree.query(self._features(self.poses), k=min(NEIGHBORS, len(self.poses)))[0]
        self._usual = float(np.median(np.exp(-0.5 * gap**2).sum(axis=1)))

    def __len__(self) -> int:
        return len(self.poses)

    def matrix(self, step: Poses) -> csr_matrix:
        """Return the motion matrix of a step.

        Args:
            step: New pose relative to the last one, 3 or 7 numbers.

        Returns:
            Probabilities of reaching a frame (row) from another (column), N×N. Columns sum to 1, or to less
            if the step leads out of the map.
        """
        moved = compose(self.poses, check_poses(step, "a step of odometry"))
        count = len(self.poses)
        gap, frames = self._tree.query(self._features(moved), k=min(NEIGHBORS, count))
        near = gap <= FARTHEST
        weight = np.where(near, np.exp(-0.5 * gap**2), 0.0)
        # Between two frames the density of the map is the usual one, beyond its end it decreases.
        weight /= np.maximum(weight.sum(axis=1, keepdims=True), self._usual / 2)
        columns = np.repeat(np.arange(count), weight.shape[1])
        return csr_matrix((weight.ravel(), (frames.ravel(), columns)), shape=(count, count))

    def _features(self, poses: Poses) -> NDArray[np.float64]:
        """Scale position and heading by their deviations, so that distances are comparable."""
        yaw = as_planar(poses)[:, 2:]
        return np.concatenate(
            [pose_positions(poses) / self.meters, np.cos(yaw) / self.turn, np.sin(yaw) / self.turn], 1
        )


class RouteMotion:
    """Motion on a map that is a route without poses: forward, at about the same speed."""

    def __init__(self, frames: int, *, speed: float = 1.0, deviation: float = 0.7) -> None:
        """Describe the route.

        Args:
            frames: Number of map frames, at least 2.
            speed: Map frames per query frame.
            deviation: Standard deviation of the speed.

        Raises:
            KappaPlaceError: If a value is out of range.
        """
        if frames < 2 or speed <= 0 or deviation <= 0:
            raise KappaPlaceError(
                "frames must be at least 2, and speed and deviation above 0, got "
                f"{frames}, {speed:g} and {deviation:g}."
            )
        self.frames, self.speed, self.deviation = frames, speed, deviation

    def __len__(self) -> int:
        return self.frames

    def matrix(self, step: Poses | None = None) -> csr_matrix:
        """Return the motion matrix, which is the same for every step, N×N."""
        reach = int(np.ceil(self.speed + FARTHEST * self.deviation))
        shifts = np.arange(0, reach + 1)
        weight = np.exp(-0.5 * ((shifts - self.speed) / self.deviation) ** 2)
        start = np.repeat(np.arange(self.frames), len(shifts))
        end = start + np.tile(shifts, self.frames)
        inside = end < self.frames
        values = np.tile(weight / weight.sum(), self.frames)[inside]
        return csr_matrix((values, (end[inside], start[inside])), shape=(self.frames, self.frames))
