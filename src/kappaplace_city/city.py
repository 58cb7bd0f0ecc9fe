"""The city: three districts that never see each other, and the camera that photographs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

from kappaplace.errors import KappaPlaceError
from kappaplace_city import weather
from kappaplace_city.render import Camera, Scenery, draw, paint_scenery, to_image, wall_kinds
from kappaplace_city.views import CityViews, sample_views
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
_PIXELS_PER_BLOCK = 32 * 64 * 64  # bounds the memory of one worker to some tens of megabytes
_SEEDS_PER_DISTRICT = 1_000_000


class SyntheticCity:
    """A street world made from `seed` alone: the same seed gives the same bytes.

    >>> views = SyntheticCity(seed=0, blocks=(1, 1)).views("val", spacing=30.0, queries=2)
    >>> images = views.render(16)
    >>> images.shape == (len(views.positions), 16, 16, 3), int(views.is_query.sum())
    (True, 2)

    seed: which city.
    blocks: building blocks per district, along east (80 m each) and north (60 m each).
    aliased: share of street segments that look exactly like another one of the district.
    featureless: share of street segments between hedges or blank walls.
    camera: height above the road and field of view.
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
        if seed < 0:
            raise KappaPlaceError(f"The city seed must not be negative, got {seed}.")
        if len(blocks) != 2 or not all(1 <= count <= 64 for count in blocks):
            raise KappaPlaceError(f"A district needs 1 to 64 blocks each way, got {blocks}.")
        if not (aliased >= 0 and featureless >= 0 and aliased + featureless <= 1):
            raise KappaPlaceError(
                "The shares of aliased and featureless streets must be positive and sum to at most 1."
            )
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
        """UTM (east, north) of the three districts' origins, 3 × 2 float64: side by side with wide gaps."""
        step = np.ceil(((self.blocks[0] + 1) * PITCH[0] + GAP) / 10) * 10
        return ORIGIN + np.arange(len(SPLITS))[:, None] * [step, 0.0]

    def district(self, split: str) -> District:
        return self._districts[split_number(split)]

    def bounds(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """South-west and north-east corner of a district in UTM metres."""
        district, origin = self.district(split), self.origins[split_number(split)]
        return origin + district.low, origin + district.high

    def facade_seeds(self, split: str) -> np.ndarray:
        """Sorted seeds that the façades of a split are painted from; no two splits share one."""
        return np.unique([face.seed for face in self.district(split).faces])

    def aliased_shifts(self, split: str) -> np.ndarray:
        """Repeated segments in pairs, P × 4: UTM middle of one, and the shift (east, north) to its double."""
        by_seed: dict[tuple[int, int], list[np.ndarray]] = {}
        for segment in self.district(split).segments:
            if segment.kind == ALIASED:
                middle = segment.start.copy()
                middle[segment.axis] += segment.length / 2
                by_seed.setdefault((segment.axis, segment.seed), []).append(middle)
        origin = self.origins[split_number(split)]
        rows = [np.concatenate([origin + one, other - one]) for one, other in by_seed.values()]
        return np.array(rows, np.float64).reshape(-1, 4)

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """District number (N) and local metres (N × 2) of UTM positions; all must lie on a street."""
        positions = np.asarray(positions, np.float64)
        if positions.ndim != 2 or positions.shape[1] != 2:
            raise KappaPlaceError(
                f"Positions must be an N × 2 array of (east, north), got shape {positions.shape}."
            )
        number = np.full(len(positions), -1)
        local = np.zeros_like(positions)
        for candidate, district in enumerate(self._districts):
            here = positions - self.origins[candidate]
            free = on_street(district, here)
            number[free] = candidate
            local[free] = here[free]
        lost = np.flatnonzero(number < 0)
        if len(lost):
            east, north = positions[lost[0]]
            where = f"Pose {lost[0]} (east {east:.1f}, north {north:.1f})"
            raise KappaPlaceError(f"{where} is not on a street of the synthetic city.")
        return number, local

    def ambiguity(self, positions: np.ndarray, heading: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(featureless, aliased) per pose: shares of wall columns that are blank, and that are repeated."""
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
        """Photographs of `poses`, uint8 N × H × W × 3.

        poses: N × 3 of east, north (UTM metres) and heading (degrees clockwise from north).
        conditions: levels per image; none means a clear summer day.
        size: pixels of a square image, or (height, width).
        image_seeds: what is random within a condition (traffic, drops, noise); zeros if left out.
        workers: threads; all cores if left out. Neither they nor the rest of the batch change an image.
        """
        poses = np.asarray(poses, np.float64)
        if poses.ndim != 2 or poses.shape[1] != 3:
            raise KappaPlaceError(
                f"Poses must be an N × 3 array of (east, north, heading), got shape {poses.shape}."
            )
        height, width = checked_size(size)
        count = len(poses)
        conditions = conditions if conditions is not None else Conditions.clear(count)
        seeds = np.zeros(count, np.int64) if image_seeds is None else np.asarray(image_seeds, np.int64)
        if len(conditions) != count or seeds.shape != (count,) or (seeds < 0).any():
            raise KappaPlaceError(f"{count} poses need as many conditions and image seeds of 0 or more.")
        number, local = self.locate(poses[:, :2])
        heading = _checked_heading(poses[:, 2], count)
        out = np.empty((count, height, width, 3), np.uint8)
        per_block = max(1, _PIXELS_PER_BLOCK // (height * width))

        def draw_block(job: tuple[np.ndarray, int]) -> None:
            rows, district = job
            now = conditions.take(rows)
            picture = draw(
                self._painted(district),
                self.camera,
                local[rows],
                heading[rows],
                now.occlusion,
                now.season,
                seeds[rows],
                height,
                width,
            )
            depth = np.ascontiguousarray(picture.depth.transpose(0, 2, 1))
            out[rows] = weather.apply(to_image(picture.texels), depth, now, seeds[rows])

        jobs = [
            (rows[start : start + per_block], district)
            for rows, district in self._by_district(number)
            for start in range(0, len(rows), per_block)
        ]
        for district in {job[1] for job in jobs}:  # before any thread starts, so that it is painted once
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
        """Poses and conditions of one split: "train" is dense, without queries; "val" and "test" have both.

        spacing: metres between references along a street; in training, metres of road between classes.
        headings: how many of the twelve 30° bins are photographed (1, 2, 3, 4, 6 or 12).
        per_class: training images in each cell of 10 m and 30°.
        queries: how many, off the references' line, turned up to 12° and under their own conditions.
        strength: highest level of a condition in training; references stay under a quarter of it.
        query_strength: highest level of a condition of a query; three in ten queries are clear.
        """
        return sample_views(
            self,
            split,
            spacing=spacing,
            headings=headings,
            per_class=per_class,
            queries=queries,
            strength=strength,
            query_strength=query_strength,
            seed=seed,
        )

    def road_cells(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """South-west corners of all 10 m cells of road (M × 2, UTM), and the axis each one's street runs."""
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
    """(height, width) in pixels."""
    height, width = (size, size) if isinstance(size, int | np.integer) else size
    if not (4 <= height <= 4096 and 4 <= width <= 4096):
        raise KappaPlaceError(f"The image size must be between 4 and 4096 pixels, got {height} × {width}.")
    return int(height), int(width)


def checked_workers(workers: int | None) -> int:
    if workers is None:
        return os.cpu_count() or 1
    if workers < 1:
        raise KappaPlaceError(f"The number of workers must be at least 1, got {workers}.")
    return workers


def _checked_heading(heading: np.ndarray, count: int) -> np.ndarray:
    heading = np.asarray(heading, np.float64)
    if heading.shape != (count,) or not np.isfinite(heading).all():
        raise KappaPlaceError(f"{count} positions need as many finite headings.")
    turned = np.asarray(heading % 360.0)
    return np.where(turned == 360.0, 0.0, turned)  # the modulo of a tiny negative heading rounds up to 360
