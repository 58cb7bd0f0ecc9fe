"""Anytime-valid monitoring: at most 5% false alarms in 1,000 long runs, also with ties, and delays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.calibration.drift import DriftMonitor, MonitorState, Sketch
from kappaplace.calibration.martingale import (
    DIRECTIONS,
    EXCESS,
    LEVEL,
    ExchangeabilityMartingale,
    Wealth,
    bet,
    conformal_p,
    payoffs,
    risk_alarm,
    risk_payoffs,
    total,
    update_risk,
)
from kappaplace.records import from_plain, to_plain

RUNS, LONG = 1000, 2000
"""Runs and queries of each. With one query per ten seconds that is a day, with ten per day most of a year."""
MOST = LEVEL * RUNS + 3 * np.sqrt(RUNS * LEVEL * (1 - LEVEL))


def alarms(cells: np.ndarray, gaps: np.ndarray, rng: np.random.Generator) -> int:
    """Count the runs (rows) whose wealth ever reaches 1/LEVEL."""
    counts = np.zeros((len(cells), gaps.shape[-1]), np.int64)
    capital, peak, rows = np.zeros((len(cells), len(DIRECTIONS))), np.ones(len(cells)), np.arange(len(cells))
    for step in range(cells.shape[1]):
        p = conformal_p(gaps, counts, cells[:, step], rng.random(len(cells)))
        capital = bet(capital, payoffs(p), step)
        counts[rows, cells[:, step]] += 1
        peak = np.maximum(peak, total(capital, step + 1))
    return int((peak >= 1 / LEVEL).sum())


@pytest.mark.parametrize("kind", ["continuous", "three values", "constant", "few queries"])
def test_false_alarms_in_1000_long_runs(kind: str) -> None:
    """The cells come from the class itself; calibration and stream are drawn anew in each run."""
    rng = np.random.default_rng(0)
    count = 9 if kind == "few queries" else 150
    cells, gaps = [], []
    for _ in range(RUNS):
        draw = {
            "continuous": lambda n: rng.normal(0, 1, n),
            "few queries": lambda n: rng.normal(0, 1, n),
            "three values": lambda n: rng.integers(0, 3, n).astype(float),
            "constant": lambda n: np.ones(n),
        }[kind]
        # Random numbers that order equal values: those of a sketch are the same in each run, so the order of
        # the calibration values is random instead.
        sketch = Sketch.of({"x": draw(count)})
        martingale = ExchangeabilityMartingale(sketch, "x")
        cells.append(martingale.cells(draw(LONG), rng.random(LONG)))
        gaps.append(martingale.gaps)
    assert alarms(np.array(cells), np.array(gaps), rng) <= MOST


def test_a_naive_p_value_would_raise_false_alarms_with_ties() -> None:
    """The trap: without random tie-breaking, ties make p-values too small or too large."""
    rng = np.random.default_rng(0)
    sketch = Sketch.of({"x": rng.integers(0, 3, 150).astype(float)})
    martingale = ExchangeabilityMartingale(sketch, "x")
    stream = rng.integers(0, 3, (50, LONG)).astype(float)
    cells = np.array([martingale.cells(row, np.zeros(LONG)) for row in stream])
    assert alarms(cells, np.tile(martingale.gaps, (50, 1)), rng) > 40


def test_p_values_are_the_randomized_ranks_of_all_values() -> None:
    """With a sketch of every value, the p-value is the rank among calibration and earlier values."""
    rng = np.random.default_rng(3)
    known, stream = rng.normal(0, 1, 20), rng.normal(0, 1, 30)
    sketch = Sketch.of({"x": known})
    martingale = ExchangeabilityMartingale(sketch, "x")
    counts = np.zeros(len(martingale.gaps), np.int64)
    for step, (value, u) in enumerate(zip(stream, rng.random(30), strict=True)):
        cell = int(martingale.cells(np.array([value]), np.array([0.5]))[0])
        assert cell == (known < value).sum()
        same = np.array([(known < each).sum() == cell for each in stream[:step]], bool)
        below = np.array([(known < each).sum() < cell for each in stream[:step]], bool)
        expected = (cell + below.sum() + u * (1 + same.sum())) / (20 + 1 + step)
        assert conformal_p(martingale.gaps, counts, cell, u) == pytest.approx(expected)
        counts[cell] += 1


def test_payoffs_are_fair() -> None:
    p = (np.arange(1_000_000) + 0.5) / 1_000_000
    np.testing.assert_allclose(payoffs(p).mean(axis=0), 1, atol=1e-3)
    assert payoffs(p).min() >= 0
    for risk in (0.01, 0.1, 0.3):
        mean = risk * risk_payoffs(True, risk) + (1 - risk) * risk_payoffs(False, risk)
        np.testing.assert_allclose(mean, 1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_wealth_is_a_mixture_of_all_starting_times(values: list[float]) -> None:
    """An independent derivation: start k has the weight 1/((k + 1)(k + 2)) and bets from step k on."""
    capital = np.zeros(len(DIRECTIONS))
    for step, p in enumerate(values):
        capital = bet(capital, payoffs(p), step)
    expected = 1 / (len(values) + 1)
    for start in range(len(values)):
        own = np.full(len(DIRECTIONS), 1 / len(DIRECTIONS) / ((start + 1) * (start + 2)))
        for p in values[start:]:
            own = (0.99 * own + 0.01 * own.mean()) * payoffs(p)
        expected += own.sum()
    assert total(capital, len(values)) == pytest.approx(expected, rel=1e-9)


def test_a_change_after_a_long_calm_is_detected_soon() -> None:
    delays = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        martingale = ExchangeabilityMartingale(Sketch.of({"x": rng.normal(0, 1, 300)}), "x")
        martingale.update(rng.normal(0, 1, 2000))
        if martingale.wealth.alarm:  # at most one run in twenty
            continue
        martingale.update(rng.normal(2, 1, 200))
        delays.append(martingale.wealth.alarm - 2000)
        assert martingale.wealth.direction == "higher"
    assert len(delays) >= 17
    assert 0 < np.median(delays) < 60  # before a window of 200 would be full


def test_false_alarms_of_the_risk_in_1000_long_runs() -> None:
    rng = np.random.default_rng(0)
    for risk in (0.05, 0.2):
        capital, peak = np.zeros((RUNS, len(EXCESS))), np.ones(RUNS)
        for step in range(LONG):
            capital = bet(capital, risk_payoffs(rng.random(RUNS) < risk, risk), step)
            peak = np.maximum(peak, total(capital, step + 1))
        assert (peak >= 1 / LEVEL).sum() <= MOST


def test_a_broken_risk_is_detected_and_stays() -> None:
    rng = np.random.default_rng(0)
    calm = update_risk(None, (rng.random(500) < 0.03).tolist(), 0.05)
    assert risk_alarm(calm, 0.05) == ""
    broken = update_risk(calm, (rng.random(200) < 0.3).tolist(), 0.05)
    assert "contradicts a risk of at most 5%" in risk_alarm(broken, 0.05)
    later = update_risk(broken, [False] * 2000, 0.05)
    assert risk_alarm(later, 0.05)
    one_by_one = None
    for each in [True, False, True]:
        one_by_one = update_risk(one_by_one, [each], 0.05)
    assert one_by_one == update_risk(None, [True, False, True], 0.05)
    assert from_plain(Wealth, json.loads(json.dumps(to_plain(later)))) == later


def test_the_monitor_stores_its_martingales() -> None:
    rng = np.random.default_rng(1)
    sketch = Sketch.of({"x": rng.normal(0, 1, 200), "y": np.repeat([0.0, 1.0], 100)})
    assert set(sketch.ties) == {"y"}
    assert from_plain(Sketch, json.loads(json.dumps(to_plain(sketch)))) == sketch
    monitor = DriftMonitor(sketch, 1000)
    monitor.update({"x": rng.normal(3, 1, 100), "y": rng.integers(0, 2, 100)})
    assert [alarm.signal for alarm in monitor.alarms] == ["x"]
    assert monitor.windows == 0  # before the first window is full
    state = json.loads(json.dumps(to_plain(monitor.state())))
    again = DriftMonitor.resume(from_plain(MonitorState, state), sketch)
    assert again.alarms == monitor.alarms
    assert again.state() == monitor.state()
    del state["martingales"]  # of an earlier version
    assert DriftMonitor.resume(from_plain(MonitorState, state), sketch).alarms == ()


def test_sketches_of_earlier_versions_break_ties_evenly() -> None:
    sketch = Sketch(4, (1, 2, 3, 4), {"x": (0.0, 1.0, 1.0, 2.0)})
    np.testing.assert_allclose(sketch.tie_breaks("x"), [0.5, 1 / 3, 2 / 3, 0.5])
