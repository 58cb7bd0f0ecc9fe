"""Descriptors of a drive without any image: a stated model of how places look, alike and damaged.

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
from kappaplace.data.synthetic_city import SyntheticCity
from kappaplace.data.synthetic_city.world import ALIASED, FEATURELESS, PITCH
from kappaplace.slam.city_drive import CityDrive, segment_of
from kappaplace.types import Embeddings


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
