"""Splits, poses and files of the synthetic city."""

from __future__ import annotations

import csv
import pickle
from itertools import combinations, pairwise

import numpy as np
import pytest
from PIL import Image

from kappaplace.errors import KappaPlaceError
from kappaplace_city import CONDITION_NAMES, SPLITS, Camera, Conditions, SyntheticCity, write_city


@pytest.fixture(scope="module")
def city() -> SyntheticCity:
    return SyntheticCity(seed=3, blocks=(1, 2))


# --- splits ---


@pytest.mark.parametrize("blocks", [(1, 1), (3, 2), (12, 9)])
def test_districts_are_far_apart_and_share_no_facade(blocks):
    city = SyntheticCity(seed=0, blocks=blocks)
    boxes = [city.bounds(split) for split in SPLITS]
    for (_, high), (low, _) in pairwise(boxes):
        assert low[0] - high[0] > 400
    seeds = [{face.seed for face in city.district(split).faces} for split in SPLITS]
    assert all(one.isdisjoint(other) for one, other in combinations(seeds, 2))


def test_views_stay_in_their_district(city):
    for split in SPLITS:
        low, high = city.bounds(split)
        views = city.views(split, queries=30)
        assert views.split == split
        assert ((views.positions > low) & (views.positions < high)).all()


# --- poses ---


