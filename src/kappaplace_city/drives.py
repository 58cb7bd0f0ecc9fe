"""Drives through the streets of a synthetic district: true poses, odometry with drift, and descriptors.

Descriptors need no images: they come from a model of the appearance of places. The view at s metres along a
street, in one direction, is a direction μ on the sphere:

    μ ∝ √c·common + √(1 − c)·look(street, direction, s)

``look`` is a smooth random curve (Gaussian kernel of ``length`` metres), the same for every pass through a
street in the same direction. Two *aliased* streets have part of their look in common, and all *featureless*
streets have most of it in common. On a junction, every exit is a separate street.

A drive consists of stretches of weather. Some are degraded, with a level u in (0, 1]. It pulls all images
towards the same direction, because all night images are similar, and lowers κ:

    μ_u ∝ (1 − pull·u)·μ + pull·u·dark,    κ = κ_clear·(κ_dark/κ_clear)^u·e^ε,    z ~ vMF(μ_u, κ)

The results are z, and κ up to a factor e^η, as from a trained head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace import vmf
from kappaplace.checks import within
from kappaplace.data.poses import Poses, between, chain, wrap_angle
from kappaplace.types import Embeddings
from kappaplace_city import SyntheticCity
from kappaplace_city.world import ALIASED, FEATURELESS, PITCH, ROAD_WIDTH, split_number

MOVES = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclass(frozen=True)
class Drift:
    """Errors of simulated odometry: noise of every step, and a bias that is constant over the drive."""

    meters: float = 0.02
    """Noise of the distance, as a fraction of it."""
    degrees: float = 0.25
    """Noise of the direction in degrees per step."""
    scale: float = 0.01
    """Standard deviation, over drives, of the scale error."""
    bias: float = 0.01
    """Standard deviation, over drives, of a constant turn in degrees per metre."""


@dataclass(frozen=True, eq=False)
class CityDrive:
    """True poses and odometry of a drive."""

    truth: Poses
    """True poses, N×3 (x, y, yaw): metres and radians in the city's frame."""
    odometry: Poses
    """Poses by odometry, N×3; the first is the true pose."""
    corners: NDArray[np.int64]
    """Junctions of the route, M×2 (street along north, street along east)."""

    @property
    def heading(self) -> NDArray[np.float64]:
        """Headings in degrees clockwise from north, N."""
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
    """Simulate a random drive without U-turns.

    The camera is on the right side of the road, with deviations of half a metre and two degrees. On a grid of
    a few blocks, the drive returns to earlier streets in both directions. Only the same direction looks the
    same.

    Args:
        city: The city.
        split: District: train, val or test.
        legs: Number of street segments.
        step: Distance between images in metres.
        seed: Random seed of the drive.
        drift: Errors of odometry.
        corners: Junctions of the route, M×2. Default: random.

    Returns:
        The drive.

    Raises:
        KappaPlaceError: If legs or step is out of range.
    """
    within(legs, "legs", 1)
    within(step, "step", 0.5, 20)
    rng = np.random.default_rng([seed, 71])
    if corners is None:
        corners = _corners(city.blocks, legs, rng)
    origin = city.origins[split_number(split)]
    points = origin + corners * PITCH + ROAD_WIDTH / 2
    truth = _along(points, step, rng)
    return CityDrive(truth, odometry_of(truth, drift or Drift(), rng), corners)


def odometry_of(truth: Poses, drift: Drift, rng: np.random.Generator) -> Poses:
    """Simulate wheel odometry of a drive.

    Args:
        truth: True poses, N×3.
        drift: Errors of odometry.
        rng: Random generator.

    Returns:
        Poses with drift, N×3.
    """
    steps = between(truth[:-1], truth[1:])
    length = np.hypot(steps[:, 0], steps[:, 1])
    scale = 1.0 + drift.scale * rng.normal()
    turn = np.radians(drift.bias) * rng.normal() * length
    noise = rng.normal(size=steps.shape) * np.column_stack(
        [drift.meters * length, drift.meters * length / 2, np.full(len(steps), np.radians(drift.degrees))]
    )
    return chain(truth[0], np.column_stack([steps[:, :2] * scale, steps[:, 2] + turn]) + noise)


