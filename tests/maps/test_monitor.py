"""Monitoring: no warning for queries like those of the calibration, a warning for others."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.maps.answer import Localization, Match, write_csv
from kappaplace.maps.tune.monitor import (
    MapMonitor,
    is_answer_file,
    monitor_file,
    read_observations,
    read_outcomes,
)
from kappaplace.reports.map_tune import drift_figure, write_drift


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    rng = np.random.default_rng(0)
    u = rng.random(400)
    right = rng.random(400) > u**2
    return fit_calibration(
        Examples(
            u,
            right,
            ["cosine"],
            signals={"cosine distance": u, "kappa": rng.normal(100, 10, 400)},
            domain={"cosine": rng.normal(0, 5, 400)},
        ),
        CalibrateOptions(0.2),
    )


def answers(
    calibration: Calibration, seed: int, n: int, kappa: float = 100.0, name: str = "q"
) -> list[Localization]:
    """Return answers to queries like those of the calibration, with another κ."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        u = float(rng.random())
        match = Match(1, "r", 0.0, 0.0, math.nan, math.nan, 1 - u, 50.0, u, 0.5, "doubtful", 0, "")
        found.append(
            Localization(
                f"{name}{i}",
                float(rng.normal(kappa, 10)),
                u,
                0.5,
                None,
                "doubtful",
                None,
                None,
                (match,),
                {"cosine": u},
                calibration=calibration.fingerprint,
            )
        )
    return found


def test_like_queries_are_quiet_and_others_get_a_note(calibration):
    monitor = MapMonitor(calibration, window=100)
    calm = monitor.watch(answers(calibration, 1, 250))
    assert all(answer.notes == () for answer in calm)
    assert monitor.drifting == ()
    worse = monitor.watch(answers(calibration, 2, 150, kappa=60.0))
    assert worse[0].notes == (monitor.note,)
    assert "kappa lower" in monitor.note
    assert "cosine" not in monitor.note
    assert monitor.watch(worse[:1])[0].notes == (monitor.note,)  # only one note
    better = monitor.watch(answers(calibration, 3, 199))
    assert monitor.drift.drifting == ()
    # The alarm stays until the map is calibrated again, and nothing is guaranteed until then.
    assert better[-1].notes == (monitor.note,)
    assert not any(answer.guaranteed for answer in better)


def test_a_self_calibration_is_watched_by_its_range_alone(calibration):
    own = replace(calibration, facts={**calibration.facts, "labelled": False})
    narrow = [replace(answer, kappa=105.0) for answer in answers(own, 1, 200)]
    assert MapMonitor(own).feed(narrow) == []
    theirs = [replace(answer, calibration=calibration.fingerprint) for answer in narrow]
    assert MapMonitor(calibration).feed(theirs)


def test_one_by_one_is_the_same_as_at_once(calibration):
    stream = answers(calibration, 4, 120, kappa=80.0)
    at_once, slowly = (MapMonitor(calibration, window=50, clock=lambda: 1.0) for _ in range(2))
    told = at_once.feed(stream)
    assert [w for answer in stream for w in slowly.feed([answer])] == told
    assert told
    assert slowly.drift.state() == at_once.drift.state()


def test_answers_of_another_calibration_are_refused(calibration):
    monitor = MapMonitor(calibration)
    (one,) = answers(calibration, 0, 1)
    with pytest.raises(KappaPlaceError, match="q0 is from another calibration"):
        monitor.feed([replace(one, calibration="0" * 16)])
    with pytest.raises(KappaPlaceError, match="without a calibration"):
        monitor.feed([replace(one, calibration="")])
    with pytest.raises(KappaPlaceError, match="has no kappa"):
        monitor.feed([replace(one, kappa=math.nan)])
    monitor.feed([replace(one, matches=(), signals={}, uncertainty=math.nan, calibration="")])
    assert (monitor.skipped, monitor.drift.queries) == (1, 0)


def test_files_of_answers_say_the_same(calibration, tmp_path):
    stream = answers(calibration, 5, 30)
    lines, sheet = tmp_path / "a.jsonl", tmp_path / "a.csv"
    lines.write_text("\n".join(json.dumps(answer.to_dict()) for answer in stream) + "\n\n")
    write_csv(stream, sheet)
    monitors = [MapMonitor(calibration, window=20, clock=lambda: 0.0) for _ in range(3)]
    monitors[0].feed(stream)
    monitors[1].take(read_observations(lines))
    monitors[2].take(read_observations(sheet))
    first = monitors[0].drift.state()
    assert monitors[1].drift.state() == first
    for name, values in monitors[2].drift.state().waiting.items():
        np.testing.assert_allclose(values, first.waiting[name])
    assert is_answer_file(lines)
    assert is_answer_file(sheet)
    table = tmp_path / "table.csv"
    table.write_text("path,x,y\n")
    assert not is_answer_file(table)
    assert not is_answer_file(tmp_path / "a.jpg")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"signals": {}, "kappa": "a"}', "7"])
