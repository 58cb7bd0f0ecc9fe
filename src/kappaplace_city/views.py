"""Where and when photographs are taken: dense training views, references on a survey, queries off it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.errors import KappaPlaceError
from kappaplace_city.weather import Conditions, harsh, mild
from kappaplace_city.world import CELL, EAST, NORTH, PITCH, ROAD_WIDTH, split_number

if TYPE_CHECKING:
    from kappaplace_city.city import SyntheticCity


HEADING_BIN = 30.0  # degrees: the usual class bin


@dataclass(frozen=True, eq=False)
class CityViews:
    """N photographs that can be taken, and all that is known about them."""

    split: str
    positions: np.ndarray  # float64 N × 2: UTM east, north
    heading: np.ndarray  # float32 N: degrees clockwise from north, in [0, 360)
    is_query: np.ndarray  # bool N
    conditions: Conditions
    featureless: np.ndarray  # float32 N: share of wall columns that show a hedge or a blank wall
    aliased: np.ndarray  # float32 N: share of wall columns whose façades stand elsewhere as well
    image_seeds: np.ndarray  # int64 N
    city: SyntheticCity = field(repr=False)

    def __len__(self) -> int:
        return len(self.heading)

    @property
    def poses(self) -> np.ndarray:
        """float64 N × 3: east, north, heading."""
        return np.column_stack([self.positions, self.heading.astype(np.float64)])

    def select(self, rows: np.ndarray) -> CityViews:
        """The views of the given rows (indices or a mask)."""
        return CityViews(
            self.split,
            self.positions[rows],
            self.heading[rows],
            self.is_query[rows],
            self.conditions.take(rows),
            self.featureless[rows],
            self.aliased[rows],
            self.image_seeds[rows],
            self.city,
        )

    def render(
        self, size: int | tuple[int, int] = 128, rows: np.ndarray | None = None, workers: int | None = None
    ) -> np.ndarray:
        """The photographs, uint8 N × H × W × 3; only those of `rows` if given."""
        chosen = self if rows is None else self.select(rows)
        return chosen.city.render(chosen.poses, chosen.conditions, size, chosen.image_seeds, workers)


def _heading_bins(headings: int) -> np.ndarray:
    """First degree of the 30° bins that are photographed, evenly around."""
    if headings not in (1, 2, 3, 4, 6, 12):
        raise KappaPlaceError(f"The number of headings must divide the twelve 30° bins, got {headings}.")
    return np.arange(headings) * (360.0 / headings)


def training_poses(
    city: SyntheticCity, split: str, spacing: float, headings: int, per_class: int, rng: np.random.Generator
) -> np.ndarray:
    """`per_class` poses anywhere in each chosen cell of 10 m × 10 m × 30°: N × 3."""
    corners, axis = city.road_cells(split)
    along = np.take_along_axis(corners - corners.min(axis=0), axis[:, None], axis=1)[:, 0]
    corners = corners[along % spacing < CELL]
    bins = _heading_bins(headings)
    corner = np.repeat(corners, len(bins) * per_class, axis=0)
    first = np.tile(np.repeat(bins, per_class), len(corners))
    # Off the borders of the cell, so that rounding (file names keep centimetres) moves no view across.
    position = corner + rng.uniform(0.5, CELL - 0.5, corner.shape)
    return np.column_stack([position, first + rng.uniform(0.5, HEADING_BIN - 0.5, len(first))])


def reference_poses(city: SyntheticCity, split: str, spacing: float, headings: int) -> np.ndarray:
    """A survey along the middle of every street, `spacing` metres apart, in all chosen headings: M × 3."""
    origin = city.bounds(split)[0] - city.district(split).low
    lines = []
    for axis in (NORTH, EAST):
        along = np.arange(spacing / 2, city.blocks[axis] * PITCH[axis] + ROAD_WIDTH, spacing)
        if axis == EAST:  # junctions were passed on the streets that run north
            along = along[along % PITCH[EAST] >= ROAD_WIDTH]
        for street in range(city.blocks[1 - axis] + 1):
            points = np.empty((len(along), 2))
            points[:, axis] = along
            points[:, 1 - axis] = street * PITCH[1 - axis] + ROAD_WIDTH / 2
            lines.append(origin + points)
    points = np.concatenate(lines)
    heading = np.tile(_heading_bins(headings) + HEADING_BIN / 2, len(points))
    return np.column_stack([np.repeat(points, headings, axis=0), heading])


def query_poses(
    city: SyntheticCity, split: str, count: int, headings: int, rng: np.random.Generator
) -> np.ndarray:
    """Off the survey line and turned a little, spread evenly over the road: count × 3."""
    corners, axis = city.road_cells(split)
    rounds = [rng.permutation(len(corners)) for _ in range(-(-count // len(corners)))]
    chosen = np.concatenate([*rounds, np.empty(0, int)])[:count].astype(int)
    offset = rng.uniform(0, CELL, (count, 2))
    lateral = rng.choice([-1, 1], count) * rng.uniform(1.0, 4.0, count)
    offset[np.arange(count), 1 - axis[chosen]] = ROAD_WIDTH / 2 + lateral
    heading = rng.choice(_heading_bins(headings), count) + HEADING_BIN / 2 + rng.uniform(-12, 12, count)
    return np.column_stack([corners[chosen] + offset, heading])


def sample_views(
    city: SyntheticCity,
    split: str,
    *,
    spacing: float,
    headings: int,
    per_class: int,
    queries: int,
    strength: float,
    query_strength: float,
    seed: int,
) -> CityViews:
    """Choose poses and conditions of one split; `SyntheticCity.views` documents the options."""
    if not 1 <= spacing <= 30:
        raise KappaPlaceError(
            f"Views must be 1 to 30 m apart so that every query has references, got {spacing}."
        )
    if per_class < 1 or queries < 0:
        raise KappaPlaceError(
            f"Need at least 1 image per class and 0 queries, got {per_class} and {queries}."
        )
    if not (0 <= strength <= 1 and 0 <= query_strength <= 1):
        raise KappaPlaceError(f"Condition strengths lie in [0, 1], got {strength} and {query_strength}.")
    rng = np.random.default_rng([city.seed, 1, split_number(split), seed])
    if split == "train":
        poses = training_poses(city, split, max(spacing, CELL), headings, per_class, rng)
        is_query = np.zeros(len(poses), bool)
        conditions = mild(len(poses), rng, strength)
    else:
        references = reference_poses(city, split, spacing, headings)
        asked = query_poses(city, split, queries, headings, rng)
        poses = np.concatenate([references, asked])
        is_query = np.arange(len(poses)) >= len(references)
        survey = mild(len(references), rng, 0.25 * strength)
        conditions = Conditions.concatenate([survey, harsh(queries, rng, query_strength)])
    heading = poses[:, 2].astype(np.float32)
    featureless, aliased = city.ambiguity(poses[:, :2], heading)
    seeds = rng.integers(0, 2**31, len(poses))
    return CityViews(split, poses[:, :2], heading, is_query, conditions, featureless, aliased, seeds, city)
