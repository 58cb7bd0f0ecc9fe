"""Are the queries still those that were calibrated on? Incoming κ and scores against a sketch of then.

    sketch = Sketch.of({"kappa": kappa, "uncertainty": uncertainty})     # at calibration
    monitor = DriftMonitor(sketch)
    for warning in monitor.update({"kappa": [k], "uncertainty": [u]}):   # in use, one query or many
        print(warning.sentence)

Two tests a signal, both exact or safe on exchangeable data whatever its distribution:

- *range*: how many of m incoming values lie outside the interval between two order statistics of the n at
  calibration (about p1 and p99). With j order statistics' gaps inside, that count is beta-binomial
  (m; n + 1 − j, j), which takes the uncertainty of the quantiles themselves into account.
- *shape*: the largest difference of the two distribution functions (Kolmogorov–Smirnov), looked at where the
  sketch has values, against √(ln(2/level)/2 · (n + m)/(n·m)).

A window of consecutive frames in one street is not exchangeable with queries from all over the map: such a
stream should be thinned (`thin_to_places`) or judged over a window long enough to see many places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import betabinom

from kappaplace.checks import Floats, Rows, finite, share
from kappaplace.errors import KappaPlaceError

POINTS = 101
"""Order statistics that a sketch keeps of each signal: the percentiles."""
TAIL = 0.01
WINDOW = 200
FALSE_ALARM = 0.001
"""Chance that a window of exchangeable queries warns at all; shared out among signals and tests."""
SHOWN = (0.05, 0.5, 0.95)
"""Quantiles that are kept of each finished window, to draw how signals move."""
MOST_WINDOWS = 500
"""Finished windows that are remembered; older ones are forgotten."""


@dataclass(frozen=True)
class Sketch:
    """Percentiles of each signal at calibration, as actual values."""

    count: int
    """How many values each signal had."""
    ranks: tuple[int, ...]
    """Which order statistics are kept, from 1."""
    values: Mapping[str, tuple[float, ...]]
    """Those, for each signal."""

    def __post_init__(self) -> None:
        good = bool(self.ranks and self.values) and self.ranks[0] >= 1 and self.ranks[-1] <= self.count
        for name, points in self.values.items():
            ordered = finite(points, f"stored quantiles of {name}")
            good = good and ordered.shape == (len(self.ranks),) and not (np.diff(ordered) < 0).any()
        if not good or (np.diff(self.ranks) <= 0).any():
            raise KappaPlaceError("A drift sketch needs rising quantiles of each signal; calibrate again.")

    @classmethod
    def of(cls, signals: Mapping[str, Any]) -> Sketch:
        """From the values of each signal at calibration, one a query."""
        arrays = _signals(signals)
        counts = {len(values) for values in arrays.values()}
        if len(counts) != 1 or min(counts) < 2:
            raise KappaPlaceError(
                "A drift sketch needs at least two queries and as many values of each signal; got "
                + ", ".join(f"{len(v):,} of {name}" for name, v in arrays.items())
                + "."
            )
        count = counts.pop()
        ranks: Rows = np.unique(np.round(np.linspace(1, count, min(POINTS, count))).astype(np.int64))
        kept = {name: tuple(np.sort(v)[ranks - 1].tolist()) for name, v in arrays.items()}
        return cls(count, tuple(ranks.tolist()), kept)

    @property
    def ends(self) -> tuple[int, int]:
        """Which of the kept order statistics bound the calibrated range: about p1 and p99."""
        low = int(np.searchsorted(self.ranks, TAIL * self.count, side="left"))
        return low, len(self.ranks) - 1 - low

    def calibrated_range(self, name: str) -> tuple[float, float] | None:
        """The range of a signal at calibration; None where there were too few queries for one."""
        low, high = self.ends
        return (self.values[name][low], self.values[name][high]) if high > low else None


@dataclass(frozen=True)
class DriftWarning:
    """One signal that has moved."""

    signal: str
    test: str
    """ "range" or "shape"."""
    direction: str
    """ "higher", "lower" or "wider"."""
    statistic: float
    """Share outside the calibrated range, or largest difference of the distribution functions."""
    limit: float
    """What it may be on exchangeable data."""
    sentence: str


@dataclass(frozen=True)
class DriftWindow:
    """One full window that was compared."""

    queries: int
    """Seen since the start, this window included."""
    quantiles: Mapping[str, tuple[float, ...]]
    """Of each signal, at `SHOWN`."""
    warnings: tuple[DriftWarning, ...]
    time: float | None = None
    """When it was full, in seconds since 1970; None where the caller did not say."""

    def __post_init__(self) -> None:
        if any(len(values) != len(SHOWN) for values in self.quantiles.values()):
            raise KappaPlaceError(f"A drift window has {len(SHOWN)} quantiles of each signal.")


@dataclass(frozen=True)
class MonitorState:
    """What a drift monitor has seen, as it is stored."""

    window: int
    false_alarm: float
    windows: int
    queries: int
    waiting: Mapping[str, tuple[float, ...]]
    """Signals of the queries whose window is not full yet."""
    history: tuple[DriftWindow, ...]


def compare(
    sketch: Sketch, signals: Mapping[str, Any], false_alarm: float = FALSE_ALARM, *, shape: bool = True
) -> list[DriftWarning]:
    """All warnings about these queries taken together; on exchangeable ones any at all with this chance.

    Without ``shape`` only the range is tested, for a calibration on stand-ins for queries: those are spread
    otherwise from the start, but queries shall not leave their range.
    """
    arrays = _signals(signals)
    unknown = [name for name in arrays if name not in sketch.values]
    if unknown:
        raise KappaPlaceError(
            f"The calibration knows nothing of {', '.join(unknown)}; it kept {', '.join(sketch.values)}."
        )
    kinds = (_range_test, _shape_test) if shape else (_range_test,)
    level = share(false_alarm, "false-alarm rate") / (len(kinds) * len(arrays))
    found: list[DriftWarning] = []
    for name, values in arrays.items():
        points = np.array(sketch.values[name])
        if len(values):
            tests = [test(name, sketch, points, values, level) for test in kinds]
            found += [warning for warning in tests if warning is not None]
    return found


class DriftMonitor:
    """Collects incoming queries and compares each full window with the sketch."""

    def __init__(
        self, sketch: Sketch, window: int = WINDOW, false_alarm: float = FALSE_ALARM, *, shape: bool = True
    ) -> None:
        if window < 1:
            raise KappaPlaceError(f"A drift window holds at least one query, got {window}.")
        self.sketch = sketch
        self.window = window
        self.false_alarm = share(false_alarm, "false-alarm rate")
        self.shape = shape
        """Whether the shape is tested beside the range; see `compare`."""
        self.windows = 0
        """Full windows seen."""
        self.queries = 0
        """Queries seen."""
        self.history: deque[DriftWindow] = deque(maxlen=MOST_WINDOWS)
        """The last full windows, oldest first."""
        self._waiting: dict[str, Floats] = {name: np.empty(0) for name in sketch.values}

    @property
    def waiting(self) -> int:
        """Queries that wait for their window to be full."""
        return len(next(iter(self._waiting.values())))

    @property
    def waiting_values(self) -> Mapping[str, Floats]:
        """The signals of these queries."""
        return dict(self._waiting)

    @property
    def drifting(self) -> tuple[DriftWarning, ...]:
        """Warnings of the last full window: those that stand now."""
        return self.history[-1].warnings if self.history else ()

    def update(self, signals: Mapping[str, Any], time: float | None = None) -> list[DriftWarning]:
        """Take in one or many queries, all signals of the sketch; the warnings of windows that they fill."""
        arrays = _signals(signals)
        if set(arrays) != set(self._waiting) or len({len(v) for v in arrays.values()}) != 1:
            raise KappaPlaceError(
                f"The drift monitor needs as many values of each of {', '.join(self._waiting)}; got "
                + ", ".join(f"{len(v):,} of {name}" for name, v in arrays.items())
                + "."
            )
        waiting = {name: np.concatenate([self._waiting[name], v]) for name, v in arrays.items()}
        found: list[DriftWarning] = []
        compared = self.queries - self.waiting
        for _ in range(len(next(iter(waiting.values()))) // self.window):
            full = {name: v[: self.window] for name, v in waiting.items()}
            waiting = {name: v[self.window :] for name, v in waiting.items()}
            warnings = tuple(compare(self.sketch, full, self.false_alarm, shape=self.shape))
            compared += self.window
            shown = {name: tuple(np.quantile(v, SHOWN).tolist()) for name, v in full.items()}
            self.history.append(DriftWindow(compared, shown, warnings, time))
            found += warnings
            self.windows += 1
        self._waiting = waiting
        self.queries = compared + self.waiting
        return found

    def state(self) -> MonitorState:
        """Return what was seen so far; the sketch stays with the calibration."""
        waiting = {name: tuple(values.tolist()) for name, values in self._waiting.items()}
        return MonitorState(
            self.window, self.false_alarm, self.windows, self.queries, waiting, tuple(self.history)
        )

    @classmethod
    def resume(cls, state: MonitorState, sketch: Sketch, *, shape: bool = True) -> DriftMonitor:
        """Continue from what `state` returned, with the sketch of the same calibration."""
        monitor = cls(sketch, state.window, state.false_alarm, shape=shape)
        monitor.windows, monitor.queries = state.windows, state.queries
        monitor._waiting = _signals(state.waiting)
        monitor.history.extend(state.history)
        signals = [state.waiting, *(window.quantiles for window in state.history)]
        known = all(set(part) == set(sketch.values) for part in signals)
        if not known or len({len(values) for values in state.waiting.values()}) != 1:
            raise KappaPlaceError("A stored drift monitor has other signals than the calibration.")
        return monitor


def _range_test(
    name: str, sketch: Sketch, points: Floats, values: Floats, level: float
) -> DriftWarning | None:
    low, high = sketch.ends
    if high <= low:
        return None  # two or three queries at calibration: there is no range
    below, above = int((values < points[low]).sum()), int((values > points[high]).sum())
    inside = sketch.ranks[high] - sketch.ranks[low]
    outside = sketch.count + 1 - inside
    law = (len(values), outside, inside)
    if betabinom.sf(below + above - 1, *law) > level:
        return None
    share_outside, limit = (below + above) / len(values), float(betabinom.isf(level, *law)) / len(values)
    where = {"higher": "above", "lower": "below", "wider": "outside"}
    direction = "higher" if above > 4 * below else "lower" if below > 4 * above else "wider"
    sentence = (
        f"{name} has become {direction}: {share_outside:.1%} of the last {len(values):,} queries lie "
        f"{where[direction]} the calibrated range {points[low]:.4g} to {points[high]:.4g}, chance explains "
        f"{limit:.1%}; probabilities and decisions may no longer hold, calibrate again."
    )
    return DriftWarning(name, "range", direction, share_outside, limit, sentence)


def _shape_test(
    name: str, sketch: Sketch, points: Floats, values: Floats, level: float
) -> DriftWarning | None:
    m, n = len(values), sketch.count
    ordered = np.sort(values)
    # Each kept value is order statistic `rank`: at it the old distribution function is rank/n or, with ties
    # beyond it, more; just below it is (rank − 1)/n or less. Taking these bounds never overstates a gap.
    ranks = np.array(sketch.ranks, dtype=np.float64)
    last = np.searchsorted(points, points, side="right") - 1
    first = np.searchsorted(points, points, side="left")
    upto = np.searchsorted(ordered, points, side="right") / m
    before = np.searchsorted(ordered, points, side="left") / m
    after = np.append(ranks[1:], n + 1.0)[last] - 1  # at most so many are not above the value
    gap_lower = upto - after / n  # more low values than then
    ahead = np.concatenate([[0.0], ranks[:-1]])[first]  # at least so many lie below the value
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
        f"calibration by {gap:.2f}, chance explains {limit:.2f}; probabilities and decisions may no longer "
        "hold, calibrate again."
    )
    return DriftWarning(name, "shape", direction, gap, limit, sentence)


def _signals(signals: Mapping[str, Any]) -> dict[str, Floats]:
    if not signals:
        raise KappaPlaceError("Drift needs at least one signal, got none.")
    arrays = {name: finite(values, f"values of {name}") for name, values in signals.items()}
    for name, values in arrays.items():
        if values.ndim != 1:
            raise KappaPlaceError(f"Drift needs one value of {name} a query, got the shape {values.shape}.")
    return arrays
