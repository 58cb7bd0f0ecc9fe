"""Geometric verification on pictures whose answer is known."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from kappaplace.errors import KappaPlaceError
from kappaplace.types import Matches
from kappaplace.uncertainty import score_named
from kappaplace.uncertainty.base import Evidence
from kappaplace.uncertainty.geometric import GeometricCheck, Verification, count_inliers, extract, geometric
from tests.uncertainty.helpers import evidence_of

pytest.importorskip("cv2")
local_features = import_module("kappaplace.uncertainty.geometric")  # its function has the same name
SETTINGS = Verification()


def scene(seed: int, side: int = 240) -> Image.Image:
    """Random boxes: plenty of corners."""
    rng = np.random.default_rng(seed)
    picture = Image.new("RGB", (side, side), (120, 120, 120))
    draw = ImageDraw.Draw(picture)
    for _ in range(150):
        x, y = rng.integers(0, side, 2)
        w, h = rng.integers(4, side // 6, 2)
        draw.rectangle((x, y, x + w, y + h), fill=tuple(rng.integers(0, 255, 3).tolist()))
    return picture


def moved(picture: Image.Image) -> Image.Image:
    """A little closer and turned: as another visit would see it."""
    return picture.rotate(4, resample=Image.Resampling.BICUBIC).crop((10, 5, 230, 225)).resize((240, 240))


def evidence(indices: list[list[int]], queries: list, references: list) -> Evidence:
    rows = np.array(indices)
    return evidence_of(
        Matches(rows, np.zeros(rows.shape, np.float32)), query_images=queries, reference_images=references
    )


def test_the_same_place_is_certain_and_another_is_not(tmp_path: Path) -> None:
    scene(0).save(tmp_path / "place.png")  # paths and pictures alike
    e = evidence([[0, 1], [1, 0]], [moved(scene(0)), np.array(scene(2))], [tmp_path / "place.png", scene(1)])
    pairs = score_named("geometric").match(e)
    assert pairs[0, 0] < 1 / 50
    assert (pairs[[0, 1, 1], [1, 0, 1]] > 1 / 20).all()
    np.testing.assert_array_equal(score_named("geometric").query(e), pairs[:, 0])


def test_one_number_is_one_over_one_plus_inliers() -> None:
    e = evidence([[0]], [moved(scene(0))], [scene(0)])
    inliers = count_inliers(extract(moved(scene(0)), SETTINGS), extract(scene(0), SETTINGS), SETTINGS)
    assert score_named("geometric").query(e).tolist() == [1 / (1 + inliers)]


def test_counts_repeat_and_do_not_depend_on_what_came_before() -> None:
    a, b, other = (extract(s, SETTINGS) for s in (scene(0), moved(scene(0)), scene(3)))
    first = count_inliers(a, b, SETTINGS)
    count_inliers(a, other, SETTINGS)
    assert count_inliers(a, b, SETTINGS) == first


def test_matches_are_mutual_nearest_and_pass_the_ratio_test() -> None:
    a, b = extract(scene(0), SETTINGS), extract(moved(scene(0)), SETTINGS)
    first, second = local_features._mutual_matches(a, b, 0.8)
    gaps = np.linalg.norm(a.descriptors[:, None].astype(float) - b.descriptors[None].astype(float), axis=-1)
    expected = []
    for i, row in enumerate(gaps):
        j = int(row.argmin())
        if int(gaps[:, j].argmin()) == i and row[j] < 0.8 * np.partition(row, 1)[1]:
            expected.append((i, j))
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == expected


def test_a_blank_image_has_no_features() -> None:
    found = extract(np.full((60, 80), 7, np.uint8), SETTINGS)
    assert (found.points.shape, found.descriptors.shape) == ((0, 2), (0, 128))


@pytest.mark.parametrize("value", [0, 255])
def test_a_blank_image_has_no_inliers(value: int) -> None:
    blank = np.full((60, 80), value, np.uint8)
    assert score_named("geometric").query(
        evidence([[0], [1]], [blank, scene(0)], [scene(0), blank])
    ).tolist() == [
        1.0,
        1.0,
    ]


def test_large_images_are_shrunk_and_small_ones_stay() -> None:
    small = extract(scene(0), Verification(max_side=120))
    assert small.points.max() < 120
    same = extract(scene(0), Verification(max_side=1000))
    np.testing.assert_array_equal(same.points, extract(scene(0), SETTINGS).points)


def test_each_image_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def counted(source: object, settings: Verification) -> local_features.Features:
        read.append(source)
        return extract(source, settings)

    monkeypatch.setattr(local_features, "extract", counted)
    e = evidence([[0, 1], [1, 0]], [scene(0), scene(1)], [scene(0), scene(1)])
    score_named("geometric").query(e)
    score_named("geometric").match(e)
    assert len(read) == 4


def test_a_missing_file_is_told() -> None:
    with pytest.raises(KappaPlaceError, match="No image file"):
        geometric().query(evidence([[0]], ["nowhere.jpg"], [scene(0)]))


def two_views(count: int) -> tuple[local_features.Features, local_features.Features]:
    """So many points in space, each with a descriptor of its own, seen by two cameras side by side."""
    rng = np.random.default_rng(0)
    space = rng.uniform([-1, -1, 3], [1, 1, 6], (count, 3))
    left, right = (
        (300 * (space - [x, 0.1 * x, 0])[:, :2] / (space - [0, 0, 0.3 * x])[:, 2:] + 320) for x in (0.0, 0.5)
    )
    descriptors = (200 * np.eye(128, dtype=np.uint8)[:count]).astype(np.uint8)
    return (
        local_features.Features(left.astype(np.float32), descriptors),
        local_features.Features(right.astype(np.float32), descriptors),
    )


@pytest.mark.parametrize(("count", "inliers"), [(1, 0), (2, 0), (7, 0), (8, 8), (30, 30)])
def test_seven_matches_always_fit_and_say_nothing(count: int, inliers: int) -> None:
    assert count_inliers(*two_views(count), SETTINGS) == inliers


def test_two_features_can_be_matched_and_one_cannot() -> None:
    a, b = two_views(2)
    first, second = local_features._mutual_matches(a, b, 0.8)
    assert (first.tolist(), second.tolist()) == ([0, 1], [0, 1])
    alone = local_features.Features(b.points[:1], b.descriptors[:1])
    for pair in ((a, alone), (alone, a)):
        assert [part.tolist() for part in local_features._mutual_matches(*pair, 0.8)] == [[], []]


def test_the_ratio_test_is_on_distances() -> None:
    base = np.zeros((2, 128), np.uint8)
    base[0, 0], base[1, 1] = 100, 200
    query = local_features.Features(np.zeros((2, 2), np.float32), base)
    other = base.copy()
    other[0, 2], other[1] = 30, base[0]  # 30 away from the first feature ...
    for away, kept in ((40, [0]), (36, [])):  # ... and its rival 40 (0.75) or 36 (0.83)
        other[1, 3] = away
        found, _ = local_features._mutual_matches(
            query, local_features.Features(np.zeros((2, 2), np.float32), other), 0.8
        )
        assert found.tolist() == kept


def test_documented_settings() -> None:
    assert Verification() == Verification(
        max_side=640, features=1000, ratio=0.8, threshold=3.0, confidence=0.999, seed=0
    )
    assert len(extract(scene(0), Verification(features=50)).points) <= 51  # OpenCV keeps ties of the last


def test_other_settings_are_another_score() -> None:
    assert (score_named("geometric").label, geometric(name="strict").label) == ("Geometric", "strict")


def test_shrinking_keeps_the_shape() -> None:
    wide = Image.new("RGB", (400, 100), (120, 120, 120))
    wide.paste(scene(0, 100), (300, 0))
    points = extract(wide, Verification(max_side=200)).points
    assert (points[:, 0] > 140).all()
    assert points[:, 0].max() < 200
    assert 25 < points[:, 1].max() < 50
    extract(Image.new("RGB", (4000, 2)), Verification(max_side=100))  # no side shrinks to nothing


def test_a_check_of_remembered_images_counts_the_same_inliers() -> None:
    check = GeometricCheck()
    check.remember(3, scene(0))
    check.remember(5, moved(scene(0)))
    expected = count_inliers(extract(scene(0), SETTINGS), extract(moved(scene(0)), SETTINGS), SETTINGS)
    assert check.inliers(3, 5) == expected > 0
    assert check.inliers(3, 4) is check.inliers(4, 5) is None
