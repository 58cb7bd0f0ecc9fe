"""Splits never leak: no session, no moment and no place on two sides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from kappaplace.data.place_images import PlaceImages
from kappaplace.data.sessions import find_sessions
from kappaplace.data.split import split_by_area, split_by_session, split_by_time
from kappaplace.errors import KappaPlaceError


def collection(n: int = 600, sessions: int = 6, seed: int = 0, **rest: object) -> PlaceImages:
    """Drives over one square kilometre, a day apart, an image a second."""
    rng = np.random.default_rng(seed)
    session = np.sort(rng.integers(0, sessions, n))
    return PlaceImages.create(
        [f"s{s}/{i:05d}.jpg" for i, s in enumerate(session)],
        rng.uniform(0, 1000, (n, 2)),
        timestamp=session * 86400.0 + np.arange(n),
        condition=[f"drive {s}" for s in session],
        name="town",
        **rest,
    )


def names(table: PlaceImages, rows: np.ndarray) -> set[str]:
    return set(table.paths[rows].tolist())


def test_sessions_are_found_by_condition_time_or_folder():
    table = collection()
    assert find_sessions(table).source == "condition"
    bare = replace(table, condition=np.full(len(table), "", dtype=np.dtypes.StringDType()))
    by_time = find_sessions(bare)
    assert (by_time.source, len(by_time)) == ("time", 6)
    timeless = replace(bare, timestamp=np.full(len(table), np.nan))
    assert (find_sessions(timeless).source, len(find_sessions(timeless))) == ("folder", 6)
    one = timeless.select(np.flatnonzero(find_sessions(timeless).number == 0))
    with pytest.raises(KappaPlaceError, match="single session"):
        find_sessions(one)
    for kind in ("condition", "time", "folder"):
        assert np.array_equal(find_sessions(table, kind).number, find_sessions(table).number)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), sessions=st.integers(3, 12))
def test_no_session_is_torn(seed, sessions):
    table = collection(300, sessions, seed)
    split = split_by_session(table, seed=seed)
    assert set(split.parts) == {"calibration", "test"}
    calibration, test = split.parts["calibration"], split.parts["test"]
    asked = [set(part.condition[part.query_rows].tolist()) for part in (calibration, test)]
    known = set(test.condition[test.reference_rows].tolist())
    assert not asked[0] & asked[1]
    assert not known & (asked[0] | asked[1])
    assert names(calibration, calibration.reference_rows) == names(test, test.reference_rows)
    total = len(test) + len(calibration.query_rows)
    assert total == len(table)


def test_given_queries_stay_queries():
    table = collection()
    table = replace(table, is_query=find_sessions(table).number >= 3)
    split = split_by_session(table, calibration=0.3, test=0.3)
    assert all(len(part.reference_rows) == len(table.reference_rows) for part in split.parts.values())
    both = replace(table, is_query=np.arange(len(table)) % 2 == 0)
    assert any("warning" in note for note in split_by_session(both).notes)


def test_time_runs_forward_with_a_gap():
    table = collection(2000, sessions=1)
    split = split_by_time(table, gap=30.0)
    calibration, test = split.parts["calibration"], split.parts["test"]
    last_map = test.timestamp[test.reference_rows].max()
    first_calibration = calibration.timestamp[calibration.query_rows].min()
    last_calibration = calibration.timestamp[calibration.query_rows].max()
    first_test = test.timestamp[test.query_rows].min()
    assert first_calibration - last_map >= 30
    assert first_test - last_calibration >= 30
    assert split.dropped == 2 * 30 - 2
    assert abs(len(test.query_rows) - 400) < 40
    with pytest.raises(KappaPlaceError, match="no timestamps"):
        split_by_time(replace(table, timestamp=np.full(len(table), np.nan)))


def test_time_cuts_given_queries():
    table = collection(1000, sessions=1)
    table = replace(table, is_query=np.arange(1000) >= 600)
    split = split_by_time(table, calibration=0.5, test=0.5, gap=0.0)
    assert [len(part.query_rows) for part in split.parts.values()] == [200, 200]
    assert all(len(part.reference_rows) == 600 for part in split.parts.values())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), buffer=st.sampled_from([0.0, 25.0, 60.0]), accurate=st.booleans())
def test_no_place_is_on_two_sides(seed, buffer, accurate):
    table = collection(500, seed=seed, accuracy=None if accurate else np.full(500, 5.0))
    split = split_by_area(table, buffer=buffer, calibration=0.3, test=0.3, seed=seed)
    parts = list(split.parts.values())
    reach = max(buffer, 25.0) + (0.0 if accurate else 10.0)
    for i, a in enumerate(parts):
        for b in parts[:i]:
            assert cdist(a.positions, b.positions).min() > reach
    assert sum(map(len, parts)) + split.dropped == 500
    assert list(split.parts) == ["train", "calibration", "test"]
    assert all(len(part.query_rows) and len(part.reference_rows) for part in parts)


def test_area_of_a_single_session_has_no_queries():
    split = split_by_area(collection(sessions=1), calibration=0.5, test=0.5)
    assert list(split.parts) == ["calibration", "test"]
    assert any("no queries" in note for note in split.notes)


def test_splits_that_cannot_be():
    table = collection()
    with pytest.raises(KappaPlaceError, match="would leak"):
        split_by_area(table, buffer=5.0)
    with pytest.raises(KappaPlaceError, match="no positions"):
        split_by_area(replace(table, positions=np.full((len(table), 2), np.nan)))
    with pytest.raises(KappaPlaceError, match="2 groups for 3 parts"):
        split_by_session(collection(sessions=2))
    with pytest.raises(KappaPlaceError, match="sum to at most 1"):
        split_by_session(table, calibration=0.8, test=0.8)
    with pytest.raises(KappaPlaceError, match="at least two parts"):
        split_by_session(table, calibration=0.0, test=0.0)
