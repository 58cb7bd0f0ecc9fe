"""Splits never leak: no session, time or place is in two parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.split import SplitOptions, find_sessions, leak_rate, split_table
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError


def collection(n: int = 600, sessions: int = 6, seed: int = 0, **rest: object) -> PlaceImages:
    """Return drives over one square kilometre on different days, with one image per second."""
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


def test_sessions_are_detected_by_condition_time_or_folder():
    table = collection()
    assert find_sessions(table).source == "condition"
    bare = replace(table, condition=np.full(len(table), "", dtype=np.dtypes.StringDType()))
    by_time = find_sessions(bare)
    assert (by_time.source, len(by_time)) == ("time", 6)
    timeless = replace(bare, timestamp=np.full(len(table), np.nan))
    with pytest.raises(KappaPlaceError, match=r"single session.* --sessions folder"):
        find_sessions(timeless)  # folders may hold one drive in pieces: never without being asked for
    assert (find_sessions(timeless, "folder").source, len(find_sessions(timeless, "folder"))) == ("folder", 6)
    for kind in ("condition", "time", "folder"):
        assert np.array_equal(find_sessions(table, kind).number, find_sessions(table).number)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), sessions=st.integers(3, 12))
def test_no_session_is_divided(seed, sessions):
    table = collection(300, sessions, seed)
    split = split_table(table, SplitOptions("session", seed=seed))
    assert set(split.parts) == {"calibration", "test"}
    calibration, test = split.parts["calibration"], split.parts["test"]
    queries = [set(part.condition[part.query_rows].tolist()) for part in (calibration, test)]
    references = set(test.condition[test.reference_rows].tolist())
    assert not queries[0] & queries[1]
    assert not references & (queries[0] | queries[1])
    assert names(calibration, calibration.reference_rows) == names(test, test.reference_rows)
    total = len(test) + len(calibration.query_rows)
    assert total == len(table)


def test_queries_of_the_table_remain_queries():
    table = collection()
    table = replace(table, is_query=find_sessions(table).number >= 3)
    split = split_table(table, SplitOptions("session", calibration=0.3, test=0.3))
    assert all(len(part.reference_rows) == len(table.reference_rows) for part in split.parts.values())
    both = replace(table, is_query=np.arange(len(table)) % 2 == 0)
    assert any("warning" in note for note in split_table(both).notes)


def test_folders_as_sessions_report_the_leak():
    line = np.column_stack([np.arange(900.0), np.zeros(900)])  # one drive, a metre an image, in nine folders
    drive = PlaceImages.create([f"{i // 100}/{i}.jpg" for i in range(900)], line)
    note = split_table(drive, SplitOptions("session", sessions="folder")).notes[-1]
    assert note.startswith("warning: folders are used as sessions;")
    assert "% of the test queries are within 25 m of a calibration query" in note
    assert split_table(collection(), SplitOptions("session", sessions="condition")).notes == (
        "6 sessions, detected by condition",
    )
    spread = replace(drive, positions=line * 1000)
    assert (
        "0.0% of the test queries"
        in split_table(spread, SplitOptions("session", sessions="folder")).notes[-1]
    )
    unposed = replace(drive, positions=np.full((900, 2), np.nan))
    assert "cannot be measured" in split_table(unposed, SplitOptions("session", sessions="folder")).notes[-1]


def test_leak_rate_against_all_pairs():
    table = collection(200)
    a, b = np.arange(50), np.arange(50, 200)
    near = cdist(table.positions[b], table.positions[a]).min(axis=1) <= 25
    assert leak_rate(table, a, b) == pytest.approx(near.mean())
    assert 0 < near.mean() < 1


def test_time_runs_forward_with_a_gap():
    table = collection(2000, sessions=1)
    split = split_table(table, SplitOptions("time", gap=30.0))
    calibration, test = split.parts["calibration"], split.parts["test"]
    last_map = test.timestamp[test.reference_rows].max()
    first_calibration = calibration.timestamp[calibration.query_rows].min()
    last_calibration = calibration.timestamp[calibration.query_rows].max()
    first_test = test.timestamp[test.query_rows].min()
    assert first_calibration - last_map >= 30
    assert first_test - last_calibration >= 30
    assert split.dropped == 2 * 30 - 2
    assert abs(len(test.query_rows) - 400) < 40
    assert len(split.notes) == 1  # the map is the past, so there is nothing to warn of
    with pytest.raises(KappaPlaceError, match="no times and no frame numbers"):
        split_table(replace(table, timestamp=np.full(len(table), np.nan)), SplitOptions("time"))


def test_time_never_loses_a_part_silently():
    table = collection(1000, sessions=1)  # calibration is 200 s long
    with pytest.raises(KappaPlaceError, match=r"The calibration part is empty .* smaller --gap"):
        split_table(table, SplitOptions("time", gap=300.0))
    with pytest.raises(KappaPlaceError, match=r"The references part is empty .* smaller --gap"):
        split_table(table, SplitOptions("time", gap=5000.0))
    assert list(split_table(table, SplitOptions("time", calibration=0.0, gap=30.0)).parts) == [
        "test"
    ]  # it was not asked for


def test_references_newer_than_queries_are_reported():
    table = collection(1000, sessions=1)
    table = replace(table, is_query=np.arange(1000) % 2 == 0)
    notes = split_table(table, SplitOptions("time", gap=10.0)).notes
    assert notes[-1].startswith("warning: 500 references are not 10 s older than the first query")


def route(queries: int, references: int, **rest: object) -> PlaceImages:
    """Return two traverses of one route that have only frame numbers."""
    lists = [np.clip(np.arange(q - 5, q + 6), 0, references - 1) for q in range(queries)]
    return PlaceImages.create(
        [f"ref/{i}.jpg" for i in range(references)] + [f"query/{i}.jpg" for i in range(queries)],
        is_query=np.arange(queries + references) >= references,
        given_positives=Positives.from_lists(lists, references),
        **({"neighborhood": Neighborhood("frames", 5)} | rest),
    )


def test_a_route_without_times_is_cut_by_frame_numbers():
    split = split_table(route(100, 90), SplitOptions("time"))
    calibration, test = split.parts["calibration"], split.parts["test"]
    last = calibration.frame_numbers()[calibration.query_rows].max()
    first = test.frame_numbers()[test.query_rows].min()
    assert first - last == 6  # five frames, the neighbourhood, lie between them
    assert split.dropped == 5
    assert "5 frames removed" in split.notes[0]
    assert len(calibration.reference_rows) == len(test.reference_rows) == 90
    assert (calibration.positives().counts > 0).all()
    assert split_table(route(100, 90), SplitOptions("time", gap=9.0)).dropped == 9
    with pytest.raises(KappaPlaceError, match="at least the neighborhood frames:5"):
        split_table(route(100, 90), SplitOptions("time", gap=3.0))
    with pytest.raises(KappaPlaceError, match="no times and no frame numbers"):
        split_table(route(100, 90, neighborhood=Neighborhood("self")), SplitOptions("time"))
    with pytest.raises(KappaPlaceError, match="single session"):
        split_table(route(100, 90))


def test_time_divides_the_queries_of_the_table():
    table = collection(1000, sessions=1)
    table = replace(table, is_query=np.arange(1000) >= 600)
    split = split_table(table, SplitOptions("time", calibration=0.5, test=0.5, gap=0.0))
    assert [len(part.query_rows) for part in split.parts.values()] == [200, 200]
    assert all(len(part.reference_rows) == 600 for part in split.parts.values())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), buffer=st.sampled_from([None, 25.0, 60.0]), accurate=st.booleans())
def test_no_place_is_on_two_sides(seed, buffer, accurate):
    table = collection(500, seed=seed, accuracy=None if accurate else np.full(500, 5.0))
    split = split_table(table, SplitOptions("area", buffer=buffer, calibration=0.3, test=0.3, seed=seed))
    parts = list(split.parts.values())
    reach = (buffer or 25.0) + (0.0 if accurate else 10.0)
    for i, a in enumerate(parts):
        for b in parts[:i]:
            assert cdist(a.positions, b.positions).min() > reach
    assert sum(map(len, parts)) + split.dropped == 500
    assert list(split.parts) == ["train", "calibration", "test"]
    assert all(len(part.reference_rows) for part in parts)
    for part in parts:
        assert len(part.query_rows) or any(f"{part.name} has no queries" in note for note in split.notes)


@pytest.mark.parametrize("given_lists", [False, True])
def test_area_leaves_no_query_that_lost_its_positives(given_lists):
    table = collection(3000)
    is_query = find_sessions(table).number >= 4
    table = replace(table, is_query=is_query)
    if given_lists:
        table = replace(table, given_positives=table.positives())
    answered = set(table.paths[table.query_rows[table.positives().counts > 0]].tolist())
    split = split_table(table, SplitOptions("area", block=60.0, calibration=0.3, test=0.3))
    lonely = 0
    for part in split.parts.values():
        without = part.paths[part.query_rows[part.positives().counts == 0]].tolist()
        assert not answered & set(without)
        lonely += len(without)
    assert sum(map(len, split.parts.values())) + split.dropped == 3000
    assert "queries without any remaining positive dropped" in split.notes[1]
    hopeless = int((table.positives().counts == 0).sum())
    assert 0 < lonely <= hopeless  # those that never had one stay: the policy is the user's to choose


def test_area_of_a_single_session_has_no_queries():
    split = split_table(collection(sessions=1), SplitOptions("area", calibration=0.5, test=0.5))
    assert list(split.parts) == ["calibration", "test"]
    assert any("no queries" in note for note in split.notes)


def test_impossible_splits_raise():
    table = collection()
    with pytest.raises(KappaPlaceError, match="buffer must be at least"):
        split_table(table, SplitOptions("area", buffer=5.0))
    with pytest.raises(KappaPlaceError, match="Unknown source of sessions 'magic'"):
        split_table(table, SplitOptions("area", sessions="magic"))  # type: ignore[arg-type]
    with pytest.raises(KappaPlaceError, match="no positions"):
        split_table(replace(table, positions=np.full((len(table), 2), np.nan)), SplitOptions("area"))
    with pytest.raises(
        KappaPlaceError, match=r"2 sessions \(detected by condition\) are too few for 3 parts.*--by time"
    ):
        split_table(collection(sessions=2))
    for block in (0.0, -100.0, 49.0, float("nan")):
        with pytest.raises(
            KappaPlaceError,
            match=r"block must be at least twice the buffer of 25 m, got \S+\. Pass a larger --block",
        ):
            split_table(table, SplitOptions("area", block=block))
    with pytest.raises(KappaPlaceError, match=r"blocks of 5000 m are too few for 3 parts.*--block"):
        split_table(table, SplitOptions("area", block=5000.0))


@pytest.mark.parametrize("by", ["session", "time", "area"])
def test_fractions_are_never_rescaled_silently(by):
    for fractions in ((0.9, 0.9), (-0.1, 0.5), (1.2, 0.0), (float("nan"), 0.5)):
        with pytest.raises(KappaPlaceError, match="sum to at most 1, got"):
            SplitOptions(by, *fractions)


def test_options_without_effect_raise():
    with pytest.raises(KappaPlaceError, match=r"block has no effect on a split by time\. Omit --block\."):
        SplitOptions("time", block=5.0)
    with pytest.raises(KappaPlaceError, match="Unknown kind of split 'place'"):
        SplitOptions("place")  # type: ignore[arg-type]


def test_a_split_needs_two_parts():
    table = collection()
    with pytest.raises(KappaPlaceError, match="at least two parts"):
        split_table(table, SplitOptions("session", calibration=0.0, test=0.0))
