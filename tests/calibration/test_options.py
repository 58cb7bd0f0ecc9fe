"""Splits and thinning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.calibration.options import split_queries, thin_to_places
from kappaplace.errors import KappaPlaceError


@settings(deadline=None)
@given(n=st.integers(2, 200), seed=st.integers(0, 99), share=st.floats(0.01, 0.99))
def test_a_split_is_disjoint_complete_and_never_empty(n: int, seed: int, share: float) -> None:
    fit, threshold = split_queries(n, seed=seed, fit_share=share)
    assert sorted([*fit, *threshold]) == list(range(n))
    assert len(fit)
    assert len(threshold)
    assert abs(len(fit) - share * n) <= 1


@settings(deadline=None)
@given(n=st.integers(2, 100), groups=st.integers(2, 12), seed=st.integers(0, 99))
def test_groups_stay_whole(n: int, groups: int, seed: int) -> None:
    label = np.arange(n) % min(groups, n)
    fit, threshold = split_queries(n, label, seed)
    assert len(fit)
    assert len(threshold)
    assert not set(label[fit]) & set(label[threshold])


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999), spacing=st.floats(0.5, 30))
def test_thinned_positions_are_apart_and_cover_all(seed: int, spacing: float) -> None:
    points = np.random.default_rng(seed).random((60, 2)) * 100
    rows = thin_to_places(points, spacing)
    slow: list[int] = []
    for i in range(60):
        if all(np.hypot(*(points[i] - points[j])) >= spacing for j in slow):
            slow.append(i)
    assert rows.tolist() == slow


def test_frames_and_positions_on_the_rim() -> None:
    assert thin_to_places(np.arange(100), 25).tolist() == [0, 25, 50, 75]
    assert thin_to_places(np.array([[0.0, 0.0], [25.0, 0.0], [24.9, 0.0]]), 25).tolist() == [0, 1]
    assert thin_to_places(np.empty((0, 2)), 5).tolist() == []


def test_bad_input() -> None:
    for call in (
        lambda: split_queries(1),
        lambda: split_queries(5, np.zeros(5)),
        lambda: split_queries(5, np.zeros(4)),
        lambda: split_queries(5, fit_share=1.0),
        lambda: thin_to_places(np.zeros((3, 3)), 1),
        lambda: thin_to_places(np.array([0.0, np.nan]), 1),
        lambda: thin_to_places(np.arange(3), 0),
    ):
        with pytest.raises(KappaPlaceError):
            call()
