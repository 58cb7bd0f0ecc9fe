"""Geometric verification on pictures whose answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from kappaplace.errors import KappaPlaceError
from kappaplace.types import Matches
from kappaplace.uncertainty import local_features
from kappaplace.uncertainty.base import Evidence
from kappaplace.uncertainty.geometric import geometric
from kappaplace.uncertainty.local_features import Verification, count_inliers, extract
from kappaplace.uncertainty.registry import score_named

pytest.importorskip("cv2")
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
    return Evidence(
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
