"""Poses and conditions of photographs: dense training views, references on survey lines, queries off them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.checks import within
from kappaplace.errors import KappaPlaceError
from kappaplace_city.weather import Conditions, harsh, mild
from kappaplace_city.world import CELL, EAST, NORTH, PITCH, ROAD_WIDTH, split_number

if TYPE_CHECKING:
    from kappaplace_city.city import SyntheticCity


HEADING_BIN = 30.0  # degrees: the usual class bin


@dataclass(frozen=True, eq=False)
class CityViews:
    """N photographs that can be rendered, with their poses, conditions and difficulty."""

    split: str
    positions: np.ndarray  # float64 N × 2: UTM east, north
    heading: np.ndarray  # float32 N: degrees clockwise from north, in [0, 360)
    is_query: np.ndarray  # bool N
    conditions: Conditions
    featureless: np.ndarray  # float32 N: fraction of wall columns with a hedge or a blank wall
    aliased: np.ndarray  # float32 N: fraction of wall columns whose façades also exist elsewhere
    image_seeds: np.ndarray  # int64 N
    city: SyntheticCity = field(repr=False)

    def __len__(self) -> int:
        return len(self.heading)

    @property
    def poses(self) -> np.ndarray:
        """float64 N × 3: east, north, heading."""
        return np.column_stack([self.positions, self.heading.astype(np.float64)])

    def select(self, rows: np.ndarray) -> CityViews:
        """Return some of the views, by row numbers or a mask."""
        names = ("positions", "heading", "is_query", "featureless", "aliased", "image_seeds")
        columns = {name: getattr(self, name)[rows] for name in names}
        return replace(self, conditions=self.conditions.take(rows), **columns)

    def render(
        self, size: int | tuple[int, int] = 128, rows: np.ndarray | None = None, workers: int | None = None
    ) -> np.ndarray:
        """Render the photographs.

        Args:
            size: Pixels of a square image, or (height, width).
            rows: Row numbers or a mask. Default: all views.
            workers: Number of threads. Default: all cores.

        Returns:
            Images, uint8 N × H × W × 3.
        """
        views = self if rows is None else self.select(rows)
        return views.city.render(views.poses, views.conditions, size, views.image_seeds, workers)


MOST_QUERIES = 100_000


@dataclass(frozen=True)
class ViewOptions:
    """Options of `SyntheticCity.views`, which documents them."""

    spacing: float = 10.0
    headings: int = 4
    per_class: int = 12
    queries: int = 400
    strength: float = 0.7
    query_strength: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        within(self.spacing, "spacing", 1, 30)
        within(self.per_class, "per_class", 1)
        within(self.queries, "queries", 0, MOST_QUERIES)
        within(self.strength, "strength", 0, 1)
        within(self.query_strength, "query_strength", 0, 1)
        if self.headings not in (1, 2, 3, 4, 6, 12):
            raise KappaPlaceError(f"headings must be 1, 2, 3, 4, 6 or 12, got {self.headings}.")

    @property
    def bins(self) -> np.ndarray:
        """First degree of each photographed bin of 30°; bins are evenly spaced."""
        return np.arange(self.headings) * (360.0 / self.headings)


def training_poses(
    city: SyntheticCity, split: str, options: ViewOptions, rng: np.random.Generator
) -> np.ndarray:
    """Sample `per_class` random poses in each selected cell of 10 m × 10 m × 30°, N × 3."""
    corners, axis = city.road_cells(split)
    along = np.take_along_axis(corners - corners.min(axis=0), axis[:, None], axis=1)[:, 0]
    corners = corners[along % max(options.spacing, CELL) < CELL]
    corner = np.repeat(corners, options.headings * options.per_class, axis=0)
    first = np.tile(np.repeat(options.bins, options.per_class), len(corners))
    # Away from the borders of the cell, which rounding to centimetres in file names would cross.
    position = corner + rng.uniform(0.5, CELL - 0.5, corner.shape)
    return np.column_stack([position, first + rng.uniform(0.5, HEADING_BIN - 0.5, len(first))])


def reference_poses(city: SyntheticCity, split: str, options: ViewOptions) -> np.ndarray:
    """Return survey poses along the middle of every street, M × 3."""
    spacing = options.spacing
    origin = city.bounds(split)[0] - city.district(split).low
    lines = []
    for axis in (NORTH, EAST):
        along = np.arange(spacing / 2, city.blocks[axis] * PITCH[axis] + ROAD_WIDTH, spacing)
        if axis == EAST:  # junctions are on the streets that run north
            along = along[along % PITCH[EAST] >= ROAD_WIDTH]
        for street in range(city.blocks[1 - axis] + 1):
            points = np.empty((len(along), 2))
            points[:, axis] = along
            points[:, 1 - axis] = street * PITCH[1 - axis] + ROAD_WIDTH / 2
            lines.append(origin + points)
    points = np.concatenate(lines)
    heading = np.tile(options.bins + HEADING_BIN / 2, len(points))
    return np.column_stack([np.repeat(points, options.headings, axis=0), heading])


def query_poses(
    city: SyntheticCity, split: str, options: ViewOptions, rng: np.random.Generator
) -> np.ndarray:
    """Sample query poses, queries × 3: beside the survey line, slightly turned, evenly over the road."""
    count = options.queries
    corners, axis = city.road_cells(split)
    rounds = [rng.permutation(len(corners)) for _ in range(-(-count // len(corners)))]
    cells = np.concatenate([*rounds, np.empty(0, int)])[:count].astype(int)
    offset = rng.uniform(0, CELL, (count, 2))
    lateral = rng.choice([-1, 1], count) * rng.uniform(1.0, 4.0, count)
    offset[np.arange(count), 1 - axis[cells]] = ROAD_WIDTH / 2 + lateral
    heading = rng.choice(options.bins, count) + HEADING_BIN / 2 + rng.uniform(-12, 12, count)
    return np.column_stack([corners[cells] + offset, heading])


def sample_views(city: SyntheticCity, split: str, options: ViewOptions) -> CityViews:
    """Sample poses and conditions of one split."""
    rng = np.random.default_rng([city.seed, 1, split_number(split), options.seed])
    if split == "train":
        poses = training_poses(city, split, options, rng)
        is_query = np.zeros(len(poses), bool)
        conditions = mild(len(poses), rng, options.strength)
    else:
        references = reference_poses(city, split, options)
        poses = np.concatenate([references, query_poses(city, split, options, rng)])
        is_query = np.arange(len(poses)) >= len(references)
        survey = mild(len(references), rng, 0.25 * options.strength)
        conditions = Conditions.concatenate([survey, harsh(options.queries, rng, options.query_strength)])
    heading = poses[:, 2].astype(np.float32)
    featureless, aliased = city.ambiguity(poses[:, :2], heading)
    seeds = rng.integers(0, 2**31, len(poses))
    return CityViews(split, poses[:, :2], heading, is_query, conditions, featureless, aliased, seeds, city)
