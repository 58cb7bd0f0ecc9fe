"""Classes and groups against a plain loop, and the promise that neighbours never share a group."""

from __future__ import annotations

import math
import time
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.training.places import assign_classes, heading_groups

COORDINATE = st.floats(-5e6, 5e6, allow_nan=False) | st.integers(-300, 300).map(lambda i: i * 10.0)
HEADING = st.floats(-1000, 1000, allow_nan=False) | st.integers(-24, 24).map(lambda i: i * 30.0)
POSES = st.lists(st.tuples(COORDINATE, COORDINATE, HEADING), min_size=1, max_size=60)


def brute_force(
    poses: np.ndarray, cell: float, angle: float, minimum: int
) -> dict[tuple[int, ...], list[int]]:
    members = defaultdict(list)
    for row, (east, north, heading) in enumerate(poses):
        if not all(map(math.isfinite, (east, north, heading))):
            continue
        turned = heading % 360.0
        sector = 0 if turned == 360.0 else math.floor(turned / angle)
        members[math.floor(east / cell), math.floor(north / cell), sector].append(row)
    return {key: rows for key, rows in sorted(members.items()) if len(rows) >= minimum}


@settings(deadline=None)
@given(POSES, st.sampled_from([10.0, 25.0]), st.sampled_from([30.0, 45.0, 100.0, 360.0]), st.integers(1, 3))
def test_agrees_with_a_plain_loop(poses: list, cell: float, angle: float, minimum: int) -> None:
    table = np.array(poses)
    table[::7, 1] = np.nan
    found = assign_classes(table[:, :2], table[:, 2], cell, angle, min_images=minimum)
    expected = brute_force(table, cell, angle, minimum)
    assert [tuple(c) for c in found.cells.tolist()] == list(expected)
    assert [found.images_of(c).tolist() for c in range(len(found))] == list(expected.values())
    labels = np.full(len(table), -1)
    for number, rows in enumerate(expected.values()):
        labels[rows] = number
    np.testing.assert_array_equal(found.class_of_image, labels)
    np.testing.assert_array_equal(found.counts, [len(rows) for rows in expected.values()])


def test_groups_of_the_paper_by_hand() -> None:
    # (east, north, heading) → cell index → group (cell mod 5, cell mod 5, sector mod 2)
    cases = {
        (0, 0, 0): (0, 0, 0),
        (9.99, 10, 29.9): (0, 1, 0),
        (-0.01, -10, 30): (4, 4, 1),
        (-50, -50.1, -1): (0, 4, 1),
        (523456.7, 4180000.2, 725.0): (0, 0, 0),
        (49.9, 70, 359.99): (4, 2, 1),
    }
    found = assign_classes([p[:2] for p in cases], [p[2] for p in cases], min_images=1)
    for row, (east, north, heading) in enumerate(cases.values()):
        assert found.group_of_class[found.class_of_image[row]] == (east * 5 + north) * 2 + heading
    assert found.n_groups == 50


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(st.integers(-30, 30), st.integers(-30, 30)),
    st.sampled_from([30.0, 45.0, 360 / 7, 100.0, 120.0, 77.0, 180.0]),
    st.integers(2, 6),
    st.integers(2, 5),
)
def test_neighbors_never_share_a_group(
    corner: tuple[int, int], angle: float, per_axis: int, per_heading: int
) -> None:
    sectors = math.ceil(360 / angle - 1e-9)
    ground = np.stack(np.meshgrid(np.arange(7), np.arange(7), np.arange(sectors), indexing="ij"), -1).reshape(
        -1, 3
    )
    places = (ground[:, :2] + corner + 0.5) * 10
    found = assign_classes(
        places, (ground[:, 2] + 0.01) * angle, 10, angle, per_axis, per_heading, min_images=1
    )
    assert len(found) == len(ground)
    apart = np.abs(found.cells[:, None] - found.cells[None])
    around = np.minimum(
        apart[..., 2], sectors - apart[..., 2]
    )  # north is between the last sector and the first
    same = found.group_of_class[:, None] == found.group_of_class[None]
    far = (apart[..., 0] >= per_axis) | (apart[..., 1] >= per_axis) | (around >= min(per_heading, sectors))
    np.fill_diagonal(same, False)
    assert far[same].all()
    assert found.group_of_class.max() < found.n_groups


