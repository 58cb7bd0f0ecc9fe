"""`Near` against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kappaplace.data.near import Near, Neighborhood, within
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError

# Coordinates on a grid as well, so that distances equal to the radius are common.
COORDINATE = st.one_of(st.integers(-9, 9).map(float), st.floats(-50, 50))
REACH = st.one_of(st.integers(0, 9).map(float), st.floats(0, 40))


@st.composite
def positions(draw: st.DrawFn, axes: int = 2, unposed: bool = True) -> np.ndarray:
    """Draw positions of a few references, some of them unknown."""
    count = draw(st.integers(1, 8))
    rows = draw(arrays(np.float64, (count, axes), elements=COORDINATE))
    if unposed:
        rows[draw(arrays(np.bool_, count))] = np.nan
    return rows


def table(near: Near, count: int) -> list[list[bool]]:
    """Return the answer for every pair, computed by broadcasting and for single pairs."""
    rows = np.arange(count)
    answer = near(rows[:, None], rows)
    assert [[bool(near(a, b)) for b in range(count)] for a in range(count)] == answer.tolist()
    return answer.tolist()


def in_meters(points: np.ndarray, radius: float, a: int, b: int) -> bool:
    """Return whether two positions are within the radius."""
    gap = points[a] - points[b]
    return a == b or bool(gap[0] ** 2 + gap[1] ** 2 <= radius**2)


@given(positions(), REACH)
def test_meters(points: np.ndarray, radius: float) -> None:
    count = len(points)
    expected = [[in_meters(points, radius, a, b) for b in range(count)] for a in range(count)]
    assert table(Near.meters(points, radius), count) == expected
    images = PlaceImages.create([f"{i}.jpg" for i in range(count)], points)
    object.__setattr__(images, "neighborhood", Neighborhood("metres", radius))
    assert table(images.is_near, count) == expected


@given(positions(), REACH, REACH)
def test_the_wider_of_two_radii(points: np.ndarray, neighborhood: float, radius: float) -> None:
    count = len(points)
    expected = [[False] * count for _ in range(count)]
    for a in range(count):
        for b in range(count):
            squares = ((points[a] - points[b]) ** 2).sum()
            expected[a][b] = in_meters(points, neighborhood, a, b) or bool(squares <= radius**2)
    assert table(Near.meters(points, max(neighborhood, radius)), count) == expected


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=8), REACH)
def test_frames_of_one_route(frames: list[tuple[int, int]], reach: float) -> None:
    count = len(frames)
    expected = [
        [
            a == b or (abs(frames[a][0] - frames[b][0]) <= reach and frames[a][1] == frames[b][1])
            for b in range(count)
        ]
        for a in range(count)
    ]
    numbers, routes = np.array(frames).T
    assert table(Near.frames(reach, numbers, routes), count) == expected
    images = PlaceImages.create(
        [f"{i}.jpg" for i in range(count)],
        condition=[str(route) for route in routes],
        frame_number=numbers,
        neighborhood=Neighborhood("frames", reach),
    )
    assert table(images.is_near, count) == expected


@given(st.integers(1, 8), REACH)
def test_row_numbers_as_frames(count: int, reach: float) -> None:
    expected = [[abs(a - b) <= reach for b in range(count)] for a in range(count)]
    assert table(Near.frames(reach), count) == expected


@given(st.sampled_from([2, 3]).flatmap(lambda axes: positions(axes, unposed=False)), REACH, st.data())
def test_positions_or_distance_traveled(points: np.ndarray, radius: float, data: st.DataObject) -> None:
    count = len(points)
    traveled = np.cumsum(data.draw(arrays(np.float64, count, elements=st.floats(0, 20))))
    expected = [
        [
            bool(((points[a] - points[b]) ** 2).sum() <= radius**2)
            or bool(abs(traveled[a] - traveled[b]) <= radius)
            for b in range(count)
        ]
        for a in range(count)
    ]
    assert table(Near.meters(points, radius, traveled), count) == expected


@given(positions(), positions(), REACH)
def test_matches_within_the_radius_of_their_query(
    points: np.ndarray, queries: np.ndarray, radius: float
) -> None:
    expected = [
        [bool((reference[0] - x) ** 2 + (reference[1] - y) ** 2 <= radius**2) for reference in points]
        for x, y in queries
    ]
    gap = points[None] - queries[:, None]
    assert within([gap[..., 0], gap[..., 1]], radius).tolist() == expected


@given(positions(), COORDINATE, COORDINATE, REACH)
def test_a_circle(points: np.ndarray, x: float, y: float, radius: float) -> None:
    expected = [row for row, at in enumerate(points) if (at[0] - x) ** 2 + (at[1] - y) ** 2 <= radius**2]
    assert Near.meters(points, 1.0).within((x, y, radius)).tolist() == expected


def test_changed_columns_change_the_answer() -> None:
    points = np.array([[0.0, 0.0], [9.0, 0.0]])
    near = Near.meters(points, 5.0)
    assert not near(0, 1)
    points[1] = 1.0
    assert near(0, 1)


def test_only_the_image_itself_and_no_circle_without_positions() -> None:
    itself = Near.of(Neighborhood("self"), lambda: 1 / 0, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert table(itself, 3) == np.eye(3, dtype=bool).tolist()
    with pytest.raises(KappaPlaceError, match="no positions"):
        itself.within((0.0, 0.0, 1.0))


@pytest.mark.filterwarnings("error")
def test_distances_too_large_to_be_squared_are_not_near() -> None:
    points = np.array([[0.0, 0.0], [1e200, 0.0], [np.nan, np.nan]])
    assert Near.meters(points, 25.0)(0, np.arange(3)).tolist() == [True, False, False]
