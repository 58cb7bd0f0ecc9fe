"""Sketches: percentiles of the signals of the calibration queries, which later queries are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kappaplace.checks import Floats, Rows, finite
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.errors import KappaPlaceError
from kappaplace.records import optional

POINTS = 101
"""Number of percentiles of each signal in a sketch."""
TAIL = 0.01
TIE_STREAM = 1
"""Stream of the random numbers that order equal values at calibration."""


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
        arrays = checked_signals(signals)
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


def checked_signals(signals: Mapping[str, Any]) -> dict[str, Floats]:
    if not signals:
        raise KappaPlaceError("signals must contain at least one signal, got none.")
    arrays = {name: finite(values, f"values of {name}") for name, values in signals.items()}
    for name, values in arrays.items():
        if values.ndim != 1:
            raise KappaPlaceError(
                f"The values of {name} must be 1-D (one per query), got shape {values.shape}."
            )
    return arrays
