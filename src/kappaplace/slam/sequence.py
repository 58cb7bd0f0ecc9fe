"""Where along a map is the camera? A Bayes filter over its frames, beside averages of scores (SeqSLAM).

A belief is a probability for each frame of the map, and one for being nowhere in it. A step of odometry
moves it, an image weighs it: with the probability p that its match is right the camera is at the match, else
the image says nothing,

    L_i = (1 − p) + p·N·w_i,      w: the matches, in shares of their probabilities, spread over their place.

So an image that is probably wrong changes nothing, however similar it looks: that is what the calibration is
for. Whatever is believed, a little of it is given up in every step (``lost``) and spread over the whole map:
a wrong belief is left behind after a few good images.

Where a camera may be next, as a sparse matrix over the frames of a map: by odometry, or by their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.spatial import cKDTree

from kappaplace.data import Poses, as_planar, check_poses, compose, pose_positions
from kappaplace.errors import KappaPlaceError

MOST = 0.999
"""Largest probability that a single image is believed to have."""


class Motion(Protocol):
    """Where one may be next; `PoseMotion` and `RouteMotion`."""

    def __len__(self) -> int: ...

    def matrix(self, step: Poses) -> csr_matrix: ...


class Estimate(NamedTuple):
    """Where the camera is believed to be."""

    frame: int
    """Of the map."""
    probability: float
    """Of the place around it."""
    outside: float
    """Of being nowhere in the map."""


class HistogramFilter:
    """A belief over the frames of a map; feed it with `move` and `see` in turn."""

    def __init__(
        self, motion: Motion, place: csr_matrix, *, lost: float = 0.02, outside: float = 0.1
    ) -> None:
        """``place`` (`place_matrix`) says which frames show one place; ``outside`` is believed at first and
        of the lost.
        """
        if place.shape != (len(motion),) * 2:
            raise KappaPlaceError(f"A map of {len(motion)} frames has places of the shape {place.shape}.")
        if not (0 <= lost < 1 and 0 <= outside < 1):
            raise KappaPlaceError("The shares of lost and outside lie in [0, 1).")
        self.motion, self.place, self.lost, self.outside_share = motion, place, lost, outside
        self.reset()

    def reset(self) -> None:
        """Know nothing."""
        count = len(self.motion)
        self.belief = np.full(count, (1 - self.outside_share) / count)
        self.outside = self.outside_share

    def move(self, step: Poses) -> None:
        """What was driven since the last image, as seen from there (`poses.between`)."""
        self.advance(self.motion.matrix(step))

    def advance(self, matrix: csr_matrix) -> None:
        """The same with a matrix that is ready."""
        count = len(self.belief)
        moved = matrix @ self.belief
        away = self.outside + max(0.0, float(self.belief.sum() - moved.sum()))  # led out of the map
        back = self.lost
        self.belief = (1 - back) * moved + back * (1 - self.outside_share) / count
        self.outside = (1 - back) * away + back * self.outside_share
        self._normalise()

    def see(self, indices: NDArray[np.integer], probabilities: NDArray[np.floating]) -> None:
        """The matches of an image (frames of the map, K) and the probability that each is right (K)."""
        self.belief = self.belief * likelihood(self.place, indices, probabilities)
        self.outside *= 1.0 - min(float(np.max(probabilities, initial=0.0)), MOST)
        self._normalise()

    @property
    def estimate(self) -> Estimate:
        """The place that has most of the belief, and how much that is."""
        around = self.place_sums
        best = int(np.argmax(around))
        return Estimate(int(self._peak(best)), float(around[best]), float(self.outside))

    @property
    def place_sums(self) -> NDArray[np.float64]:
        """Belief in the place around each frame."""
        return np.asarray((self.place > 0).astype(np.float64) @ self.belief)

    def _peak(self, best: int) -> int:
        members = self.place[best].indices
        return int(members[np.argmax(self.belief[members])]) if len(members) else best

    def _normalise(self) -> None:
        total = float(self.belief.sum() + self.outside)
        self.belief, self.outside = self.belief / total, self.outside / total


def likelihood(
    place: csr_matrix, indices: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> NDArray[np.float64]:
    """L of every frame of the map, up to a factor; see the top of this file."""
    found, sure = np.asarray(indices, np.int64), np.asarray(probabilities, np.float64)
    if found.ndim != 1 or found.shape != sure.shape or not len(found):
        raise KappaPlaceError(
            f"Matches are K frames and K probabilities, got {found.shape} and {sure.shape}."
        )
    if not np.isfinite(sure).all() or sure.min() < 0 or sure.max() > 1:
        raise KappaPlaceError("Probabilities of matches must lie between 0 and 1.")
    count, most = place.shape[0], min(float(sure.max()), MOST)
    if most == 0:
        return np.ones(count)
    spread = np.asarray(place[found].T @ (sure / sure.sum()))
    return (1 - most) + most * count * spread


def place_matrix(near: NDArray[np.bool_] | NDArray[np.floating]) -> csr_matrix:
    """Each frame's place as a row that sums to 1, from which frames (N×N) show one, or how much they do."""
    marks = csr_matrix(np.asarray(near, np.float64))
    if (marks.diagonal() <= 0).any() or marks.data.min() < 0:
        raise KappaPlaceError(
            "Every frame shows its own place at least; mark the diagonal, with nothing below 0."
        )
    sums = np.asarray(marks.sum(axis=1)).ravel()
    return csr_matrix(marks.multiply(1.0 / sums[:, None]))


def average_scores(
    similarities: NDArray[np.floating], length: int, speeds: Sequence[float] = (0.8, 0.9, 1.0, 1.1, 1.2)
) -> NDArray[np.float64]:
    """SeqSLAM: of each query and map frame, the mean similarity along the best straight line back from there.

    ``similarities`` are N×R of frames in order; lines reach ``length`` queries back at each speed. Queries
    at the very start have shorter lines; those that would leave the map stay at its first frame.
    """
    values = np.asarray(similarities, np.float64)
    if values.ndim != 2 or length < 1:
        raise KappaPlaceError(f"Averages need N×R similarities and a length of 1 or more, not {length}.")
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
        self.poses = check_poses(poses, "poses of the map")
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
        moved = compose(self.poses, check_poses(step, "a step of odometry"))
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
            [pose_positions(poses) / self.metres, np.cos(yaw) / self.turn, np.sin(yaw) / self.turn], 1
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
