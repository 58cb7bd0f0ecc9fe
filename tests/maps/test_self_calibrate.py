"""Queries made of the map's own images, against loops over single references."""

from __future__ import annotations

import numpy as np
import pytest

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.radius import LIMIT, distances
from kappaplace.maps.tune.self_calibrate import burst_mask, self_examples, self_queries


def a_map(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Similarities, bursts, neighbourhood and positions of twenty references on a line, visited twice."""
    rng = np.random.default_rng(seed)
    x = np.tile(np.arange(10) * 10.0, 2)
    time = np.arange(20.0)
    rows = np.arange(20)
    similarities = rng.random((20, 20)).astype(np.float32)
    return similarities, burst_mask(rows, time, 1.0), np.abs(x[:, None] - x[None]) <= 15.0, x


@pytest.mark.parametrize("present", [None, np.arange(20) % 4 > 0])
def test_both_kinds_one_reference_at_a_time(present: np.ndarray | None) -> None:
    similarities, burst, near, _ = a_map()
    made = self_queries(similarities, burst, near, present=present)
    assert len(made.rows) == 40
    for m, row in enumerate(made.rows):
        alone = made.without_place[m] or present is None or not present[row]
        for r in range(20):
            gone = (alone and burst[row, r]) or (made.without_place[m] and near[row, r])
            assert np.isneginf(made.similarities[m, r]) == gone
            if not gone:
                assert made.similarities[m, r] == similarities[row, r]
            assert made.positives[m, r] == (near[row, r] and not gone)
        assert made.outside[m] == (not made.positives[m].any())
    assert made.outside[made.without_place].all()
    assert not made.outside[~made.without_place].any()  # the second visit remains
    assert made.similarities.dtype == np.float32


def test_a_single_visit_is_outside_without_its_burst() -> None:
    rows = np.arange(4)
    near = np.eye(4, dtype=bool)
    made = self_queries(np.ones((4, 4)), burst_mask(rows, rows * 100.0, 1.0), near)
    assert made.outside.all()


def test_queries_with_nothing_left_are_dropped() -> None:
    all_near = np.ones((3, 3), bool)
    made = self_queries(np.ones((3, 3)), np.eye(3, dtype=bool), all_near)
    assert made.without_place.tolist() == [False] * 3
    assert len(self_queries(np.ones((3, 3)), np.eye(3, dtype=bool), all_near, at_least=3).rows) == 0


def test_bursts() -> None:
    time = np.array([0.0, 1.0, 2.0, np.nan, 1.5])
    mask = burst_mask(np.array([0, 3, 4]), time, 1.0, np.array(["a", "a", "a", "a", "b"]))
    assert mask.tolist() == [
        [True, True, False, False, False],
        [False, False, False, True, False],
        [False, False, False, False, True],
    ]


def test_errors_of_positions_are_of_images_whose_place_was_removed(town_map):
    """An image that is still in the map finds itself, so it measures nothing."""
    examples = self_examples(town_map, CalibrateOptions(outside_rate=0.1))
    known = np.isfinite(examples.errors[:, 0])
    assert 0 < (~known).sum() < len(known) / 2
    assert not examples.outside[~known].any()
    assert examples.limit == LIMIT * town_map.manifest.radius
    moved, turned = distances(examples.errors[known]), np.abs(examples.errors[known, 2])
    assert ((moved > 1) | (turned > 1)).all()
    far = moved > town_map.manifest.radius
    assert far[examples.outside[known]].all()
    assert not (far & examples.right[known]).any()