def _corners(blocks: tuple[int, int], legs: int, rng: np.random.Generator) -> NDArray[np.int64]:
    limit = np.array(blocks)
    at = rng.integers(0, limit + 1)
    corners, last = [at], -1
    for _ in range(legs):
        exits = [
            number
            for number, move in enumerate(MOVES)
            if number != (last + 2) % 4 or last < 0
            if ((at + move >= 0) & (at + move <= limit)).all()
        ]
        # Straight on as often as all turns together: drives follow streets.
        weights = np.array([len(exits) if number == last else 1.0 for number in exits])
        last = int(rng.choice(exits, p=weights / weights.sum()))
        at = at + MOVES[last]
        corners.append(at)
    return np.array(corners, np.int64)


def _along(points: NDArray[np.float64], step: float, rng: np.random.Generator) -> Poses:
    """Return poses every ``step`` metres of the line through the points, on the right side of the road."""
    legs = np.diff(points, axis=0)
    length = np.hypot(*legs.T)
    ends = np.concatenate([[0.0], np.cumsum(length)])
    distance = np.arange(0.0, ends[-1], step)
    leg = np.clip(np.searchsorted(ends, distance, side="right") - 1, 0, len(legs) - 1)
    forward = legs[leg] / length[leg][:, None]
    right = np.stack([forward[:, 1], -forward[:, 0]], axis=1)
    middle = points[leg] + forward * (distance - ends[leg])[:, None]
    yaw = np.arctan2(forward[:, 1], forward[:, 0])
    lateral = 2.0 + np.clip(rng.normal(0.0, 0.5, len(distance)), -1.0, 1.0)
    wander = np.radians(np.clip(rng.normal(0.0, 2.0, len(distance)), -5.0, 5.0))
    return np.column_stack([middle + right * lateral[:, None], wrap_angle(yaw + wander)])


