"""Localization of a camera along a map: a Bayes filter over its places, forward or forward and backward.

A belief is a probability for each place of the map, and one for being outside of it. A step moves it, an
image weighs it. An image whose best match is correct with probability p has the likelihoods

    r·p·w_i + (1 − r)·(1 − p)·m   at place i,      (1 − p)·m   outside the map,

where w_i is the weight of the matches at place i, at most 1, and r the fraction of images on the map whose
best match is correct (`RECALL`). m is the largest belief in one place before the image, of all belief inside
the map: a match at an expected place says nothing if many places are expected. So p = 0.5 is evidence neither
for nor against being on the map, and many images that match one place with low probabilities are evidence
against it: look-alikes persist from image to image, so their number must not count. In every step a fraction
of the belief (``lost``) is spread over the whole map, so that a few good images correct a false belief.

`WalkMotion`, `PoseMotion` and `RouteMotion` predict the next place as a sparse matrix over the map, from
distances, from odometry or from the order of frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.spatial import cKDTree

from kappaplace.checks import Floats
from kappaplace.data.poses import Poses, as_planar, check_poses, compose, pose_positions
from kappaplace.errors import KappaPlaceError

MOST = 0.999
"""Largest probability that is assumed for a single image."""
RECALL = 0.6
"""Fraction of images on the map whose best match is correct."""
BLOCK = 64
"""Number of images that are smoothed at once; each sees this many later ones, too."""


Motion: TypeAlias = "PoseMotion | RouteMotion | WalkMotion"
"""Prediction of the next place."""


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
        self._around = csr_matrix((place > 0).astype(np.float64))
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
        self.weigh(likelihood(self.place, indices, probabilities))

    def weigh(self, seen: Likelihood | None) -> tuple[Floats, float]:
        """Apply the likelihood of an image; None changes nothing.

        Args:
            seen: The likelihood.

        Returns:
            The factors of the belief at every frame, N, and outside the map.
        """
        if seen is None:
            return np.ones(len(self.belief)), 1.0
        expected = float(self.place_sums.max()) / max(float(self.belief.sum()), np.finfo(float).tiny)
        inside, outside = seen.matched + seen.missed * expected, seen.outside * expected
        self.belief, self.outside = self.belief * inside, self.outside * outside
        self._normalize()
        return inside, outside

    @property
    def estimate(self) -> Estimate:
        """The most probable place and its probability."""
        around = self.place_sums
        best = int(np.argmax(around))
        return Estimate(int(self._peak(best)), float(around[best]), float(self.outside))

    @property
    def place_sums(self) -> NDArray[np.float64]:
        """Probability of the place around each frame, N."""
        return np.asarray(self._around @ self.belief)

    def _peak(self, best: int) -> int:
        members = self.place[best].indices
        return int(members[np.argmax(self.belief[members])]) if len(members) else best

    def smooth(self, images: Iterable[tuple[csr_matrix | None, Likelihood | None]]) -> Iterator[Estimate]:
        """Estimate the place of each image from the images before and after it (forward–backward).

        Args:
            images: Motion matrix from the previous image (None for the first), and likelihood of the image.

        Yields:
            One estimate per image, in order. Each is based on at least `BLOCK` later images, if there are as
            many. `belief` and `outside` are the smoothed ones until the next estimate.
        """
        self.reset()
        window: list[_Step] = []
        for matrix, seen in images:
            if matrix is not None:
                self.advance(matrix)
            window.append(_Step(matrix, self.weigh(seen), self.belief, self.outside))
            if len(window) == 2 * BLOCK:
                yield from self._backward(window, BLOCK)
                self.belief, self.outside = window[-1].belief, window[-1].outside
                window = window[BLOCK:]
        yield from self._backward(window, len(window))

    def _backward(self, window: list[_Step], count: int) -> Iterator[Estimate]:
        """Yield the smoothed estimates of the first images of a window."""
        later, outside = np.ones(len(self.motion)), 1.0
        messages = []
        for step in reversed(window):
            messages.append((later, outside))
            if step.matrix is None:
                break
            later, outside = later * step.factors[0], outside * step.factors[1]
            spread = self.lost * ((1 - self.outside_share) * later.mean() + self.outside_share * outside)
            leaving = 1 - np.asarray(step.matrix.sum(axis=0)).ravel()
            moved = step.matrix.T @ later + np.maximum(leaving, 0.0) * outside
            later, outside = (1 - self.lost) * moved + spread, (1 - self.lost) * outside + spread
            total = max(float(later.max()), outside)
            later, outside = later / total, outside / total
        for step, (later, outside) in zip(window[:count], reversed(messages), strict=False):
            self.belief, self.outside = step.belief * later, step.outside * outside
            self._normalize()
            yield self.estimate

    def _normalize(self) -> None:
        total = float(self.belief.sum() + self.outside)
        self.belief, self.outside = self.belief / total, self.outside / total


class Likelihood(NamedTuple):
    """Likelihood of an image, up to a common factor, in the terms of the module description."""

    matched: Floats
    """r·p·w_i at every frame of the map, N."""
    missed: float
    """(1 − r)·(1 − p)."""
    outside: float
    """1 − p."""


class _Step(NamedTuple):
    """An image of a sequence, and the belief after it."""

    matrix: csr_matrix | None
    factors: tuple[Floats, float]
    belief: Floats
    outside: float


def likelihood(
    place: csr_matrix, indices: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> Likelihood:
    """Return the likelihood of an image on the map and outside of it.

    Args:
        place: Which frames show the same place, N×N (`place_matrix`).
        indices: Matches of the image, K.
        probabilities: Probability that each match is correct, K; the largest is that of the best match.

    Returns:
        The terms of the module description.

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
    most = min(max(float(weights.max()), 1 - MOST), MOST)
    rows = place[matches]
    peaks = np.maximum(np.asarray(rows.max(axis=1).toarray()).ravel(), np.finfo(float).tiny)
    spread = np.asarray(rows.T @ (weights / peaks / max(float(weights.sum()), np.finfo(float).tiny)))
    return Likelihood(RECALL * most * np.minimum(spread, 1.0), (1 - RECALL) * (1 - most), 1 - most)


