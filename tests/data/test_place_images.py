"""The table: columns, validation, neighborhood, selection, hash."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from kappaplace.data.check import summarize
from kappaplace.data.geodesy import project
from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages, concatenate
from kappaplace.errors import KappaPlaceError


def small(**rest: object) -> PlaceImages:
    return PlaceImages.create(
        ["r0.jpg", "r1.jpg", "q0.jpg", "r2.jpg"],
        [[0, 0], [10, 0], [5, 0], [100, 0]],
        is_query=[False, False, True, False],
        **rest,
    )


def test_unknown_values_are_filled_in():
    table = PlaceImages.create(["a.jpg", "b.jpg"])
    assert np.isnan(table.positions).all()
    assert np.isnan(table.heading).all()
    assert table.place.tolist() == [-1, -1]
    assert table.condition.tolist() == ["", ""]
    assert not table.is_query.any()
    assert not table.posed.any()
    assert (table.radius, table.frame, str(table.neighborhood)) == (25.0, "local", "metres:25")


def test_queries_and_references_are_counted_separately():
    table = small()
    assert table.query_rows.tolist() == [2]
    assert table.reference_rows.tolist() == [0, 1, 3]
    assert table.positives().of(0).tolist() == [0, 1]
    assert table.references.paths.tolist() == ["r0.jpg", "r1.jpg", "r2.jpg"]
    assert len(table.queries) == 1


def test_table_is_frozen():
    table = small()
    with pytest.raises(FrozenInstanceError):
        table.radius = 5.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        table.positions[0, 0] = 1.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positions": [[0, np.nan], [1, 1]]}, "only one of its two coordinates"),
        ({"positions": [[0, np.inf], [1, 1]]}, "a coordinate above"),
        ({"positions": [[0, 1]]}, "shape"),
        ({"heading": [1.0]}, "shape"),
        ({"heading": ["north", "east"]}, "heading"),
        ({"radius": 0.0}, "radius"),
        ({"frame": "EPSG:utm"}, "Unknown frame 'EPSG:utm'"),
        ({"frame": "EPSG:32632;EPSG:32633"}, "Write local, EPSG:32610 or"),
        ({"accuracy": [-1.0, 1.0]}, "negative position accuracy"),
        ({"given_positives": Positives.from_lists([[0]], 1)}, "got 1 and 1"),
    ],
)
def test_bad_values_raise_one_message(changes, words):
    with pytest.raises(KappaPlaceError, match=words):
        PlaceImages.create(["a.jpg", "b.jpg"], **changes)


def test_heading_wraps_around():
    table = PlaceImages.create(["a", "b", "c", "d"], heading=[-90.0, 360.0, 725.0, np.nan])
    assert table.heading[:3].tolist() == [270.0, 0.0, 5.0]
    assert np.isnan(table.heading[3])
    assert PlaceImages.create(["a"], heading=[-1e-9]).heading[0] < 360.0


def test_near_in_meters_frames_and_self():
    meters = small(neighborhood=Neighborhood("metres", 10.0))
    assert meters.is_near([0, 0, 0], [0, 1, 2]).tolist() == [True, True, False]
    assert meters.is_near(np.arange(3)[:, None], np.arange(3)).shape == (3, 3)
    assert meters.near(0).tolist() == [0, 1]
    frames = small(neighborhood=Neighborhood("frames", 1))
    assert frames.near(1).tolist() == [0, 1, 2]
    assert frames.near(0).tolist() == [0, 1]
    assert small(neighborhood=Neighborhood("self")).near(1).tolist() == [1]


def test_frames_of_different_routes_are_never_near():
    table = PlaceImages.create(
        ["a", "b", "c"], condition=["one", "one", "two"], neighborhood=Neighborhood("frames", 5)
    )
    assert table.near(1).tolist() == [0, 1]


def test_unposed_images_are_near_only_themselves():
    table = PlaceImages.create(["a", "b"])
    assert table.is_near([0, 0], [0, 1]).tolist() == [True, False]


def test_select_preserves_frame_numbers_and_positives():
    positives = Positives.from_lists([[0, 1, 2]], 3)
    table = small(given_positives=positives, neighborhood=Neighborhood("frames", 1))
    part = table.select([3, 2, 0])
    assert part.positives().of(0).tolist() == [0, 1]
    assert part.near(0).tolist() == [0]  # frames 2 and 0 are still two apart
    assert part.frame_numbers().tolist() == [2, 0, 0]


def test_a_part_of_a_protocol_is_not_the_protocol():
    table = small(protocol="pitts30k-test")
    assert table.select(slice(0, 2)).protocol == ""
    assert table.select(np.arange(4)).protocol == "pitts30k-test"


def test_accuracy_widens_the_radius():
    table = PlaceImages.create(["q", "r"], [[0, 0], [30, 0]], is_query=[True, False], accuracy=[3.0, np.nan])
    assert table.positives().counts.tolist() == [0]
    assert replace(table, accuracy=np.array([3.0, 2.0])).positives().counts.tolist() == [1]


def test_hash_follows_content_not_root():
    table = small(name="a")
    assert table.content_hash == replace(table, root="/elsewhere", protocol="x").content_hash
    assert table.content_hash != replace(table, radius=10.0).content_hash
    assert table.content_hash != replace(table, positions=table.positions + 1e-9).content_hash
    assert table.content_hash != replace(table, name="b").content_hash
    minus_zero = replace(table, positions=np.where(table.positions == 0, -0.0, table.positions))
    assert table.content_hash == minus_zero.content_hash
    assert len(table.content_hash) == 64


def test_hash_is_the_same_on_every_machine():
    assert small(name="a").content_hash.startswith("2408f4ead9fc777a")


def test_table_travels_between_processes():
    table = small()
    assert pickle.loads(pickle.dumps(table)).content_hash == table.content_hash


def test_paths(tmp_path):
    table = small(root=tmp_path)
    assert table.image_path(0) == tmp_path / "r0.jpg"
    assert table.image_paths([2]) == [str(tmp_path / "q0.jpg")]
    assert len(table.image_paths()) == 4


def test_the_extent_is_measured_within_a_zone():
    positions, frame = project([51.5, 51.5, 42.36], [-0.001, 0.001, -71.06])
    table = PlaceImages.create(["a", "b", "c"], positions, frame=frame)
    assert summarize(table).extent_meters == pytest.approx([138.8, 8], abs=4)
    assert summarize(PlaceImages.create(["a"])).extent_meters == (0, 0)


def test_the_default_neighborhood_is_the_radius():
    assert str(small(radius=10.0).neighborhood) == "metres:10"
    assert str(small(radius=10.0).with_radius(7.0).neighborhood) == "metres:7"
    stated = small(radius=10.0, neighborhood=Neighborhood("metres", 3.0))
    assert str(stated.with_radius(7.0).neighborhood) == "metres:3"
    frames = small(neighborhood=Neighborhood("frames", 3)).with_radius(7.0)
    assert (frames.radius, str(frames.neighborhood)) == (7.0, "frames:3")


def test_frames_of_one_or_more_zones_or_none():
    for frame in ("local", "EPSG:32632", "EPSG:2154", "EPSG:32610,EPSG:32633"):
        assert small(frame=frame).frame == frame


@pytest.mark.parametrize("text", ["metres", "metres:x", "miles:3", "frames:-1", "metres:inf"])
def test_bad_neighborhoods(text):
    with pytest.raises(KappaPlaceError):
        Neighborhood.parse(text)


def test_neighborhood_round_trip():
    for text in ("metres:25", "frames:5", "self", "metres:12.5"):
        assert str(Neighborhood.parse(text)) == text


def route(folder: str, lists: list[list[int]], n: int, **rest: object) -> PlaceImages:
    return PlaceImages.create(
        [f"{i}.jpg" for i in range(n + len(lists))],
        is_query=[False] * n + [True] * len(lists),
        place=np.arange(n + len(lists)),
        root=folder,
        given_positives=Positives.from_lists(lists, n),
        neighborhood=Neighborhood("frames", 2),
        **rest,
    )


def test_listed_positives_and_frames_of_tables_are_not_mixed():
    whole = concatenate([route("/data/a", [[0], [1]], 2), route("/data/b", [[0, 2]], 3)], name="both")
    assert [whole.positives().of(q).tolist() for q in range(3)] == [[0], [1], [2, 4]]
    assert whole.near(1).tolist() == [0, 1]
    assert whole.near(2).tolist() == [2, 3, 4]
    assert len(np.unique(whole.place)) == len(whole)
    assert whole.name == "both"
    assert whole.image_paths([0, 4]) == ["/data/a/0.jpg", "/data/b/0.jpg"]


def test_positions_join_and_accuracy_is_filled_in():
    a = PlaceImages.create(["q.jpg"], [[0, 0]], is_query=[True], root="/x", place=[7])
    b = PlaceImages.create(["r.jpg"], [[3, 4]], root="/x", accuracy=[2.0], place=[7])
    whole = concatenate([a, b], shared_places=True)
    assert whole.positives().counts.tolist() == [1]
    assert np.isnan(whole.accuracy[0])
    assert whole.place.tolist() == [7, 7]
    assert whole.paths.tolist() == ["q.jpg", "r.jpg"]


def test_tables_that_do_not_match():
    a = PlaceImages.create(["a.jpg"], [[0, 0]], frame="EPSG:32610")
    b = PlaceImages.create(["b.jpg"], [[0, 0]], frame="EPSG:32611")
    with pytest.raises(KappaPlaceError, match="must have the same frame"):
        concatenate([a, b])
    with pytest.raises(KappaPlaceError, match="no table"):
        concatenate([])
