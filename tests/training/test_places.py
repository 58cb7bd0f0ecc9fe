"""Groups of places from poses or labels, some of them held out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.training.places import BLOCK, find_places, single_images
from kappaplace.training.settings import ClassSettings

SETTINGS = ClassSettings(groups_per_axis=2, groups_per_heading=1, min_images=2)


def grid(side: int = 30, images: int = 2) -> np.ndarray:
    """Images in the middle of every cell of a square."""
    east, north = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    return np.repeat(np.stack([east.ravel(), north.ravel()], axis=1) * 10.0 + 5, images, axis=0)


def test_groups_are_the_largest_in_their_order() -> None:
    """Cells 0, 1, 2, 3, 4, 6 along a street: even cells are one group of four, odd ones one of two."""
    cells = np.array([0, 1, 2, 3, 4, 6])
    positions = np.repeat(np.stack([cells * 10.0 + 5, np.full(6, 5.0)], axis=1), 2, axis=0)
    places = find_places(positions, None, None, SETTINGS)
    assert [places.classes.cells[group.classes, 0].tolist() for group in places.groups(0)] == [
        [0, 2, 4, 6],
        [1, 3],
    ]
    assert [len(group) for group in places.groups(1)] == [4]
    assert [len(group) for group in places.groups(8)] == [4, 2]
    assert len(places.together()) == 6


def test_a_group_of_one_class_teaches_nothing() -> None:
    positions = np.repeat([[5.0, 5.0], [25.0, 5.0], [15.0, 5.0]], 2, axis=0)
    groups = find_places(positions, None, None, SETTINGS).groups(0)
    assert [group.images.tolist() for group in groups] == [[0, 1, 2, 3]]
    with pytest.raises(KappaPlaceError, match="at least two place classes"):
        find_places(positions[:2], None, None, SETTINGS).groups(0)


@hypothesis_settings(deadline=None, max_examples=25)
@given(share=st.floats(0, 1))
def test_trained_and_held_out_places_are_complete_and_disjoint(share: float) -> None:
    seen = {}
    for use in ("trained", "held-out", "all"):
        settings = replace(SETTINGS, hold_out=share, use=use)
        try:
            seen[use] = find_places(grid(), None, None, settings).selection
        except KappaPlaceError:  # all places on one side
            seen[use] = np.array([], np.int64)
    assert not np.intersect1d(seen["trained"], seen["held-out"]).size
    np.testing.assert_array_equal(np.union1d(seen["trained"], seen["held-out"]), seen["all"])


def test_whole_blocks_are_held_out_and_about_the_requested_fraction() -> None:
    places = find_places(grid(60), None, None, replace(SETTINGS, hold_out=0.4, use="held-out"))
    held_out = places.classes.cells[places.selection, :2] // BLOCK
    blocks, counts = np.unique(held_out, axis=0, return_counts=True)
    assert (counts == BLOCK * BLOCK).all()
    assert len(blocks) / (60 / BLOCK) ** 2 == pytest.approx(0.4, abs=0.17)  # 144 draws: four deviations


def test_the_same_places_are_held_out_whatever_else_is_in_the_table() -> None:
    settings = replace(SETTINGS, hold_out=0.5, use="held-out")
    whole, part = (find_places(positions, None, None, settings) for positions in (grid(), grid(15)))
    inside = {tuple(cell) for cell in whole.classes.cells[whole.selection].tolist() if max(cell[:2]) < 15}
    assert inside == {tuple(cell) for cell in part.classes.cells[part.selection].tolist()}


def test_labels_are_used_without_poses_or_on_request() -> None:
    positions = np.repeat([[5.0, 5.0], [15.0, 5.0]], 3, axis=0)
    labels = np.array([4, 9, 4, 9, 4, 9])
    by_pose = find_places(positions, None, labels, SETTINGS)
    assert by_pose.classes.class_of_image.tolist() == [0, 0, 0, 1, 1, 1]
    for places in (
        find_places(positions, None, labels, replace(SETTINGS, by="place")),
        find_places(np.full((6, 2), np.nan), None, labels, SETTINGS),
    ):
        assert places.classes.class_of_image.tolist() == [0, 1, 0, 1, 0, 1]
        assert [len(group) for group in places.groups(8)] == [2]


def test_unknown_headings_leave_the_cells() -> None:
    positions = np.repeat([[5.0, 5.0]], 4, axis=0)
    assert len(find_places(positions, np.full(4, np.nan), None, SETTINGS).classes) == 1
    assert len(find_places(positions, np.array([0.0, 0.0, 90.0, 90.0]), None, SETTINGS).classes) == 2


def test_single_images_are_places_of_their_own() -> None:
    group = single_images(5).together()
    assert group.images.tolist() == list(range(5))
    assert group.counts.tolist() == [1] * 5


def test_images_without_places_are_reported() -> None:
    nowhere = np.full((6, 2), np.nan)
    with pytest.raises(
        KappaPlaceError, match=r"neither positions nor place labels\. .*anchors.source to views"
    ):
        find_places(nowhere, None, None, SETTINGS)
    with pytest.raises(KappaPlaceError, match="neither positions nor place labels"):
        find_places(grid(2), None, None, replace(SETTINGS, by="place"))
    with pytest.raises(KappaPlaceError, match="No place has 5 images"):
        find_places(grid(3), None, None, replace(SETTINGS, min_images=5))
    with pytest.raises(KappaPlaceError, match=r"classes\.use='held-out' and classes\.hold_out=0"):
        find_places(grid(3), None, None, replace(SETTINGS, use="held-out"))