@settings(deadline=None)
@given(st.floats(-720, 720), st.integers(-3, 3), st.floats(-100, 100))
def test_whole_turns_do_not_matter(heading: float, turns: int, east: float) -> None:
    heading = math.floor(heading) + 0.5  # away from the edges, where adding a turn may round
    one = assign_classes([[east, 0]], [heading], min_images=1)
    other = assign_classes([[east, 0]], [heading + 360 * turns], min_images=1)
    np.testing.assert_array_equal(one.cells, other.cells)


def test_tiny_negative_heading_is_north() -> None:
    assert assign_classes([[0, 0]], [-1e-300], min_images=1).cells[0, 2] == 0


def test_heading_groups_split_off_the_remainder() -> None:
    assert heading_groups(np.arange(7), 7, 3)[0].tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert heading_groups(np.arange(2), 2, 5) == (pytest.approx([0, 1]), 2)
    assert heading_groups(np.arange(12), 12, 2)[1] == 2


@settings(deadline=None)
@given(POSES, st.integers(0, 2**31))
def test_group_holds_its_classes_with_local_labels(poses: list, seed: int) -> None:
    table = np.array(poses)
    table[:, :2] %= 60
    found = assign_classes(table[:, :2], table[:, 2], groups_per_axis=2, min_images=1)
    assert found.group_sizes.sum() == len(found)
    rows = []
    for i in range(found.n_groups):
        group = found.group(i)
        assert len(group) == found.group_sizes[i]
        for label, place_class in enumerate(group.classes):
            members = group.images[group.offsets[label] : group.offsets[label + 1]]
            np.testing.assert_array_equal(members, found.images_of(place_class))
            assert (group.labels(members) == label).all()
            rows += members.tolist()
    assert sorted(rows) == list(range(len(table)))
    assert found.all().counts.tolist() == found.counts.tolist()


def test_labels_of_foreign_images_are_an_error() -> None:
    found = assign_classes([[0, 0], [15, 0], [np.nan, 0]], [0, 0, 0], min_images=1)
    group = found.group(int(found.group_of_class[0]))
    assert group.labels([0]).tolist() == [0]
    for foreign in (1, 2):
        with pytest.raises(KappaPlaceError, match="not in this group"):
            group.labels([foreign])


def test_without_headings_and_without_images() -> None:
    found = assign_classes([[1, 1], [2, 2], [11, 1]], min_images=1)
    assert found.counts.tolist() == [2, 1]
    assert found.n_groups == 25
    empty = assign_classes(np.empty((0, 2)), np.empty(0))
    assert len(empty) == 0
    assert len(empty.group(0)) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"positions": [1, 2]},
        {"positions": [[1, 2, 3]]},
        {"heading": [0, 0]},
        {"cell": 0},
        {"angle": 400},
        {"groups_per_axis": 0},
    ],
)
def test_bad_input_is_refused(wrong: dict) -> None:
    with pytest.raises(KappaPlaceError):
        assign_classes(**{"positions": [[0, 0]], "heading": [0], **wrong})
    with pytest.raises(KappaPlaceError, match="group must be between 0 and 24"):
        assign_classes([[0, 0]]).group(25)


def test_a_million_images_take_seconds() -> None:
    rng = np.random.default_rng(0)
    places, headings = rng.uniform(-3000, 3000, (10**6, 2)), rng.uniform(0, 360, 10**6)
    start = time.process_time()
    assign_classes(places, headings, min_images=2)
    assert time.process_time() - start < 5
