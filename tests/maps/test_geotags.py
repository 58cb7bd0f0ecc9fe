"""Positions for photos without GPS: realized risk with positions withheld, and comparison with neighbors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import kappaplace
from kappaplace.data.geodesy import project_point
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import BuildOptions, GeotagOptions, PlaceMap, geotag, undo_geotags
from kappaplace.maps import geotags as module
from kappaplace.maps.geotags import between, implausible
from tests.maps.test_geotag_files import everything
from tests.maps.trip import AGAIN, ELSEWHERE, FRAME, SIZE, Trip


@pytest.fixture
def town(trip: Trip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlaceMap:
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    return PlaceMap.open(trip.folder / "town.map")


def test_withheld_positions_come_back_within_the_risk(trip: Trip, town: PlaceMap) -> None:
    folder, truth = trip.folder, trip.truth
    before = everything(folder / "holiday")
    result = kappaplace.geotag(folder / "holiday", town)
    assert everything(folder / "holiday") == before  # nothing is written
    placed = [tag for tag in result.tags if tag.status == "accepted"]
    wrong = 0
    for tag in placed:
        right = truth.get(tag.photo.name)
        assert tag.x is not None
        assert tag.y is not None
        wrong += right is None or math.dist((tag.x, tag.y), right) > town.manifest.radius
        degrees = result.degrees(tag)
        assert degrees is not None
        assert project_point(*degrees, FRAME) == pytest.approx((tag.x, tag.y), abs=1e-3)
    share = sum(tag.photo.name in truth for tag in placed) / AGAIN
    assert share >= 0.35
    assert wrong / len(placed) <= 0.3
    assert len(result.tags) == AGAIN + ELSEWHERE
    assert f"{len(placed)} of {AGAIN + ELSEWHERE} photos without GPS get a position" in result.sentence


def test_written_positions_are_those_of_the_dry_run(trip: Trip, town: PlaceMap) -> None:
    photos = trip.folder / "holiday"
    before = everything(photos)
    result = geotag(photos, town)
    written = result.write()
    assert len(written) == result.count("accepted") == len(result.positions)
    again = geotag(photos, town)
    assert again.count("sidecar") == len(written)
    assert again.write() == []
    undo_geotags(photos)
    assert everything(photos) == before


def test_answers_are_computed_once(trip: Trip, town: PlaceMap, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted run resumes, and --apply does not repeat the dry run."""
    photos, calls = trip.folder / "holiday", []
    localize = PlaceMap.localize

    def count(self: PlaceMap, images: Any, **options: Any) -> Any:
        calls.append(len(images))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return localize(self, images, **options)

    monkeypatch.setattr(PlaceMap, "localize", count)
    options = GeotagOptions(batch_size=20)
    with pytest.raises(KeyboardInterrupt):
        geotag(photos, town, options)
    first = geotag(photos, town, options)
    assert calls == [20, 20, 20, 20, 15]
    assert geotag(photos, town, options) == first
    assert len(calls) == 5
    other = geotag(photos, town, GeotagOptions(batch_size=20, max_risk=0.01))
    assert len(calls) == 9  # another risk, other decisions
    assert other.count("accepted") <= first.count("accepted")