@pytest.mark.parametrize(("headings", "per_class", "spacing"), [(4, 12, 10), (12, 10, 20), (2, 15, 30)])
def test_training_views_fill_their_classes(city, headings, per_class, spacing):
    views = city.views("train", headings=headings, per_class=per_class, spacing=spacing)
    cells = np.column_stack([views.positions // 10, views.heading // 30]).astype(int)
    classes, sizes = np.unique(cells, axis=0, return_counts=True)
    assert len(classes) > 20
    assert (sizes == per_class).all()
    assert not views.is_query.any()
    assert len(np.unique(views.poses, axis=0)) == len(views)


@pytest.mark.parametrize("spacing", [3, 5, 10, 30])
def test_every_query_has_a_reference_but_stands_elsewhere(city, spacing):
    views = city.views("test", spacing=spacing, queries=200)
    queries, references = views.select(views.is_query), views.select(~views.is_query)
    assert len(queries) == 200
    distance = np.linalg.norm(queries.positions[:, None] - references.positions, axis=2)
    assert distance.min() > 0.5
    turn = np.abs((queries.heading[:, None] - references.heading + 180) % 360 - 180)
    assert ((distance < 25) & (turn < 15)).any(axis=1).all()
    assert len(np.unique(references.poses, axis=0)) == len(references)


def test_queries_are_taken_under_other_conditions(city):
    views = city.views("val", queries=300)
    damage = views.conditions.damage
    assert damage[views.is_query].mean() > damage[~views.is_query].mean() + 0.1
    assert (damage[views.is_query] == 0).mean() == pytest.approx(0.3, abs=0.1)
    clear = city.views("val", strength=0, query_strength=0)
    assert not clear.conditions.damage.any()


def test_types_and_shapes(city):
    views = city.views("val", queries=7)
    count = len(views)
    assert views.positions.shape == (count, 2)
    assert views.positions.dtype == np.float64
    for part in (views.heading, views.featureless, views.aliased, views.conditions.damage):
        assert part.shape == (count,)
        assert part.dtype == np.float32
    assert views.is_query.sum() == 7
    assert len(views.select(np.array([3, 1]))) == 2


def test_views_can_travel_to_other_processes(city):
    views = city.views("val", queries=3).select(np.arange(2))
    copy = pickle.loads(pickle.dumps(views))
    np.testing.assert_array_equal(copy.render(16), views.render(16))


# --- files ---


@pytest.fixture
def few(city):
    """A handful of views of every split."""
    chosen = {}
    for split in SPLITS:
        views = city.views(split, queries=4)
        chosen[split] = views.select(np.r_[0:3, len(views) - 3 : len(views)])
    return chosen


def test_files_carry_poses_and_levels(city, few, tmp_path):
    from pyproj import Transformer

    write_city(city, tmp_path / "city", 32, views=few)
    with (tmp_path / "city/conditions.csv").open(encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == 18
    folders = {row["file"].rsplit("/", 1)[0] for row in table}
    assert folders == {"train", "val/database", "val/queries", "test/database", "test/queries"}
    known = [(views, row) for views in few.values() for row in range(len(views))]
    to_utm = Transformer.from_crs("EPSG:4326", "EPSG:32610", always_xy=True)
    for line, (views, row) in zip(table, known, strict=True):
        parts = line["file"].rsplit("/", 1)[1].split("@")
        assert len(parts) == 16  # nothing, fourteen fields, the extension
        assert (parts[0], parts[3], parts[4], parts[-1]) == ("", "10", "S", ".jpg")
        np.testing.assert_allclose([float(parts[1]), float(parts[2])], views.positions[row], atol=0.006)
        assert float(parts[9]) == pytest.approx(views.heading[row], abs=0.006)
        utm = to_utm.transform(float(parts[6]), float(parts[5]))
        np.testing.assert_allclose(utm, views.positions[row], atol=0.2)
        levels = [float(line[name]) for name in CONDITION_NAMES]
        np.testing.assert_allclose(levels, views.conditions.levels()[row], atol=1e-4)
        assert float(line["damage"]) == pytest.approx(views.conditions.damage[row], abs=1e-4)
        assert int(line["is_query"]) == views.is_query[row] == ("queries" in line["file"])
        with Image.open(tmp_path / "city" / line["file"]) as image:
            assert image.size == (32, 32)
            shown = np.asarray(image, float)
        rendered = views.render(32, np.array([row]))[0]
        assert np.abs(shown - rendered).mean() < 12


def test_a_second_run_writes_only_what_is_missing(city, few, tmp_path):
    write_city(city, tmp_path, 16, views=few)
    files = sorted(tmp_path.rglob("*.jpg"))
    stamps = {path: path.stat().st_mtime_ns for path in files}
    files[4].unlink()
    write_city(city, tmp_path, 16, views=few)
    assert sorted(tmp_path.rglob("*.jpg")) == files
    assert [path for path in files if path.stat().st_mtime_ns != stamps[path]] == [files[4]]
    assert not list(tmp_path.rglob("*.part"))


def test_another_data_set_in_the_folder_is_refused(city, few, tmp_path):
    write_city(city, tmp_path, 16, views=few)
    with pytest.raises(KappaPlaceError, match="another dataset"):
        write_city(city, tmp_path, 24, views=few)


def test_a_folder_that_cannot_be_written_is_told(city, few, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(KappaPlaceError, match="Cannot write to the folder"):
        write_city(city, tmp_path / "file" / "city", 16, views=few)


def test_views_under_the_wrong_name_are_refused(city, few, tmp_path):
    with pytest.raises(KappaPlaceError, match="got 'val'"):
        write_city(city, tmp_path, 16, views={"test": few["val"]})


# --- bad input ---


def test_bad_cities_are_refused():
    for options, words in (
        ({"seed": -1}, "seed"),
        ({"blocks": (0, 2)}, "blocks"),
        ({"aliased": 0.7, "featureless": 0.7}, r"aliased \+ featureless must be"),
    ):
        with pytest.raises(KappaPlaceError, match=words):
            SyntheticCity(**options)
    with pytest.raises(KappaPlaceError, match="field_of_view"):
        Camera(field_of_view=180)


def test_bad_renders_are_refused(city):
    corner = city.road_cells("val")[0][0]
    pose = np.array([[*(corner + 5), 0.0]])
    for arguments, words in (
        ({"poses": pose, "size": -1}, "image size"),
        ({"poses": pose, "size": (64, 0)}, "image size"),
        ({"poses": pose + 1e5}, "not on a street"),
        ({"poses": pose + np.array([20, 20, 0])}, "not on a street"),  # inside a building
        ({"poses": pose * np.nan}, "not on a street"),
        ({"poses": np.array([[*pose[0, :2], np.inf]])}, "finite numbers"),
        ({"poses": pose[:, :2]}, "N × 3"),
        ({"poses": pose, "conditions": Conditions.clear(2)}, "must have 1 values"),
        ({"poses": pose, "image_seeds": np.array([-1])}, "image_seeds"),
        ({"poses": pose, "workers": 0}, "workers"),
    ):
        with pytest.raises(KappaPlaceError, match=words):
            city.render(**arguments)


def test_bad_views_are_refused(city):
    for options, words in (
        ({"split": "holdout"}, "Unknown split"),
        ({"split": "val", "spacing": 0}, "spacing"),
        ({"split": "val", "headings": 5}, "headings"),
        ({"split": "val", "queries": -1}, "queries"),
        ({"split": "train", "per_class": 0}, "per_class"),
        ({"split": "val", "query_strength": 1.5}, "query_strength"),
    ):
        with pytest.raises(KappaPlaceError, match=words):
            city.views(**options)


def test_bad_conditions_are_refused():
    with pytest.raises(KappaPlaceError, match="'fog'"):
        Conditions.clear(2, fog=1.2)
    with pytest.raises(KappaPlaceError, match="Unknown condition"):
        Conditions.clear(2, hail=0.2)
    with pytest.raises(KappaPlaceError, match="one level per image"):
        Conditions(**{name: np.zeros(2 + (name == "rain")) for name in CONDITION_NAMES})


def test_no_poses_give_no_images(city):
    assert city.render(np.zeros((0, 3)), size=16).shape == (0, 16, 16, 3)
