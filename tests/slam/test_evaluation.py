from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.data.poses import compose
from kappaplace.errors import KappaPlaceError
from kappaplace.slam.evaluation import (
    closure_quality,
    corrupted,
    false_at_recall,
    recall_curve,
    same_place,
    trajectory_error,
)


def test_counts_of_closures() -> None:
    quality = closure_quality(np.array([True, True, False, True]), np.array([True, False, True, True]), 8)
    assert (quality.accepted, quality.false) == (3, 1)
    assert quality.precision == pytest.approx(2 / 3)
    assert quality.recall == pytest.approx(0.25)
    assert closure_quality(np.zeros(2, bool), np.ones(2, bool), 5).precision == 1.0
    with pytest.raises(KappaPlaceError):
        closure_quality(np.ones(2, bool), np.ones(2, bool), 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_the_curve_is_what_thresholds_give(pairs: list[tuple[int, bool]]) -> None:
    confidence = np.array([value for value, _ in pairs], float)
    right = np.array([good for _, good in pairs])
    possible = max(int(right.sum()), 1)
    recall, false = recall_curve(confidence, right, possible)
    thresholds = sorted(set(confidence.tolist()), reverse=True)
    assert len(recall) == len(thresholds)
    for value, got, wrong in zip(thresholds, recall, false, strict=True):
        taken = confidence >= value
        assert got == pytest.approx((taken & right).sum() / possible)
        assert wrong == (taken & ~right).sum()
    assert false_at_recall(recall, false, 0.0) == false[0]
    assert false_at_recall(recall, false, 2.0) == np.inf


def test_places_are_near_and_seen_the_same_way() -> None:
    poses = np.array([[0, 0, 0], [5, 0, 0.1], [5, 0, np.pi], [40, 0, 0]])
    rows = np.arange(4)
    assert same_place(poses, 0 * rows, rows).tolist() == [True, True, False, False]


def test_corruption_counts_runs_that_got_worse() -> None:
    assert corrupted([1.0, 2.0, 3.0, 4.0], [0.5, 2.0 + 1e-6, 3.5, 1.0]) == 0.25


def test_errors_of_trajectories() -> None:
    pytest.importorskip("evo")
    way = np.column_stack([np.linspace(0, 200, 101), 20 * np.sin(np.linspace(0, 6, 101)), np.zeros(101)])
    moved = compose(np.array([7.0, -3.0, 0.4]), way)
    assert trajectory_error(way, moved).absolute == pytest.approx(0, abs=1e-6)  # aligned
    rng = np.random.default_rng(0)
    noisy = way + np.column_stack([rng.normal(0, 0.5, (101, 2)), np.zeros(101)])
    error = trajectory_error(way, noisy)
    assert error.absolute == pytest.approx(0.5 * np.sqrt(2), rel=0.15)
    assert 0.3 < error.relative < 2
    with pytest.raises(KappaPlaceError, match="pose by pose"):
        trajectory_error(way, noisy[:-1])