def test_photos_with_gps_and_damaged_photos_are_reported(trip: Trip, town: PlaceMap, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    source = next((trip.folder / "street").iterdir())
    (photos / "gps.png").write_bytes(source.read_bytes())
    (photos / "cut.jpg").write_bytes(next((trip.folder / "holiday").glob("again*")).read_bytes()[:900])
    (photos / "junk.jpg").write_bytes(b"junk")
    Image.new("RGB", (SIZE, SIZE), "gray").save(photos / "gray.jpg")
    (photos / "gray.xmp").write_text("a sidecar")
    tags = {tag.photo.name: tag for tag in geotag(photos, town).tags}
    statuses = {name: tag.status for name, tag in tags.items()}
    assert statuses == {
        "gps.png": "GPS",
        "cut.jpg": "unreadable",
        "junk.jpg": "unreadable",
        "gray.jpg": "sidecar",
    }
    assert "cut.jpg" in tags["cut.jpg"].reason
    plain = geotag(photos, town).to_dict()
    assert isinstance(plain["photos"], list)
    assert len(plain["photos"]) == 4


def test_a_map_without_degrees_or_decisions_is_one_message(
    trip: Trip, town: PlaceMap, tmp_path: Path
) -> None:
    options = BuildOptions(patches="none")
    local = PlaceMap.build(trip.folder / "holiday", tmp_path / "local.map", town.model, options)
    with pytest.raises(KappaPlaceError, match="no latitude and longitude"):
        geotag(trip.folder / "holiday", local)
    fresh = PlaceMap.build(trip.folder / "street", tmp_path / "new.map", town.model, options)
    with pytest.raises(KappaPlaceError, match="no calibration with decisions"):
        geotag(trip.folder / "holiday", fresh)


def brute(
    times: np.ndarray, points: np.ndarray, fixed: np.ndarray, accepted: np.ndarray, limits: tuple[float, ...]
) -> list[bool]:
    """Hold back answers as the text says, pair by pair."""
    radius, reach, speed = limits
    count, held = len(times), [False] * len(times)

    def clash(a: int, b: int) -> bool:
        apart = abs(times[a] - times[b])
        return bool(apart <= reach and math.dist(points[a], points[b]) - 2 * radius > speed * apart)

    for a in range(count):
        held[a] = bool(accepted[a]) and any(fixed[b] and clash(a, b) for b in range(count))
    while True:
        counts = [
            sum(accepted[b] and not held[b] and clash(a, b) for b in range(count))
            if accepted[a] and not held[a]
            else 0
            for a in range(count)
        ]
        if not max(counts):
            return held
        held = [was or number == max(counts) for was, number in zip(held, counts, strict=True)]


@given(st.integers(0, 10_000), st.integers(2, 25))
def test_implausible_answers_are_held_back(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    times, points = rng.integers(0, 400, count).astype(float), rng.integers(0, 900, (count, 2)).astype(float)
    kind = rng.integers(0, 3, count)
    fixed, accepted = kind == 0, kind == 1
    limits = (25.0, 120.0, 4.0)
    against = implausible(times, points, fixed, accepted, limits)
    assert (against >= 0).tolist() == brute(times, points, fixed, accepted, limits)
    for row in np.flatnonzero(against >= 0).tolist():
        other = against[row]
        assert abs(times[row] - times[other]) <= 120
        assert fixed[other] or accepted[other]


def test_one_wrong_answer_among_many_is_the_one_held_back() -> None:
    times = np.arange(8.0) * 10
    points = np.stack([np.arange(8.0) * 12, np.zeros(8)], 1)
    points[4] = (5000, 0)
    none = np.zeros(8, bool)
    held = implausible(times, points, none, ~none, (25.0, 300.0, 15.0)) >= 0
    assert held.tolist() == [False] * 4 + [True] + [False] * 3
    pair = implausible(times[3:5], points[3:5], none[:2], ~none[:2], (25.0, 300.0, 15.0))
    assert pair.tolist() == [1, 0]  # which of two is wrong is unknown
    times[4] = np.nan
    assert (implausible(times, points, none, ~none, (25.0, 300.0, 15.0)) < 0).all()


def test_a_photo_between_two_others_is_interpolated_in_time() -> None:
    times = np.array([0.0, 30.0, 100.0, 40.0, np.nan, 500.0])
    points = np.array([[0.0, 0.0], [np.nan] * 2, [20.0, 10.0], [np.nan] * 2, [np.nan] * 2, [np.nan] * 2])
    placed = np.array([True, False, True, False, False, False])
    result = between(times, points, placed, 25.0, 120.0)
    np.testing.assert_allclose(result[[1, 3]], [[6.0, 3.0], [8.0, 4.0]])
    assert np.isnan(result[[0, 2, 4, 5]]).all()
    assert np.isnan(between(times, points, placed, 20.0, 120.0)).all()  # too far from each other
    assert np.isnan(between(times, points, placed, 25.0, 99.0)).all()  # too long
    assert np.isnan(between(times, points, placed & (times < 50), 25.0, 120.0)).all()


def test_neighbors_change_the_status(trip: Trip, town: PlaceMap, monkeypatch: pytest.MonkeyPatch) -> None:
    """A photo far from one taken seconds before is held back, and one between two placed ones is placed."""
    photos = trip.folder / "holiday"
    first = geotag(photos, town)
    placed = [tag for tag in first.tags if tag.status == "accepted"]
    other = next(tag for tag in first.tags if tag.status == "not accepted")
    apart = max(placed, key=lambda tag: math.dist((tag.x, tag.y), (placed[0].x, placed[0].y)))
    clock = {placed[0].photo: 0.0, apart.photo: 1.0, placed[1].photo: 5e4, other.photo: 5e4 + 1}
    near = min(placed[2:], key=lambda tag: math.dist((tag.x, tag.y), (placed[1].x, placed[1].y)))
    clock[near.photo] = 5e4 + 2
    read = module.read_pose
    monkeypatch.setattr(
        module, "read_pose", lambda file: read(file)._replace(clock=clock.get(file, math.nan))
    )
    result = {tag.photo: tag for tag in geotag(photos, town, GeotagOptions(speed=1.0, between=True)).tags}
    assert result[placed[0].photo].status == result[apart.photo].status == "implausible"
    assert apart.photo.name in result[placed[0].photo].reason
    assert result[placed[0].photo].x is None
    assert result[other.photo].status == "between"
    assert result[other.photo].accuracy == 2 * town.manifest.radius


@pytest.mark.parametrize(
    "values", [{"minutes": -1}, {"speed": math.nan}, {"max_risk": 1.0}, {"batch_size": 0}, {"rerank": -1}]
)
def test_bad_options(values: dict[str, Any]) -> None:
    with pytest.raises(KappaPlaceError):
        GeotagOptions(**values)
