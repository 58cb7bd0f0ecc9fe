"""Domain of a calibration: tests whether a query is like its correctly answered queries.

A probability is valid for queries like those it was fitted on. `Domain` has one row per correctly answered
query, and tests other queries by split conformal prediction. Center and covariance come from one half of the
rows. The distance of a query from the center is compared with the distances of the other half. With m rows in
that half,

    p = (1 + number of distances ≥ that of the query) / (m + 1)

is at most ``level`` for at most this fraction of queries with the same distribution as the rows, for any
distribution. So the test rejects this fraction of correct answers. Fewer than 2/``level`` rows allow no such
test: then only queries much farther away than all rows differ. Signals of a match are tested in one
direction only, because a better match than those of the rows is not suspicious.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kappaplace.checks import Bools, Floats, percent
from kappaplace.data.appearance import APPEARANCE, appearance
from kappaplace.retrieval.evidence import Evidence
from kappaplace.uncertainty import SCORES

LEVEL = 0.02
"""Maximum fraction of correct answers that the domain test may reject."""
MOST_ROWS = 400
"""Maximum number of stored rows. Half of them, 200 distances, resolve one percent."""
FAR = 1.5
"""With too few rows for a test, a query differs if its distance is this many times the largest of the rows.
Less than one in m + 1 of the correct answers is that far away."""
DIGITS = 5
SHRINKAGE = 0.1
"""Weight of the diagonal in the covariance, so that few rows do not make it singular."""
MATCH_SIGNALS = ("cosine", "margin", "patches", "patch-margin")
"""Scores of the match, where higher is worse. Only values above the center are suspicious."""
KAPPA = "log kappa"
LEAST_DEVIATION = {KAPPA: 0.05, "brightness": 0.01, "contrast": 0.01}
"""Minimum standard deviation per column (default: 0.02). A nearly constant column would be too strict."""
WORDS = {
    "cosine": "the match is less similar",
    "margin": "the match stands out less from other places",
    "patches": "fewer patches agree with the match",
    "patch-margin": "patches distinguish the match less from other places",
    KAPPA: "kappa of the image differs more",
    "brightness": "its brightness differs more",
    "contrast": "its contrast differs more",
    "horizontal detail": "its detail differs more",
    "vertical detail": "its detail differs more",
    "fine detail": "its fine detail differs more",
    "variety of tones": "its range of tones differs more",
    "color": "its color differs more",
}


@dataclass(frozen=True)
class Domain:
    """Signals of correctly answered queries: one row per query, in random order."""

    columns: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    level: float = LEVEL

    @property
    def conclusive(self) -> bool:
        """Whether there are enough rows for a test at this level to reject anything."""
        return self.level * len(self.rows) >= 2

    def only(self, columns: Sequence[str]) -> Domain:
        """Return the same rows with these columns only."""
        numbers = [number for number, name in enumerate(self.columns) if name in columns]
        names = tuple(self.columns[number] for number in numbers)
        return replace(self, columns=names, rows=tuple(tuple(row[n] for n in numbers) for row in self.rows))

    def differences(self, signals: Mapping[str, Floats]) -> tuple[str, ...]:
        """Describe how queries differ from the rows.

        If there are too few rows for the level, a query differs if it is much farther away than every row.

        Args:
            signals: Columns of the queries, N each. Columns that only one of the two has are ignored.

        Returns:
            The largest difference of each query; empty for queries that are like the rows.
        """
        names = [name for name in self.columns if name in signals]
        count = len(next(iter(signals.values()))) if signals else 0
        if not names or len(self.rows) < 4:
            return ("",) * count
        own = self.only(names)
        table = np.asarray(own.rows, np.float64)
        half = len(table) // 2
        center, scale, inverse = _fitted(table[:half], own.columns)
        compared = np.sort(_distances(_deviations(table[half:], center, scale, own.columns), inverse))
        queries = np.column_stack([np.asarray(signals[name], np.float64) for name in own.columns])
        deviations = _deviations(queries, center, scale, own.columns)
        distances = _distances(deviations, inverse)
        if self.conclusive:
            rank = len(compared) - np.searchsorted(compared, distances, side="left")
            inside, most = (1 + rank) / (len(compared) + 1) > self.level, percent(1 - self.level)
        else:
            inside, most = distances <= FAR * compared[-1], "all"
        worst = np.abs(deviations).argmax(axis=1)
        return tuple(
            "" if good else f"{WORDS[own.columns[column]]} than in {most} of them"
            for good, column in zip(inside, worst.tolist(), strict=True)
        )


def domain_signals(evidence: Evidence) -> dict[str, Floats]:
    """Return those signals of `Domain` that the evidence contains, N per column."""
    names = [*MATCH_SIGNALS[:2], *(MATCH_SIGNALS[2:] if evidence.agreement is not None else ())]
    signals = {name: SCORES[name].query(evidence) for name in names if SCORES[name].reason(evidence) is None}
    if SCORES["inverse-kappa"].reason(evidence) is None:
        signals[KAPPA] = np.log(evidence.query_kappa)
    if evidence.queries.images is not None:
        columns = appearance(evidence.queries.images)
        signals |= {name: columns[:, number] for number, name in enumerate(APPEARANCE)}
    return signals


def fit_domain(signals: Mapping[str, Floats], rows: Bools, seed: int = 0) -> Domain | None:
    """Build a domain from the signals of correctly answered queries.

    Args:
        signals: Columns of all queries, N each; see `domain_signals`.
        rows: Which queries were answered correctly (N).
        seed: Random seed for their order.

    Returns:
        A domain of at most `MOST_ROWS` rows; None without signals.
    """
    finite = {name: values for name, values in signals.items() if np.isfinite(values).all()}
    if not finite:
        return None
    order = np.random.default_rng(seed).permutation(np.flatnonzero(rows))[:MOST_ROWS]
    table = np.column_stack([values[order] for values in finite.values()])
    text = [tuple(float(f"{value:.{DIGITS}g}") for value in row) for row in table.tolist()]
    return Domain(tuple(finite), tuple(text))


def _fitted(table: Floats, columns: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """Return center, scale, and inverse correlation of the deviations."""
    center = np.median(table, axis=0)
    least = np.array([LEAST_DEVIATION.get(name, 0.02) for name in columns])
    scale = np.maximum(table.std(axis=0), least)
    deviations = _deviations(table, center, scale, columns)
    second = deviations.T @ deviations / len(table)
    diagonal = np.diag(np.maximum(np.diag(second), SHRINKAGE))
    return center, scale, np.linalg.inv((1 - SHRINKAGE) * second + SHRINKAGE * diagonal)


def _deviations(table: Floats, center: Floats, scale: Floats, columns: Sequence[str]) -> Floats:
    z = (table - center) / scale
    better = np.array([name in MATCH_SIGNALS for name in columns]) & (z < 0)
    return np.where(better, 0.0, z)


def _distances(deviations: Floats, inverse: Floats) -> Floats:
    return np.einsum("ij,jk,ik->i", deviations, inverse, deviations)
