"""A drive through the streets of a synthetic district: true poses, and odometry that drifts away from
them.

Descriptors of a drive without any image: a stated model of how places look, alike and damaged.

What a camera sees at s metres along a street, looking one way, is a direction μ on the sphere:

    μ ∝ √c·common + √(1 − c)·look(street, way, s)

with ``look`` a smooth random curve (Gaussian kernel of ``length`` metres), the same in one street and way
whenever it is passed. Of two *aliased* streets a share of the look is the same curve; *featureless* ones
share most of theirs with all others of their kind. On a junction every way of leaving it is a street of its
own.

A drive comes in stretches of weather: a share of them is damaged, with a level u in (0, 1] that pulls all
images towards one direction (night looks like night) and lowers κ:

    μ_u ∝ (1 − pull·u)·μ + pull·u·dark,    κ = κ_clear·(κ_dark/κ_clear)^u·e^ε,    z ~ vMF(μ_u, κ)

Known is z, and κ up to a factor e^η, as a trained head would tell it. Nothing here knows of loop closing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace import vmf
from kappaplace.data.poses import Poses, between, chain, wrap_angle
from kappaplace.errors import KappaPlaceError
from kappaplace.types import Embeddings
from kappaplace_city import SyntheticCity
from kappaplace_city.world import ALIASED, FEATURELESS, PITCH, ROAD_WIDTH, split_number

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
    return np.column_stack([middle + right * lateral[:, None], wrap_angle(yaw + wander)])


def segment_of(city: SyntheticCity, split: str, positions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Number of the street segment that each position lies on; −1 on junctions."""
    _, local = city.locate(positions)
    out = np.full(len(local), -1, np.int64)
    for number, segment in enumerate(city.district(split).segments):
        across = np.abs(local[:, 1 - segment.axis] - segment.start[1 - segment.axis])
        along = local[:, segment.axis] - segment.start[segment.axis]
        out[(across <= ROAD_WIDTH / 2) & (along >= 0) & (along <= segment.length)] = number
    return out


@dataclass(frozen=True)
class Looks:
    """The model's numbers."""

    dim: int = 128
    common: float = 0.2
    """Share that all images have in common: cosine between unrelated places."""
    length: float = 8.0
    """Metres over which a street changes its look."""
    aliased: float = 0.9
    """Share of the look that two aliased streets have in common."""
    featureless: float = 0.8
    """Share of the look that all featureless streets have in common."""
    clear: float = 500.0
    dark: float = 60.0
    """κ of undamaged images, and at the highest level."""
    damaged: float = 0.4
    """Share of stretches that are damaged."""
    pull: float = 0.6
    """How far the highest level draws images together."""
    stretch: float = 80.0
    """Metres of one weather."""
    spread: float = 0.2
    """Deviation of ε, image to image."""
    unsure: float = 0.2
    """Deviation of η, by which the stated κ is wrong."""


@dataclass(frozen=True, eq=False)
class SimulatedImages:
    """Embeddings of a drive and how damaged each image was."""

    embeddings: Embeddings
    level: NDArray[np.float64]


def look_at(
    city: SyntheticCity, split: str, drive: CityDrive, looks: Looks | None = None, *, seed: int = 0
) -> SimulatedImages:
    """What a model would say of every frame of a drive; the look of the city depends on the city alone."""
    looks = looks or Looks()
    rng = np.random.default_rng([seed, 72])
    mean = _looks(city, split, drive, looks)
    count, metres = len(mean), np.hypot(*np.diff(drive.truth[:, :2], axis=0).T)
    part = (np.concatenate([[0.0], np.cumsum(metres)]) // looks.stretch).astype(int)
    bad = rng.random(part.max() + 1) < looks.damaged
    level = np.where(bad, rng.uniform(0.2, 1.0, len(bad)), 0.0)[part]
    dark = _unit(np.random.default_rng([city.seed, 73]).normal(size=looks.dim))
    pulled = looks.pull * level[:, None]
    mean = _unit((1 - pulled) * mean + pulled * dark)
    kappa = looks.clear * (looks.dark / looks.clear) ** level * np.exp(rng.normal(0, looks.spread, count))
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    drawn = vmf.sample(torch.from_numpy(mean), torch.from_numpy(kappa), 1, generator)[:, 0].numpy()
    stated = kappa * np.exp(rng.normal(0, looks.unsure, count))
    return SimulatedImages(Embeddings(drawn.astype(np.float32), stated.astype(np.float32)), level)


def _looks(city: SyntheticCity, split: str, drive: CityDrive, looks: Looks) -> NDArray[np.float64]:
    """μ of each frame before weather, N×d."""
    segments = city.district(split).segments
    number = segment_of(city, split, drive.truth[:, :2])
    way = np.round(drive.truth[:, 2] / (np.pi / 2)).astype(int) % 4
    _, local = city.locate(drive.truth[:, :2])
    own = np.empty((len(number), looks.dim))
    shared = np.zeros_like(own)
    share = np.zeros(len(number))
    keys = np.where(number >= 0, number, len(segments) + _junction(local, city.blocks))
    for key in np.unique(keys):
        for direction in range(4):
            rows = np.flatnonzero((keys == key) & (way == direction))
            if not len(rows):
                continue
            along = local[rows][:, direction % 2]
            start = float(
                np.round(along / PITCH[direction % 2]).mean() * PITCH[direction % 2]
            )  # of a junction
            if key < len(segments):
                segment = segments[key]
                start = float(segment.start[segment.axis])
                share[rows] = {ALIASED: looks.aliased, FEATURELESS: looks.featureless}.get(segment.kind, 0.0)
                alike = segment.seed if segment.kind == ALIASED else -1
                curve = _curve((city.seed, 74, alike + 2, direction), looks)
                shared[rows] = curve(along - start)
            own[rows] = _curve((city.seed, 75, int(key), direction), looks)(along - start)
    common = _unit(np.random.default_rng([city.seed, 76]).normal(size=looks.dim))
    look = np.sqrt(share)[:, None] * shared + np.sqrt(1 - share)[:, None] * own
    return _unit(np.sqrt(looks.common) * common + np.sqrt(1 - looks.common) * _unit(look))


def _junction(local: NDArray[np.float64], blocks: tuple[int, int]) -> NDArray[np.int64]:
    east, north = np.round(local / PITCH).astype(int).T
    return east * (blocks[1] + 1) + north


class _curve:
    """A smooth random curve on the sphere: white noise every half length, seen through a Gaussian kernel."""

    def __init__(self, entropy: tuple[int, ...], looks: Looks) -> None:
        self.length = looks.length
        self.knots = np.arange(-60.0, 160.0, looks.length / 2)
        self.values = np.random.default_rng(entropy).normal(size=(len(self.knots), looks.dim))

    def __call__(self, along: NDArray[np.float64]) -> NDArray[np.float64]:
        # The product of two such kernels has √2 of the width, so cosines fall over ``length`` metres.
        kernel = np.exp(-0.5 * ((along[:, None] - self.knots) / (self.length / np.sqrt(2))) ** 2)
        return _unit(kernel @ self.values)


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)