def segment_of(city: SyntheticCity, split: str, positions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Find the street segments of positions.

    Args:
        city: The city.
        split: District: train, val or test.
        positions: UTM metres, N×2.

    Returns:
        Numbers of the segments, N; −1 on junctions.
    """
    _, local = city.locate(positions)
    out = np.full(len(local), -1, np.int64)
    for number, segment in enumerate(city.district(split).segments):
        across = np.abs(local[:, 1 - segment.axis] - segment.start[1 - segment.axis])
        along = local[:, segment.axis] - segment.start[segment.axis]
        out[(across <= ROAD_WIDTH / 2) & (along >= 0) & (along <= segment.length)] = number
    return out


@dataclass(frozen=True)
class AppearanceModel:
    """Parameters of the appearance model."""

    dim: int = 128
    """Length of the descriptors."""
    common: float = 0.2
    """Fraction that all images have in common: cosine between unrelated places."""
    length: float = 8.0
    """Distance in metres over which the look of a street changes."""
    aliased: float = 0.9
    """Fraction of the look that two aliased streets have in common."""
    featureless: float = 0.8
    """Fraction of the look that all featureless streets have in common."""
    clear: float = 500.0
    """κ of images without degradation."""
    dark: float = 60.0
    """κ of images at the highest level of degradation."""
    degraded: float = 0.4
    """Fraction of stretches that are degraded."""
    pull: float = 0.6
    """Strength of the pull towards the same direction at the highest level."""
    stretch: float = 80.0
    """Length of a stretch of weather in metres."""
    spread: float = 0.2
    """Standard deviation of ε between images."""
    kappa_error: float = 0.2
    """Standard deviation of η, the error of the reported κ."""


@dataclass(frozen=True, eq=False)
class SimulatedImages:
    """Embeddings of a drive."""

    embeddings: Embeddings
    """Descriptors and κ of each image."""
    level: NDArray[np.float64]
    """Level of degradation of each image, N."""


def look_at(
    city: SyntheticCity,
    split: str,
    drive: CityDrive,
    model: AppearanceModel | None = None,
    *,
    seed: int = 0,
) -> SimulatedImages:
    """Simulate the embeddings of a drive; the look of the streets depends only on the city.

    Args:
        city: The city.
        split: District: train, val or test.
        drive: The drive.
        model: Parameters of the appearance model.
        seed: Random seed of weather and noise.

    Returns:
        The embeddings.
    """
    model = model or AppearanceModel()
    rng = np.random.default_rng([seed, 72])
    mean = _mean_directions(city, split, drive, model)
    count, meters = len(mean), np.hypot(*np.diff(drive.truth[:, :2], axis=0).T)
    part = (np.concatenate([[0.0], np.cumsum(meters)]) // model.stretch).astype(int)
    degraded = rng.random(part.max() + 1) < model.degraded
    level = np.where(degraded, rng.uniform(0.2, 1.0, len(degraded)), 0.0)[part]
    dark = _unit(np.random.default_rng([city.seed, 73]).normal(size=model.dim))
    pull = model.pull * level[:, None]
    mean = _unit((1 - pull) * mean + pull * dark)
    kappa = model.clear * (model.dark / model.clear) ** level * np.exp(rng.normal(0, model.spread, count))
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    samples = vmf.sample(torch.from_numpy(mean), torch.from_numpy(kappa), 1, generator)[:, 0].numpy()
    kappa = kappa * np.exp(rng.normal(0, model.kappa_error, count))
    return SimulatedImages(Embeddings(samples.astype(np.float32), kappa.astype(np.float32)), level)


def _mean_directions(
    city: SyntheticCity, split: str, drive: CityDrive, model: AppearanceModel
) -> NDArray[np.float64]:
    """Return μ of each image without weather, N×d."""
    segments = city.district(split).segments
    number = segment_of(city, split, drive.truth[:, :2])
    heading = np.round(drive.truth[:, 2] / (np.pi / 2)).astype(int) % 4
    _, local = city.locate(drive.truth[:, :2])
    own = np.empty((len(number), model.dim))
    shared = np.zeros_like(own)
    fraction = np.zeros(len(number))
    keys = np.where(number >= 0, number, len(segments) + _junction(local, city.blocks))
    for key in np.unique(keys):
        for direction in range(4):
            rows = np.flatnonzero((keys == key) & (heading == direction))
            if not len(rows):
                continue
            along = local[rows][:, direction % 2]
            start = float(np.round(along / PITCH[direction % 2]).mean() * PITCH[direction % 2])
            if key < len(segments):
                segment = segments[key]
                start = float(segment.start[segment.axis])
                common = {ALIASED: model.aliased, FEATURELESS: model.featureless}
                fraction[rows] = common.get(segment.kind, 0.0)
                seed = segment.seed if segment.kind == ALIASED else -1
                shared[rows] = _curve((city.seed, 74, seed + 2, direction), model, along - start)
            own[rows] = _curve((city.seed, 75, int(key), direction), model, along - start)
    everywhere = _unit(np.random.default_rng([city.seed, 76]).normal(size=model.dim))
    look = np.sqrt(fraction)[:, None] * shared + np.sqrt(1 - fraction)[:, None] * own
    return _unit(np.sqrt(model.common) * everywhere + np.sqrt(1 - model.common) * _unit(look))


def _junction(local: NDArray[np.float64], blocks: tuple[int, int]) -> NDArray[np.int64]:
    east, north = np.round(local / PITCH).astype(int).T
    return east * (blocks[1] + 1) + north


def _curve(
    entropy: tuple[int, ...], model: AppearanceModel, along: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Evaluate a smooth random curve on the sphere: white noise every half length, with a Gaussian kernel."""
    knots = np.arange(-60.0, 160.0, model.length / 2)
    values = np.random.default_rng(entropy).normal(size=(len(knots), model.dim))
    # The product of two such kernels has √2 of the width, so cosines fall over ``length`` metres.
    kernel = np.exp(-0.5 * ((along[:, None] - knots) / (model.length / np.sqrt(2))) ** 2)
    return _unit(kernel @ values)


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)
