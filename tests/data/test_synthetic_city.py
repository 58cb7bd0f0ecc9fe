"""The synthetic city: same bytes from the same seed, known difficulty, places that can be told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kappaplace_city import CONDITION_NAMES, SPLITS, Conditions, SyntheticCity
from kappaplace_city.world import ALIASED

SIZE = 32


@pytest.fixture(scope="module")
def city() -> SyntheticCity:
    return SyntheticCity(seed=3, blocks=(2, 2))


@pytest.fixture(scope="module")
def views(city: SyntheticCity):
    return city.views("test", queries=60)


@pytest.fixture(scope="module")
def images(views) -> np.ndarray:
    return views.render(SIZE, workers=1)


def wall_poses(city: SyntheticCity, split: str = "test", count: int = 24, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    corners, _ = city.road_cells(split)
    rows = rng.integers(len(corners), size=count)
    return np.column_stack([corners[rows] + rng.uniform(1, 9, (count, 2)), rng.uniform(0, 360, count)])


# --- the same seed gives the same bytes ---


def test_same_seed_gives_the_same_bytes(city, views, images):
    again = SyntheticCity(seed=3, blocks=(2, 2)).views("test", queries=60)
    np.testing.assert_array_equal(again.positions, views.positions)
    np.testing.assert_array_equal(again.conditions.levels(), views.conditions.levels())
    np.testing.assert_array_equal(again.render(SIZE, workers=2), images)


def test_other_seeds_give_other_streets(city):
    poses = wall_poses(city)
    other = SyntheticCity(seed=4, blocks=(2, 2)).render(poses, size=SIZE)
    difference = np.abs(other.astype(float) - city.render(poses, size=SIZE))
    assert (difference.mean(axis=(1, 2, 3)) > 3).all()


def test_other_view_seeds_give_other_queries(city, views):
    other = city.views("test", queries=60, seed=1)
    assert (other.positions[other.is_query] != views.positions[views.is_query]).all()


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_an_image_does_not_depend_on_its_batch(views, images, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(views) - 1), min_size=1, max_size=40)))
    workers = data.draw(st.integers(1, 3))
    np.testing.assert_array_equal(views.render(SIZE, rows, workers), images[rows])


def test_districts_can_be_mixed_in_one_batch(city):
    poses = np.concatenate([wall_poses(city, split, 3) for split in SPLITS])
    order = np.random.default_rng(0).permutation(len(poses))
    np.testing.assert_array_equal(city.render(poses[order], size=SIZE), city.render(poses, size=SIZE)[order])


@settings(max_examples=15, deadline=None)
@given(
    cell=st.integers(0, 38),
    offset=st.tuples(st.floats(-2.5, 12.5), st.floats(-2.5, 12.5)),
    heading=st.floats(-720, 720),
    size=st.tuples(st.integers(4, 40), st.integers(4, 40)),
)
@example(cell=18, offset=(0.0, 7.8125), heading=-5e-324, size=(5, 18))
def test_any_pose_on_a_street_renders(city, cell, offset, heading, size):
    corners, axis = city.road_cells("test")
    shift = np.clip(
        offset, [0, -2.5] if axis[cell] == 0 else [-2.5, 0], [10, 12.5] if axis[cell] == 0 else [12.5, 10]
    )
    pose = np.array([[*(corners[cell] + shift), heading]])
    image = city.render(pose, size=size, workers=1)
    assert image.shape == (1, *size, 3)
    assert image.dtype == np.uint8
    turned = np.array([[*pose[0, :2], heading % 360.0]])
    np.testing.assert_array_equal(city.render(turned, size=size), image)


# --- known levels of difficulty ---


@pytest.mark.parametrize("name", CONDITION_NAMES)
def test_damage_to_the_picture_grows_with_the_level(city, name):
    poses = wall_poses(city, count=40)
    seeds = np.arange(len(poses))
    clear = city.render(poses, size=SIZE, image_seeds=seeds).astype(float)
    changes = []
    for level in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        levels = Conditions.clear(len(poses), **{name: level})
        changes.append(np.abs(city.render(poses, levels, SIZE, seeds) - clear).mean())
    assert changes[0] == 0
    assert (np.diff(changes) > 0).all(), changes
    assert changes[-1] > 8


@settings(max_examples=50, deadline=None)
@given(
    levels=st.lists(st.floats(0, 1, width=32), min_size=7, max_size=7),
    which=st.integers(0, 6),
    more=st.floats(0, 1, width=32),
)
def test_damage_summary_is_a_share_that_grows_with_every_level(levels, which, more):
    lower = np.array([levels], np.float32)
    higher = lower.copy()
    higher[0, which] = max(more, lower[0, which])
    one, other = Conditions.from_levels(lower).damage[0], Conditions.from_levels(higher).damage[0]
    assert 0 <= one <= other <= 1
    assert Conditions.clear(1).damage[0] == 0


def test_damage_summary_is_the_documented_product():
    both = Conditions.clear(1, fog=0.5, season=1.0)
    assert both.damage[0] == pytest.approx(1 - (1 - 0.9 * 0.5) * (1 - 0.4), abs=1e-6)


def aliased_shifts(city: SyntheticCity, split: str) -> np.ndarray:
    """Pairs of street segments that look the same, P × 4: UTM middle of one, and the shift to the other."""
    by_seed: dict[tuple[int, int], list[np.ndarray]] = {}
    for segment in city.district(split).segments:
        if segment.kind == ALIASED:
            middle = segment.start.copy()
            middle[segment.axis] += segment.length / 2
            by_seed.setdefault((segment.axis, segment.seed), []).append(middle)
    origin = city.bounds(split)[0] - city.district(split).low
    rows = [np.concatenate([origin + one, other - one]) for one, other in by_seed.values()]
    return np.array(rows, np.float64).reshape(-1, 4)


def test_repeated_streets_look_the_same_and_others_do_not(city):
    for split in ("train", "test"):
        pairs = aliased_shifts(city, split)
        assert len(pairs)
        for east, north, shift_east, shift_north in pairs:
            for heading in (0.0, 90.0, 180.0, 270.0):
                here = np.array([[east, north, heading]])
                _, aliased = city.ambiguity(here[:, :2], here[:, 2])
                if aliased[0] < 1:  # only a view of nothing but the repeated walls must be repeated
                    continue
                there = here + np.array([[shift_east, shift_north, 0]])
                one, double = city.render(np.concatenate([here, there]), size=64).astype(float)
                assert (np.abs(one - double).max(axis=-1) < 8).mean() > 0.98
                elsewhere = city.render(wall_poses(city, split, 8), size=64)
                assert (np.abs(elsewhere - one).mean(axis=(1, 2, 3)) > 3).all()


def test_blank_streets_are_told_apart_from_streets_with_shops(city):
    poses = wall_poses(city, count=200, seed=5)
    featureless, aliased = city.ambiguity(poses[:, :2], poses[:, 2])
    assert ((featureless >= 0) & (aliased >= 0) & (featureless + aliased <= 1 + 1e-6)).all()
    blank, busy = poses[featureless > 0.9][:8], poses[featureless < 0.05][:8]
    detail = [
        np.abs(np.diff(city.render(part, size=64).astype(float), axis=2)).mean() for part in (blank, busy)
    ]
    assert detail[0] < 0.6 * detail[1]


def test_a_city_without_blank_or_repeated_streets_reports_none():
    plain = SyntheticCity(seed=0, blocks=(1, 1), aliased=0, featureless=0)
    views = plain.views("val", queries=5)
    assert not views.featureless.any()
    assert not views.aliased.any()
    assert len(aliased_shifts(plain, "val")) == 0


# --- is it a task? ---


def grid_descriptors(images: np.ndarray) -> np.ndarray:
    """Colours on a 16 × 16 grid: a cheap stand-in for a network."""
    count, size = images.shape[:2]
    step = size // 16
    grid = images.reshape(count, 16, step, 16, step, 3).mean(axis=(2, 4)).reshape(count, -1)
    grid = grid - grid.mean(axis=1, keepdims=True)
    return grid / np.maximum(np.linalg.norm(grid, axis=1, keepdims=True), 1e-6)


def recall(city: SyntheticCity, queries: np.ndarray, conditions: Conditions | None = None) -> np.ndarray:
    """Whether the nearest reference by colour grid stands within 25 m, for every query."""
    survey = city.views("test", spacing=5, queries=0, strength=0)
    references = grid_descriptors(survey.render(SIZE))
    asked = grid_descriptors(city.render(queries, conditions, SIZE, np.arange(len(queries))))
    best = (asked @ references.T).argmax(axis=1)
    return np.linalg.norm(survey.positions[best] - queries[:, :2], axis=1) < 25


def test_places_are_recognizable_and_damage_hurts(city):
    views = city.views("test", queries=300, spacing=5)
    queries = views.poses[views.is_query]
    references = views.positions[~views.is_query]
    chance = (np.linalg.norm(references[:, None] - queries[:, :2], axis=2) < 25).mean()
    clear = recall(city, queries)
    assert clear.mean() > 3 * chance
    for name in ("night", "fog", "exposure", "occlusion"):  # a colour grid hardly feels blur
        damaged = recall(city, queries, Conditions.clear(len(queries), **{name: 1.0}))
        assert damaged.mean() < clear.mean() - 0.05, name


def test_ambiguous_places_are_harder():
    town = SyntheticCity(seed=1, blocks=(3, 3), aliased=0.3, featureless=0.3)
    views = town.views("test", queries=500)
    asked = views.select(views.is_query)
    right = recall(town, asked.poses)
    ambiguous = asked.featureless + asked.aliased
    assert right[ambiguous > 0.7].mean() < right[ambiguous < 0.3].mean()
