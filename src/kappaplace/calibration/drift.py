"""Drift: compare κ and scores of incoming queries with a sketch of the queries at calibration.

    sketch = Sketch.of({"kappa": kappa, "uncertainty": uncertainty})     # at calibration
    monitor = DriftMonitor(sketch)
    for warning in monitor.update({"kappa": [k], "uncertainty": [u]}):   # at run time, one query or many
        print(warning.sentence)

There are two tests per signal. On exchangeable data they are exact or conservative for any distribution:

- *range*: the number of incoming values (of m) outside the interval between two order statistics of the n
  values at calibration (about p1 and p99). If the interval has j gaps between order statistics, the number is
  beta-binomial (m; n + 1 − j, j), which includes the uncertainty of the quantiles.
- *shape*: the largest difference of the two distribution functions (Kolmogorov–Smirnov) at the values of the
  sketch, compared with √(ln(2/level)/2 · (n + m)/(n·m)).

These tests look at one full window at a time. In addition, `ExchangeabilityMartingale` looks after each
query. Its false alarms have a probability of at most 5%, however long it runs; see `martingale.py`. An alarm
stays until the map is calibrated again.

Consecutive frames of one street are not exchangeable with queries from the whole map. Subsample such a stream
(`thin_to_places`), or use a window that covers many places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import betabinom

from kappaplace.calibration.martingale import LEVEL, ExchangeabilityMartingale, Wealth
from kappaplace.checks import Floats, Rows, finite, percent, share, within
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.errors import KappaPlaceError
from kappaplace.records import optional

POINTS = 101
"""Number of percentiles of each signal in a sketch."""
TAIL = 0.01
TIE_STREAM = 1
"""Stream of the random numbers that order equal values at calibration."""
WINDOW = 200
FALSE_ALARM = 0.001
"""Probability of any warning for a window of exchangeable queries, divided among signals and tests."""
SHOWN = (0.05, 0.5, 0.95)
"""Quantiles of each full window that are stored, to plot the signals over time."""
MOST_WINDOWS = 500
"""Maximum number of full windows in the history."""


@dataclass(frozen=True)
class Sketch:
    """Percentiles of each signal at calibration."""

    count: int
    """Number of values of each signal."""
    ranks: tuple[int, ...]
    """Ranks of the stored order statistics, from 1."""
    values: Mapping[str, tuple[float, ...]]
    """The order statistics of each signal."""
    ties: Mapping[str, tuple[float, ...]] = field(default_factory=dict, metadata=optional())
    """Random number of each order statistic, which orders equal values; for signals with equal values."""

    def __post_init__(self) -> None:
        good = bool(self.ranks and self.values) and self.ranks[0] >= 1 and self.ranks[-1] <= self.count
        for name, points in self.values.items():
            ordered = finite(points, f"stored quantiles of {name}")
            good = good and ordered.shape == (len(self.ranks),) and not (np.diff(ordered) < 0).any()
        if not good or (np.diff(self.ranks) <= 0).any():
            raise KappaPlaceError(
                "A drift sketch needs increasing quantiles of each signal. Calibrate again."
            )

    @classmethod
    def of(cls, signals: Mapping[str, Any]) -> Sketch:
        """Return the sketch of signals at calibration, which have one value per query."""
        arrays = _signals(signals)
        counts = {len(values) for values in arrays.values()}
        if len(counts) != 1 or min(counts) < 2:
            raise KappaPlaceError(
                "A drift sketch needs at least two queries, with one value of each signal per query, got "
                + ", ".join(f"{len(v):,} of {name}" for name, v in arrays.items())
                + "."
            )
        count = counts.pop()
        ranks: Rows = np.unique(np.round(np.linspace(1, count, min(POINTS, count))).astype(np.int64))
        u = item_uniforms(item_key(0, np.arange(count)), 1, TIE_STREAM)[:, 0]
        chosen = {name: np.lexsort((u, v))[ranks - 1] for name, v in arrays.items()}
        points = {name: tuple(arrays[name][rows].tolist()) for name, rows in chosen.items()}
        tied = [name for name, v in arrays.items() if len(np.unique(v)) < count]
        ties = {name: tuple(u[chosen[name]].tolist()) for name in tied}
        return cls(count, tuple(ranks.tolist()), points, ties)

    def tie_breaks(self, name: str) -> Floats:
        """Return the random number of each order statistic of a signal.

        Sketches of earlier versions have none for equal values; they are then spread evenly.
        """
        if name in self.ties:
            return np.array(self.ties[name])
        points = np.array(self.values[name])
        first, last = (np.searchsorted(points, points, side=side) for side in ("left", "right"))
        return (np.arange(len(points)) - first + 1) / (last - first + 1)

    @property
    def ends(self) -> tuple[int, int]:
        """Indices of the stored order statistics at the ends of the calibrated range, about p1 and p99."""
        low = int(np.searchsorted(self.ranks, TAIL * self.count, side="left"))
        return low, len(self.ranks) - 1 - low

    def calibrated_range(self, name: str) -> tuple[float, float] | None:
        """Return the range of a signal at calibration; None if there were too few queries."""
        low, high = self.ends
        return (self.values[name][low], self.values[name][high]) if high > low else None


@dataclass(frozen=True)
class DriftWarning:
    """A signal that differs from the calibration."""

    signal: str
    test: str
    """ "range", "shape" or "martingale"."""
    direction: str
    """ "higher", "lower", "wider" or "narrower"."""
    statistic: float
    """Test statistic: fraction outside the calibrated range, or largest difference of distributions."""
    limit: float
    """Largest value of the test statistic that chance explains."""
    sentence: str


@dataclass(frozen=True)
class DriftWindow:
    """Result of comparing one full window."""

    queries: int
    """Number of queries since the start, including this window."""
    quantiles: Mapping[str, tuple[float, ...]]
    """Quantiles `SHOWN` of each signal."""
    warnings: tuple[DriftWarning, ...]
    time: float | None = None
    """Time when the window was full, in seconds since 1970; None if unknown."""

    def __post_init__(self) -> None:
        if any(len(values) != len(SHOWN) for values in self.quantiles.values()):
            raise KappaPlaceError(f"A drift window must have {len(SHOWN)} quantiles of each signal.")


@dataclass(frozen=True)
class MonitorState:
    """State of a drift monitor, as it is stored."""

    window: int
    false_alarm: float
    windows: int
    queries: int
    waiting: Mapping[str, tuple[float, ...]]
    """Signals of the queries whose window is not full yet."""
    history: tuple[DriftWindow, ...]
    martingales: Mapping[str, Wealth] = field(default_factory=dict, metadata=optional())
    """State of each signal's martingale; empty in states of earlier versions."""