def place_matrix(near: NDArray[np.bool_] | NDArray[np.floating] | csr_matrix) -> csr_matrix:
    """Normalize marks of frames that show the same place.

    Args:
        near: Which frames show the same place, or how much they do, N×N, dense or sparse; the diagonal must
            be positive.

    Returns:
        The same matrix with rows that sum to 1.

    Raises:
        KappaPlaceError: If the diagonal is not positive or a value is negative.
    """
    marks = csr_matrix(near, dtype=np.float64)
    if (marks.diagonal() <= 0).any() or marks.data.min() < 0:
        raise KappaPlaceError(
            "near must be above 0 on the diagonal and 0 or more elsewhere, because a frame shows its own "
            "place."
        )
    sums = np.asarray(marks.sum(axis=1)).ravel()
    return csr_matrix(marks.multiply(1.0 / sums[:, None]))


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


class WalkMotion:
    """Motion on a map with positions, in any direction: nearby places are more probable than distant ones."""

    def __init__(self, positions: Floats, meters: float) -> None:
        """Describe the map.

        Args:
            positions: Positions of the places, N×2.
            meters: Standard deviation of a step.

        Raises:
            KappaPlaceError: If the step is not above 0.
        """
        if not meters > 0:
            raise KappaPlaceError(f"The step must be above 0 metres, got {meters:g}.")
        self.positions, self.meters = positions, meters

    def __len__(self) -> int:
        return len(self.positions)

    def matrix(self, step: Poses | None = None) -> csr_matrix:
        """Return the motion matrix, which is the same for every step, N×N."""
        return csr_matrix(place_matrix(nearby(self.positions, FARTHEST * self.meters, self.meters)).T)


MOST_PAIRS = 40_000_000
"""Largest number of pairs of places that are near each other: about half a gigabyte."""


def nearby(positions: Floats, reach: float, deviation: float) -> csr_matrix:
    """Return weights of places that are near each other; they decrease with the distance.

    Args:
        positions: Positions of the places, N×2.
        reach: Largest distance in metres.
        deviation: Standard deviation of the weights in metres.

    Returns:
        Weights from 0 to 1, N×N; 1 on the diagonal.

    Raises:
        KappaPlaceError: If too many places are near each other.
    """
    tree = cKDTree(positions)
    if (pairs := int(tree.count_neighbors(tree, reach))) > MOST_PAIRS:
        raise KappaPlaceError(
            f"{pairs:,} pairs of places are at most {reach:g} m apart, which is too many for a sequence. "
            "Pass a smaller --step."
        )
    found = tree.sparse_distance_matrix(tree, reach, output_type="ndarray")
    values = np.maximum(np.exp(-0.5 * (found["v"] / deviation) ** 2), np.finfo(np.float32).tiny)
    return csr_matrix((values, (found["i"], found["j"])), shape=(len(positions),) * 2)
