"""A drive through the streets of a synthetic district: true poses, and odometry that drifts away from
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.synthetic_city import SyntheticCity
from kappaplace.data.synthetic_city.world import PITCH, ROAD_WIDTH, split_number
from kappaplace.errors import KappaPlaceError
from kappaplace.slam.poses import Poses, between, chain, wrap

MOVES = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclass(frozen=True)
class Drift:
    """How odometry errs: noise of every step, and a bias that stays for the whole drive."""

    metres: float = 0.02
    """Noise of the distance, as a share of it."""
    degrees: float = 0.25
    """Noise of the direction, a step."""
    scale: float = 0.01
    """Spread of the wrong scale between drives."""
    bias: float = 0.01
    """Spread of the turn that is always there between drives, degrees a metre."""


@dataclass(frozen=True, eq=False)
class CityDrive:
    """What happened and what odometry says."""

    truth: Poses
    """N×3: metres and radians in the city's frame."""
    odometry: Poses
    """N×3: starts where the truth does."""
    corners: NDArray[np.int64]
    """The junctions that were passed, M×2 (street along north, street along east)."""

    @property
    def heading(self) -> NDArray[np.float64]:
        """Degrees clockwise from north, as photographs are taken."""
        return np.degrees(np.pi / 2 - self.truth[:, 2]) % 360.0


def drive_through(
    city: SyntheticCity,
    split: str = "test",
    *,
    legs: int = 60,
    step: float = 4.0,
    seed: int = 0,
    drift: Drift | None = None,
    corners: NDArray[np.int64] | None = None,
) -> CityDrive:
    """A random drive of so many street segments without turning round, an image every ``step`` metres.

    The camera keeps to the right, wavers by half a metre and two degrees, and cuts no corner. On a grid of a
    few blocks such a drive comes back to streets it knows in either direction; only the same direction shows
    the same.
    """
    if legs < 1 or not 0.5 <= step <= 20:
        raise KappaPlaceError(
            f"A drive has 1 leg or more and an image every 0.5 to 20 m, not {legs} and {step:g}."
        )
    rng = np.random.default_rng([seed, 71])
    if corners is None:
        corners = _corners(city.blocks, legs, rng)
    origin = city.origins[split_number(split)]
    points = origin + corners * PITCH + ROAD_WIDTH / 2
    truth = _along(points, step, rng)
    return CityDrive(truth, odometry_of(truth, drift or Drift(), rng), corners)


def odometry_of(truth: Poses, drift: Drift, rng: np.random.Generator) -> Poses:
    """The same way as counted by wheels: every step a little wrong, and all of them wrong alike."""
    steps = between(truth[:-1], truth[1:])
    length = np.hypot(steps[:, 0], steps[:, 1])
    scale = 1.0 + drift.scale * rng.normal()
    turn = np.radians(drift.bias) * rng.normal() * length
    noise = rng.normal(size=steps.shape) * np.column_stack(
        [drift.metres * length, drift.metres * length / 2, np.full(len(steps), np.radians(drift.degrees))]
    )
    return chain(truth[0], np.column_stack([steps[:, :2] * scale, steps[:, 2] + turn]) + noise)


def _corners(blocks: tuple[int, int], legs: int, rng: np.random.Generator) -> NDArray[np.int64]:
    limit = np.array(blocks)
    at = rng.integers(0, limit + 1)
    corners, last = [at], -1
    for _ in range(legs):
        ways = [
            way
            for way, move in enumerate(MOVES)
            if way != (last + 2) % 4 or last < 0
            if ((at + move >= 0) & (at + move <= limit)).all()
        ]
        # Straight on as often as all turns together: drives follow streets.
        weights = np.array([len(ways) if way == last else 1.0 for way in ways])
        last = int(rng.choice(ways, p=weights / weights.sum()))
        at = at + MOVES[last]
        corners.append(at)
    return np.array(corners, np.int64)


def _along(points: NDArray[np.float64], step: float, rng: np.random.Generator) -> Poses:
    """Poses every ``step`` metres of the line through these points, on the right of the road."""
    legs = np.diff(points, axis=0)
    length = np.hypot(*legs.T)
    ends = np.concatenate([[0.0], np.cumsum(length)])
    way = np.arange(0.0, ends[-1], step)
    leg = np.clip(np.searchsorted(ends, way, side="right") - 1, 0, len(legs) - 1)
    forward = legs[leg] / length[leg][:, None]
    right = np.stack([forward[:, 1], -forward[:, 0]], axis=1)
    middle = points[leg] + forward * (way - ends[leg])[:, None]
    yaw = np.arctan2(forward[:, 1], forward[:, 0])
    lateral = 2.0 + np.clip(rng.normal(0.0, 0.5, len(way)), -1.0, 1.0)
    wander = np.radians(np.clip(rng.normal(0.0, 2.0, len(way)), -5.0, 5.0))
    return np.column_stack([middle + right * lateral[:, None], wrap(yaw + wander)])


def segment_of(city: SyntheticCity, split: str, positions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Number of the street segment that each position lies on; −1 on junctions."""
    _, local = city.locate(positions)
    out = np.full(len(local), -1, np.int64)
    for number, segment in enumerate(city.district(split).segments):
        across = np.abs(local[:, 1 - segment.axis] - segment.start[1 - segment.axis])
        along = local[:, segment.axis] - segment.start[segment.axis]
        out[(across <= ROAD_WIDTH / 2) & (along >= 0) & (along <= segment.length)] = number
    return out
