"""The synthetic city: three separate districts, and the camera that photographs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

from kappaplace.checks import within
from kappaplace.errors import KappaPlaceError
from kappaplace_city import weather
from kappaplace_city.render import Camera, Photos, Scenery, draw, paint_scenery, to_image, wall_kinds
from kappaplace_city.views import CityViews, ViewOptions, sample_views
from kappaplace_city.weather import Conditions
from kappaplace_city.world import (
    ALIASED,
    CELL,
    EAST,
    FEATURELESS,
    NORTH,
    PITCH,
    ROAD_WIDTH,
    SPLITS,
    District,
    on_street,
    plan_district,
    split_number,
)

ORIGIN = np.array([550_000.0, 4_180_000.0])  # UTM zone 10 S; whole class cells
UTM_ZONE = (10, "S")
GAP = 500.0  # metres between districts
_PIXELS_PER_BLOCK = 32 * 64 * 64  # limits the memory of one worker to a few tens of megabytes
_SEEDS_PER_DISTRICT = 1_000_000


class SyntheticCity:
    """A street world that depends only on a seed: the same seed gives the same bytes.

    Args:
        seed: Random seed of the city, 0 or more.
        blocks: Building blocks per district, along east (80 m each) and north (60 m each).
        aliased: Fraction of street segments that look exactly like another one of the district.
        featureless: Fraction of street segments between hedges or blank walls.
        camera: Height above the road and field of view.

    Raises:
        KappaPlaceError: If an argument is out of range.

    >>> views = SyntheticCity(seed=0, blocks=(1, 1)).views("val", spacing=30.0, queries=2)
    >>> images = views.render(16)
    >>> images.shape == (len(views.positions), 16, 16, 3), int(views.is_query.sum())
    (True, 2)
    """

    def __init__(
        self,
        seed: int = 0,
        blocks: tuple[int, int] = (3, 3),
        *,
        aliased: float = 0.15,
        featureless: float = 0.15,
        camera: Camera | None = None,
    ) -> None:
        within(seed, "seed", 0)
        if len(blocks) != 2 or not all(1 <= count <= 64 for count in blocks):
            raise KappaPlaceError(f"blocks must be two numbers between 1 and 64, got {blocks}.")
        within(aliased, "aliased", 0, 1)
        within(featureless, "featureless", 0, 1)
        within(aliased + featureless, "aliased + featureless", 0, 1)
        self.seed = seed
        self.blocks = (int(blocks[0]), int(blocks[1]))
        self.aliased = aliased
        self.featureless = featureless
        self.camera = camera or Camera()
        self._districts = tuple(
            plan_district(self.blocks, number * _SEEDS_PER_DISTRICT, (seed, 0, number), aliased, featureless)
            for number in range(len(SPLITS))
        )
        self._scenery: dict[int, Scenery] = {}

    @cached_property
    def origins(self) -> np.ndarray:
        """UTM (east, north) of the origins of the three districts, 3 × 2 float64."""
        step = np.ceil(((self.blocks[0] + 1) * PITCH[0] + GAP) / 10) * 10
        return ORIGIN + np.arange(len(SPLITS))[:, None] * [step, 0.0]

    def district(self, split: str) -> District:
        """Return the plan of a split's district.

        Args:
            split: train, val or test.

        Returns:
            The plan.
        """
        return self._districts[split_number(split)]

    def bounds(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds of a split's district.

        Args:
            split: train, val or test.

        Returns:
            South-west and north-east corner in UTM metres.
        """
        district, origin = self.district(split), self.origins[split_number(split)]
        return origin + district.low, origin + district.high

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the district of positions.

        Args:
            positions: UTM metres, N × 2; all must be on a street.

        Returns:
            Number of the district (N) and local metres (N × 2).

        Raises:
            KappaPlaceError: If a position is not on a street.
        """
        positions = np.asarray(positions, np.float64)
        if positions.ndim != 2 or positions.shape[1] != 2:
            raise KappaPlaceError(f"positions must be N × 2 (east, north), got shape {positions.shape}.")
        number = np.full(len(positions), -1)
        local = np.zeros_like(positions)
        for candidate, district in enumerate(self._districts):
            offset = positions - self.origins[candidate]
            free = on_street(district, offset)
            number[free] = candidate
            local[free] = offset[free]
        lost = np.flatnonzero(number < 0)
        if len(lost):
            east, north = positions[lost[0]]
            raise KappaPlaceError(
                f"Pose {lost[0]} ({east:.1f} east, {north:.1f} north) is not on a "
                f"street. Choose a position on a road."
            )
        return number, local

    def ambiguity(self, positions: np.ndarray, heading: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Measure how ambiguous views are.

        Args:
            positions: UTM metres, N × 2.
            heading: Degrees clockwise from north, N.

        Returns:
            Fractions of wall columns that are featureless, and that are aliased, each N.
        """
        number, local = self.locate(positions)
        heading = _checked_heading(heading, len(local))
        featureless = np.zeros(len(local), np.float32)
        aliased = np.zeros(len(local), np.float32)
        for rows, district in self._by_district(number):
            for block in np.array_split(rows, max(1, len(rows) // 4096)):
                kinds = wall_kinds(self._districts[district], self.camera, local[block], heading[block])
                featureless[block] = (kinds == FEATURELESS).mean(axis=1)
                aliased[block] = (kinds == ALIASED).mean(axis=1)
        return featureless, aliased

    def render(
        self,
        poses: np.ndarray,
        conditions: Conditions | None = None,
        size: int | tuple[int, int] = 128,
        image_seeds: np.ndarray | None = None,
        workers: int | None = None,
    ) -> np.ndarray:
        """Render photographs. An image does not depend on the number of threads or on the other images.

        Args:
            poses: East, north (UTM metres) and heading (degrees clockwise from north), N × 3.
            conditions: Levels per image. Default: a clear summer day.
            size: Pixels of a square image, or (height, width).
            image_seeds: Random seed per image, for traffic, drops and noise. Default: zeros.
            workers: Number of threads. Default: all cores.

        Returns:
            Images, uint8 N × H × W × 3.

        Raises:
            KappaPlaceError: If a pose is not on a street, or an argument is out of range.
        """
        poses = np.asarray(poses, np.float64)
        if poses.ndim != 2 or poses.shape[1] != 3:
            raise KappaPlaceError(f"poses must be N × 3 (east, north, heading), got shape {poses.shape}.")
        height, width = checked_size(size)
        count = len(poses)
        conditions = conditions if conditions is not None else Conditions.clear(count)
        seeds = np.zeros(count, np.int64) if image_seeds is None else np.asarray(image_seeds, np.int64)
        if len(conditions) != count or seeds.shape != (count,) or (seeds < 0).any():
            raise KappaPlaceError(f"conditions and image_seeds must have {count} values, seeds from 0.")
        number, local = self.locate(poses[:, :2])
        heading = _checked_heading(poses[:, 2], count)
        out = np.empty((count, height, width, 3), np.uint8)
        per_block = max(1, _PIXELS_PER_BLOCK // (height * width))

        def draw_block(job: tuple[np.ndarray, int]) -> None:
            rows, district = job
            levels = conditions.take(rows)
            photos = Photos(local[rows], heading[rows], levels.occlusion, levels.season, seeds[rows])
            rendering = draw(self._painted(district), self.camera, photos, (height, width))
            depth = np.ascontiguousarray(rendering.depth.transpose(0, 2, 1))
            out[rows] = weather.apply(to_image(rendering.texels), depth, levels, seeds[rows])

        jobs = [
            (rows[start : start + per_block], district)
            for rows, district in self._by_district(number)
            for start in range(0, len(rows), per_block)
        ]
        for district in {job[1] for job in jobs}:  # before the threads start, so that it is painted once
            self._painted(district)
        with ThreadPoolExecutor(checked_workers(workers)) as pool:
            list(pool.map(draw_block, jobs))
        return out

    def views(
        self,
        split: str,
        *,
        spacing: float = 10.0,
        headings: int = 4,
        per_class: int = 12,
        queries: int = 400,
        strength: float = 0.7,
        query_strength: float = 1.0,
        seed: int = 0,
    ) -> CityViews:
        """Sample poses and conditions of one split.

        Args:
            split: "train" is dense and has no queries; "val" and "test" have references and queries.
            spacing: Metres between references along a street; for training, metres of road between classes.
            headings: Number of photographed 30° bins: 1, 2, 3, 4, 6 or 12.
            per_class: Training images in each cell of 10 m and 30°.
            queries: Number of queries. They are off the references' line, turned by up to 12°, and have their
                own conditions.
            strength: Highest level of a condition in training; references have at most a quarter of it.
            query_strength: Highest level of a condition of a query; three in ten queries are clear.
            seed: Random seed of the views.

        Returns:
            The views, which can be rendered.

        Raises:
            KappaPlaceError: If an argument is out of range.
        """
        options = ViewOptions(spacing, headings, per_class, queries, strength, query_strength, seed)
        return sample_views(self, split, options)

    def road_cells(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the 10 m cells of road.

        Args:
            split: train, val or test.

        Returns:
            South-west corners (M × 2, UTM metres), and the axis of each cell's street.
        """
        origin = self.origins[split_number(split)]
        span = np.array(self.blocks) * PITCH + ROAD_WIDTH
        columns, rows = np.meshgrid(np.arange(0, span[0], CELL), np.arange(0, span[1], CELL), indexing="ij")
        corner = np.stack([columns.ravel(), rows.ravel()], axis=1)
        on_north = corner[:, EAST] % PITCH[EAST] == 0
        on_east = corner[:, NORTH] % PITCH[NORTH] == 0
        keep = on_north | on_east
        return origin + corner[keep], np.where(on_north, NORTH, EAST)[keep]

    def _painted(self, district: int) -> Scenery:
        if district not in self._scenery:
            self._scenery[district] = paint_scenery(self._districts[district], self.seed)
        return self._scenery[district]

    def _by_district(self, number: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        for district in range(len(SPLITS)):
            rows = np.flatnonzero(number == district)
            if len(rows):
                yield rows, district


def checked_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) in pixels; fail if out of range."""
    height, width = (size, size) if isinstance(size, int | np.integer) else size
    for side in (height, width):
        within(side, "image size", 4, 4096)
    return int(height), int(width)


def checked_workers(workers: int | None) -> int:
    """Return the number of threads, by default one per core."""
    if workers is None:
        return os.cpu_count() or 1
    within(workers, "workers", 1)
    return workers


def _checked_heading(heading: np.ndarray, count: int) -> np.ndarray:
    heading = np.asarray(heading, np.float64)
    if heading.shape != (count,) or not np.isfinite(heading).all():
        raise KappaPlaceError(f"heading must contain {count} finite numbers, got shape {heading.shape}.")
    degrees = np.asarray(heading % 360.0)
    return np.where(degrees == 360.0, 0.0, degrees)  # the modulo of a tiny negative heading rounds to 360