def compare(
    sketch: Sketch, signals: Mapping[str, Any], false_alarm: float = FALSE_ALARM, *, shape: bool = True
) -> list[DriftWarning]:
    """Compare queries with a sketch.

    Args:
        sketch: Sketch of the calibration.
        signals: Values of each signal, one per query.
        false_alarm: Probability of any warning if the queries are exchangeable with those of the sketch.
        shape: Also test the shape of the distribution. Not used for self-calibrated maps, whose sketch shows
            degraded map images: real queries have the same range, but not the same shape.

    Returns:
        All warnings.

    Raises:
        KappaPlaceError: If a signal is not in the sketch, or a value is not finite.
    """
    arrays = _signals(signals)
    unknown = [name for name in arrays if name not in sketch.values]
    if unknown:
        raise KappaPlaceError(
            f"The calibration has no signal {', '.join(unknown)}. Choose from: {', '.join(sketch.values)}."
        )
    kinds = (_range_test, _shape_test) if shape else (_range_test,)
    level = share(false_alarm, "false-alarm rate") / (len(kinds) * len(arrays))
    warnings: list[DriftWarning] = []
    for name, values in arrays.items():
        points = np.array(sketch.values[name])
        if len(values):
            tests = [test(name, sketch, points, values, level) for test in kinds]
            warnings += [warning for warning in tests if warning is not None]
    return warnings


