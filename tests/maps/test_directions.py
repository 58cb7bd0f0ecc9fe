"""Directions in which a map sees, and the note on a direction that it does not see."""

from __future__ import annotations

import numpy as np
import pytest

from kappaplace.data.table import PlaceImages
from kappaplace.maps import PlaceMap
from kappaplace.maps.directions import CELL, SECTORS, sectors_of


@pytest.fixture
def east(town: PlaceImages, tiny, tmp_path) -> PlaceMap:
    """The references of the town that look about east (105°)."""
    rows = town.reference_rows[np.abs(town.heading[town.reference_rows] - 105) < 1]
    return PlaceMap.build(town.select(rows), tmp_path / "east.map", tiny)


def test_every_direction_belongs_to_the_nearest_point_of_the_compass():
    headings = np.random.default_rng(0).uniform(0, 360, 500)
    compass = np.arange(8) * 45.0
    apart = np.abs((headings[:, None] - compass + 180) % 360 - 180)
    np.testing.assert_array_equal(sectors_of(headings), apart.argmin(axis=1))


def test_directions_are_counted_by_cell(town_map, town):
    seen = town_map.directions()
    references = town.references
    assert (seen.references, seen.unknown) == (len(references), 0)
    assert seen.size == CELL * town_map.manifest.radius
    assert seen.counts == {**dict.fromkeys(SECTORS, 0), "N": 14, "E": 14, "S": 14, "W": 14}
    for cell in seen.cells:
        offset = references.positions - [cell.x, cell.y]
        inside = ((offset >= -seen.size / 2) & (offset < seen.size / 2)).all(axis=1)
        assert sum(cell.counts) == inside.sum() > 0
        expected = np.bincount(sectors_of(references.heading[inside].astype(float)), minlength=8)
        assert list(cell.counts) == expected.tolist()
        assert 37 < cell.latitude < 38
    assert sum(sum(cell.counts) for cell in seen.cells) == len(references)
    assert seen.one_way == 0
    assert f"0 of {len(seen.cells)} cells" in seen.sentence


def test_a_map_of_one_direction(east):
    seen = east.directions()
    assert seen.one_way == len(seen.cells) > 0
    assert seen.counts["E"] == len(east)
    assert "E 14" in seen.sentence


def test_unknown_headings_are_counted_apart(town, tiny, tmp_path):
    table = PlaceImages.create(town.paths, town.positions, root=town.root, frame=town.frame)
    blind = PlaceMap.build(table, tmp_path / "blind.map", tiny)
    assert (blind.directions().references, blind.directions().unknown) == (0, len(table))
    assert blind.directions().cells == ()
    assert "no reference has a heading" in blind.directions().sentence
    answer = blind.localize(town.image_path(0), heading=10)
    assert not any("looks this way" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("heading", "seen"), [(105, True), (165, True), (44, False), (166, False), (285, False)]
)
def test_an_answer_states_that_the_map_has_no_image_of_this_direction(east, queries, heading, seen):
    notes = east.localize(queries[0], heading=heading).notes
    assert any("no image that looks this way here" in note for note in notes) != seen
    x, y = east.store.positions[0].tolist()
    notes = east.localize(queries[0], area=(x, y, 12.0), heading=heading).notes
    assert any("at most 12 m away" in note for note in notes) != seen
    assert not any("looks this way" in note for note in east.localize(queries[0]).notes)