def test_bad_answers_are_one_sentence(text, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("\n" + text)
    with pytest.raises(KappaPlaceError, match=r"a\.jsonl line 2"):
        read_observations(file)
    sheet = tmp_path / "a.csv"
    sheet.write_text("query,rank,similarity\nq,1,0.5\n")
    with pytest.raises(KappaPlaceError, match="line 2"):
        read_observations(sheet)
    with pytest.raises(KappaPlaceError, match="cannot be read"):
        read_observations(tmp_path / "nothing.jsonl")


@pytest.fixture
def watched(town_map: PlaceMap, calibration: Calibration) -> PlaceMap:
    """The tiny town with a calibration that does not fit its own queries."""
    town_map.calibrate_with(calibration, "a test", guarantee=True)
    return town_map


def test_the_map_is_only_read_and_its_answers_know(watched, queries):
    before = {file: file.stat().st_mtime_ns for file in watched.folder.rglob("*")}
    monitor = MapMonitor.open(watched.folder, window=len(queries), clock=lambda: 0.0)
    found = watched.localize(queries, k=2)
    assert monitor.watch(found)[0].notes[-1] == monitor.note != ""
    assert watched.localize(queries[0]).notes == found[0].notes  # not saved yet
    monitor.save()
    assert monitor_file(watched.folder).name == "town.map.monitor.json"
    assert {file: file.stat().st_mtime_ns for file in watched.folder.rglob("*")} == before
    said = PlaceMap.open(watched.folder).localize(queries[0])
    assert said.notes[-1] == monitor.note
    assert monitor.watch([said])[0].notes == said.notes
    again = MapMonitor.open(watched.folder)
    assert (again.drift.window, again.drift.queries, again.note) == (len(queries), len(queries), monitor.note)
    assert MapMonitor.open(watched.folder, window=7).drift.window == 7


def test_a_new_calibration_starts_over_and_keeps_the_old_watch(watched, queries, calibration):
    monitor = MapMonitor.open(watched.folder, window=len(queries))
    monitor.feed(watched.localize(queries, k=1))
    monitor.save()
    old = monitor_file(watched.folder).read_text()
    watched.calibrate_with(replace(calibration, facts={"another": 1}), "a test", guarantee=True)
    assert watched.localize(queries[0]).notes == ()
    monitor = MapMonitor.open(watched.folder)
    assert monitor.drift.queries == 0
    monitor.save()
    kept = watched.folder.with_name(f"town.map.monitor.{calibration.fingerprint}.json")
    assert kept.read_text() == old
    assert MapMonitor.open(watched.folder).set_aside is None


def test_what_cannot_be_watched(town_map, watched, calibration, tmp_path):
    with pytest.raises(KappaPlaceError, match="no reference statistics"):
        MapMonitor(replace(calibration, sketch=None))
    with pytest.raises(KappaPlaceError, match="has no file"):
        MapMonitor(calibration).save()
    with pytest.raises(KappaPlaceError, match="window must be 1 or more"):
        MapMonitor.open(watched.folder, window=0)
    file = monitor_file(watched.folder)
    for text in ("", "[]", '{"format": 2}', '{"format": 1, "calibration": "x"}'):
        file.write_text(text)
        with pytest.raises(KappaPlaceError, match="Delete it to start again"):
            MapMonitor.open(watched.folder)
        assert watched.notes() == []  # answers still work


def test_a_map_without_calibration_has_nothing_to_watch(town_map):
    with pytest.raises(KappaPlaceError, match="not calibrated"):
        MapMonitor.open(town_map.folder)


def test_the_picture_shows_windows_and_range(calibration, tmp_path: Path):
    monitor = MapMonitor(calibration, window=40, clock=lambda: 0.0)
    empty = drift_figure(monitor.drift)
    assert len(empty.axes) == 3
    monitor.feed(answers(calibration, 1, 80) + answers(calibration, 2, 100, kappa=60.0))
    figure = drift_figure(monitor.drift)
    kappa = next(axis for axis in figure.axes if axis.get_ylabel() == "κ")
    crosses = next(line for line in kappa.lines if line.get_marker() == "x")
    assert crosses.get_xdata().tolist() == [120.0, 160.0]
    for name in ("a.png", "a.svg", "a.html"):
        write_drift(monitor.drift, tmp_path / name, "Drift")
    page = (tmp_path / "a.html").read_text()
    assert "kappa has become lower" in page
    assert "1970-01-01" in page
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(KappaPlaceError, match=r"got \"a\.gif\""):
        write_drift(monitor.drift, tmp_path / "a.gif", "Drift")


def test_outcomes_that_contradict_the_risk_raise_an_alarm_that_stays(calibration, tmp_path):
    monitor = MapMonitor(calibration, file=tmp_path / "state.json")
    assert monitor.risk_alarm == ""
    assert monitor.add_outcomes([False] * 200) == ""
    assert "contradicts a risk of at most" in monitor.add_outcomes([True] * 60)
    assert monitor.note == monitor.risk_alarm
    assert monitor.add_outcomes([False] * 2000)
    monitor.save()
    again = MapMonitor(calibration, file=tmp_path / "state.json")
    again._resume(tmp_path / "state.json", None)
    assert again.outcomes == monitor.outcomes
    assert again.note == monitor.note
    with pytest.raises(KappaPlaceError, match="has no decisions"):
        MapMonitor(replace(calibration, rule=None)).add_outcomes([True])


def test_outcomes_are_read_from_a_table(tmp_path):
    file = tmp_path / "outcomes.csv"
    file.write_text("query,decision,correct\na,accept,yes\nb,reject,no\nc,accept,No\n")
    assert read_outcomes(file) == [False, True]
    file.write_text("correct\n1\n0\n")
    assert read_outcomes(file) == [False, True]
    file.write_text("correct\nperhaps\n")
    with pytest.raises(KappaPlaceError, match=r"line 2 needs yes or no .*'perhaps'"):
        read_outcomes(file)
    with pytest.raises(KappaPlaceError, match="Cannot read the outcomes"):
        read_outcomes(tmp_path / "none.csv")
