"""Joining tables."""

from __future__ import annotations

import numpy as np
import pytest

from kappaplace.data.combine import concatenate
from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError


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