class DriftMonitor:
    """Collects incoming queries, and compares each full window with a sketch.

    Args:
        sketch: Sketch of the calibration.
        window: Number of queries per window.
        false_alarm: Probability of any warning for a window of exchangeable queries.
        shape: Also test the shape of the distribution, see `compare`.

    Raises:
        KappaPlaceError: If the window is empty or the probability is out of range.
    """

    def __init__(
        self, sketch: Sketch, window: int = WINDOW, false_alarm: float = FALSE_ALARM, *, shape: bool = True
    ) -> None:
        within(window, "window", 1)
        self.sketch = sketch
        self.window = window
        self.false_alarm = share(false_alarm, "false-alarm rate")
        self.shape = shape
        """Whether the shape is tested in addition to the range; see `compare`."""
        self.windows = 0
        """Number of full windows so far."""
        self.queries = 0
        """Number of queries so far."""
        self.history: deque[DriftWindow] = deque(maxlen=MOST_WINDOWS)
        """The last full windows, oldest first."""
        self._waiting: dict[str, Floats] = {name: np.empty(0) for name in sketch.values}
        names = sketch.values if shape else ()
        self._martingales = {name: ExchangeabilityMartingale(sketch, name) for name in names}

    @property
    def waiting(self) -> int:
        """Number of queries in the window that is not full yet."""
        return len(next(iter(self._waiting.values())))

    @property
    def waiting_values(self) -> Mapping[str, Floats]:
        """Signals of the queries in the window that is not full yet."""
        return dict(self._waiting)

    @property
    def drifting(self) -> tuple[DriftWarning, ...]:
        """Warnings of the last full window."""
        return self.history[-1].warnings if self.history else ()

    @property
    def alarms(self) -> tuple[DriftWarning, ...]:
        """Alarms of the martingales; each stays until the map is calibrated again."""
        limit = len(self._martingales) / LEVEL
        alarms = []
        for name, martingale in self._martingales.items():
            state = martingale.wealth
            if state.alarm:
                sentence = (
                    f"{name} has changed ({state.direction}): the first {state.alarm:,} queries are not like "
                    f"those of the calibration (probability of a false alarm, ever: {percent(LEVEL)}). "
                    "Calibrate again, because probabilities and decisions may no longer be valid."
                )
                alarms.append(DriftWarning(name, "martingale", state.direction, state.peak, limit, sentence))
        return tuple(alarms)

    def update(self, signals: Mapping[str, Any], time: float | None = None) -> list[DriftWarning]:
        """Add one or many queries.

        Args:
            signals: Values of all signals of the sketch, one per query.
            time: Current time in seconds since 1970, stored with full windows.

        Returns:
            Warnings of the windows that became full, and new alarms of the martingales.
        """
        arrays = _signals(signals)
        if set(arrays) != set(self._waiting) or len({len(v) for v in arrays.values()}) != 1:
            raise KappaPlaceError(
                f"The drift monitor needs one value per query of {', '.join(self._waiting)}, got "
                + ", ".join(f"{len(v):,} of {name}" for name, v in arrays.items())
                + "."
            )
        waiting = {name: np.concatenate([self._waiting[name], v]) for name, v in arrays.items()}
        before = {warning.signal for warning in self.alarms}
        for name, martingale in self._martingales.items():
            martingale.update(arrays[name], len(self._martingales) / LEVEL)
        drift = [warning for warning in self.alarms if warning.signal not in before]
        compared = self.queries - self.waiting
        for _ in range(len(next(iter(waiting.values()))) // self.window):
            full = {name: v[: self.window] for name, v in waiting.items()}
            waiting = {name: v[self.window :] for name, v in waiting.items()}
            warnings = tuple(compare(self.sketch, full, self.false_alarm, shape=self.shape))
            compared += self.window
            shown = {name: tuple(np.quantile(v, SHOWN).tolist()) for name, v in full.items()}
            self.history.append(DriftWindow(compared, shown, warnings, time))
            drift += warnings
            self.windows += 1
        self._waiting = waiting
        self.queries = compared + self.waiting
        return drift

    def state(self) -> MonitorState:
        """Return the state to store, without the sketch, which is stored with the calibration."""
        waiting = {name: tuple(values.tolist()) for name, values in self._waiting.items()}
        return MonitorState(
            self.window,
            self.false_alarm,
            self.windows,
            self.queries,
            waiting,
            tuple(self.history),
            {name: each.wealth for name, each in self._martingales.items() if each.wealth.steps},
        )

    @classmethod
    def resume(cls, state: MonitorState, sketch: Sketch, *, shape: bool = True) -> DriftMonitor:
        """Return a monitor that continues from a stored state.

        Args:
            state: State that `DriftMonitor.state` returned.
            sketch: Sketch of the same calibration.
            shape: Also test the shape of the distribution.

        Returns:
            The monitor.

        Raises:
            KappaPlaceError: If the state has other signals than the sketch.
        """
        monitor = cls(sketch, state.window, state.false_alarm, shape=shape)
        monitor.windows, monitor.queries = state.windows, state.queries
        monitor._waiting = _signals(state.waiting)
        monitor.history.extend(state.history)
        for name in monitor._martingales:
            wealth = state.martingales.get(name)
            monitor._martingales[name] = ExchangeabilityMartingale(sketch, name, wealth)
        signals = [state.waiting, *(window.quantiles for window in state.history)]
        same = all(set(part) == set(sketch.values) for part in signals)
        if not same or len({len(values) for values in state.waiting.values()}) != 1:
            raise KappaPlaceError(
                "The stored drift monitor has other signals than the calibration. Start a new monitor."
            )
        return monitor


def _range_test(
    name: str, sketch: Sketch, points: Floats, values: Floats, level: float
) -> DriftWarning | None:
    low, high = sketch.ends
    if high <= low:
        return None  # two or three calibration queries are too few for a range
    below, above = int((values < points[low]).sum()), int((values > points[high]).sum())
    inside = sketch.ranks[high] - sketch.ranks[low]
    outside = sketch.count + 1 - inside
    law = (len(values), outside, inside)
    if betabinom.sf(below + above - 1, *law) > level:
        return None
    share_outside, limit = (below + above) / len(values), float(betabinom.isf(level, *law)) / len(values)
    relation = {"higher": "above", "lower": "below", "wider": "outside"}
    direction = "higher" if above > 4 * below else "lower" if below > 4 * above else "wider"
    sentence = (
        f"{name} has become {direction}: {share_outside:.1%} of the last {len(values):,} queries are "
        f"{relation[direction]} the calibrated range {points[low]:.4g} to {points[high]:.4g} (chance "
        "explains "
        f"{limit:.1%}). Calibrate again, because probabilities and decisions may no longer be valid."
    )
    return DriftWarning(name, "range", direction, share_outside, limit, sentence)


def _shape_test(
    name: str, sketch: Sketch, points: Floats, values: Floats, level: float
) -> DriftWarning | None:
    m, n = len(values), sketch.count
    ordered = np.sort(values)
    # A stored value is the order statistic `rank`: there the distribution function at calibration is at least
    # rank/n (more with ties), and just below at most (rank − 1)/n. These bounds never overestimate a gap.
    ranks = np.array(sketch.ranks, dtype=np.float64)
    last = np.searchsorted(points, points, side="right") - 1
    first = np.searchsorted(points, points, side="left")
    upto = np.searchsorted(ordered, points, side="right") / m
    before = np.searchsorted(ordered, points, side="left") / m
    # At most this many values at calibration are not above it.
    after = np.append(ranks[1:], n + 1.0)[last] - 1
    gap_lower = upto - after / n  # more low values than at calibration
    # At least this many values at calibration are below it.
    ahead = np.concatenate([[0.0], ranks[:-1]])[first]
    gap_higher = ahead / n - before
    lower, higher = float(gap_lower.max()), float(gap_higher.max())
    gap = max(lower, higher)
    limit = float(np.sqrt(np.log(2 / level) / 2 * (n + m) / (n * m)))
    if gap <= limit:
        return None
    direction = "lower" if lower > higher else "higher"
    if min(lower, higher) > limit:
        direction = "wider"
    sentence = (
        f"{name} has become {direction}: the distribution of the last {m:,} queries differs from that at "
        f"calibration by {gap:.2f} (chance explains {limit:.2f}). Calibrate again, because probabilities and "
        "decisions may no longer be valid."
    )
    return DriftWarning(name, "shape", direction, gap, limit, sentence)


def _signals(signals: Mapping[str, Any]) -> dict[str, Floats]:
    if not signals:
        raise KappaPlaceError("signals must contain at least one signal, got none.")
    arrays = {name: finite(values, f"values of {name}") for name, values in signals.items()}
    for name, values in arrays.items():
        if values.ndim != 1:
            raise KappaPlaceError(
                f"The values of {name} must be 1-D (one per query), got shape {values.shape}."
            )
    return arrays
