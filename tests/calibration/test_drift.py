"""Drift: quiet on exchangeable queries, loud on others, and right about which way."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import ks_2samp

from kappaplace.calibration.drift import DriftMonitor, DriftWarning, MonitorState, compare
from kappaplace.calibration.sketch import Sketch
from kappaplace.errors import KappaPlaceError
from kappaplace.records import RecordError, from_plain, to_plain


def draw(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    if kind == "heavy":
        return rng.standard_cauchy(n)
    if kind == "tied":
        return rng.integers(0, 5, n).astype(float)
    return rng.normal(0, 1, n)


@pytest.mark.parametrize("kind", ["normal", "heavy", "tied"])
@pytest.mark.parametrize(("n", "window"), [(60, 50), (1000, 200)])
def test_no_alarm_on_exchangeable_queries(kind: str, n: int, window: int) -> None:
    alarms, trials = 0, 300
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        sketch = Sketch.of({"x": draw(kind, rng, n)})
        alarms += bool(compare(sketch, {"x": draw(kind, rng, window)}, 0.05))
    assert alarms / trials <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize(
    ("change", "direction"),
    [
        (lambda x: x + 1.0, "higher"),
        (lambda x: x - 1.0, "lower"),
        (lambda x: 3 * x, "wider"),
    ],
)
def test_an_alarm_on_shifted_queries_says_which_way(change: object, direction: str) -> None:
    rng = np.random.default_rng(0)
    sketch = Sketch.of({"kappa": rng.normal(0, 1, 1000), "still": rng.normal(0, 1, 1000)})
    found = compare(sketch, {"kappa": change(rng.normal(0, 1, 200)), "still": rng.normal(0, 1, 200)})
    assert found
    for warning in found:
        assert warning.signal == "kappa"
        assert warning.statistic > warning.limit
        assert warning.sentence.startswith(f"kappa has become {warning.direction}:")
    assert direction in {warning.direction for warning in found}


def test_the_gap_is_never_more_than_the_full_statistic() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        old, new = rng.integers(0, 30, 300) / 7, rng.integers(5, 40, 80) / 7
        found = [w for w in compare(Sketch.of({"x": old}), {"x": new}) if w.test == "shape"]
        full = ks_2samp(old, new).statistic
        if found:
            assert found[0].statistic <= full + 1e-12
            assert found[0].statistic > full - 0.15


def test_the_monitor_judges_full_windows_and_takes_queries_one_by_one() -> None:
    rng = np.random.default_rng(0)
    sketch = Sketch.of({"x": rng.normal(0, 1, 500)})
    one_by_one, at_once = DriftMonitor(sketch, 50), DriftMonitor(sketch, 50)
    stream = np.concatenate([rng.normal(0, 1, 100), rng.normal(3, 1, 75)])
    slowly = [w for value in stream for w in one_by_one.update({"x": [value]})]
    assert slowly == at_once.update({"x": stream})
    assert one_by_one.windows == at_once.windows == 3
    assert {w.direction for w in slowly} == {"higher"}


def test_without_the_shape_only_the_range_counts() -> None:
    rng = np.random.default_rng(0)
    sketch = Sketch.of({"x": rng.normal(0, 1, 1000)})
    inside, beyond = rng.normal(0.5, 0.3, 200), rng.normal(4, 0.3, 200)
    assert {w.test for w in compare(sketch, {"x": inside})} == {"shape"}
    assert compare(sketch, {"x": inside}, shape=False) == []
    assert {w.test for w in compare(sketch, {"x": beyond}, shape=False)} == {"range"}
    monitor = DriftMonitor(sketch, 200, shape=False)
    assert monitor.update({"x": inside}) == []
    assert monitor.update({"x": beyond})


def test_a_monitor_goes_on_where_it_was_stored() -> None:
    rng = np.random.default_rng(1)
    sketch = Sketch.of({"x": rng.normal(0, 1, 500), "y": rng.normal(0, 1, 500)})
    stream = {"x": rng.normal(0, 1, 130), "y": np.concatenate([rng.normal(0, 1, 60), rng.normal(3, 1, 70)])}
    whole = DriftMonitor(sketch, 50)
    told = whole.update(stream, time=7.0)
    parts = DriftMonitor(sketch, 50)
    again: list[DriftWarning] = []
    for start in range(0, 130, 13):
        parts = DriftMonitor.resume(
            from_plain(MonitorState, json.loads(json.dumps(to_plain(parts.state())))), sketch
        )
        again += parts.update({name: v[start : start + 13] for name, v in stream.items()}, time=7.0)
    assert again == told
    assert parts.state() == whole.state()
    assert (whole.windows, whole.queries, whole.waiting) == (2, 130, 30)
    assert [window.queries for window in whole.history] == [50, 100]
    assert whole.drifting == whole.history[-1].warnings != ()
    middle = whole.history[0].quantiles["x"][1]
    assert middle == np.median(stream["x"][:50])
    assert sketch.calibrated_range("x") == pytest.approx((-2.3, 2.3), abs=0.7)


def test_a_stored_monitor_that_is_damaged_is_refused() -> None:
    sketch = Sketch.of({"x": np.arange(100.0)})
    monitor = DriftMonitor(sketch, 2)
    monitor.update({"x": [1.0, 2.0, 3.0]})
    good = to_plain(monitor.state())
    (window,) = good["history"]
    for change in (
        {"waiting": {"y": [1.0]}},
        {"waiting": {"x": ["a"]}},
        {"window": 0},
        {"history": [{**window, "quantiles": {"x": [1.0]}}]},
        {"history": [{**window, "quantiles": {"z": [1.0, 1.0, 1.0]}}]},
        {"history": [{}]},
    ):
        with pytest.raises((RecordError, KappaPlaceError)):
            DriftMonitor.resume(from_plain(MonitorState, {**good, **change}), sketch)


def test_constant_and_tiny_calibrations_are_handled() -> None:
    assert compare(Sketch.of({"x": np.zeros(100)}), {"x": np.zeros(50)}) == []
    assert compare(Sketch.of({"x": np.zeros(100)}), {"x": np.ones(50)})
    assert compare(Sketch.of({"x": [0.0, 1.0]}), {"x": [0.5]}) == []
    assert compare(Sketch.of({"x": np.arange(10.0)}), {"x": []}) == []


def test_storage() -> None:
    sketch = Sketch.of({"x": np.random.default_rng(0).normal(0, 1, 12_345), "y": np.zeros(12_345)})
    assert len(sketch.ranks) == 101
    assert from_plain(Sketch, json.loads(json.dumps(to_plain(sketch)))) == sketch


def test_bad_input() -> None:
    sketch = Sketch.of({"x": np.arange(10.0), "y": np.arange(10.0)})
    stored = to_plain(sketch)
    for call in (
        lambda: Sketch.of({}),
        lambda: Sketch.of({"x": [1.0]}),
        lambda: Sketch.of({"x": [1.0, 2.0], "y": [1.0]}),
        lambda: Sketch.of({"x": np.zeros((3, 2))}),
        lambda: compare(sketch, {"z": [1.0]}),
        lambda: compare(sketch, {"x": [np.nan]}),
        lambda: compare(sketch, {"x": [1.0]}, 0.0),
        lambda: DriftMonitor(sketch, 0),
        lambda: DriftMonitor(sketch).update({"x": [1.0]}),
        lambda: DriftMonitor(sketch).update({"x": [1.0], "y": []}),
        lambda: from_plain(Sketch, {}),
        lambda: from_plain(Sketch, {**stored, "count": 3}),
        lambda: from_plain(Sketch, {**stored, "values": [1]}),
        lambda: from_plain(Sketch, {**stored, "values": {"x": stored["values"]["x"][::-1]}}),
    ):
        with pytest.raises((RecordError, KappaPlaceError)):
            call()
