"""How sure is a metric? Intervals and paired comparisons that resample whole queries.

    plan = Resampling.of(len(success), strata=sets, block={0: 20, 1: 1})   # set 0 is a route, set 1 is not
    a = bootstrap(auroc, (margin, success), plan)
    b = bootstrap(auroc, (cosine, success), plan)
    a.interval(), compare(a, b).p_value

A metric sees the rows of a resample as if they were the data. Everything that belongs to a query (its scores,
its row of matches, its success) travels together; the same plan draws the same rows, so two scores can be
paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError

ROUTE_BLOCK = 20
"""Fewest consecutive frames of a route that a block should hold: neighbours are not independent."""

MOST_RESAMPLES = 1_000_000
"""More would add no digit to an interval, and their table would not fit into memory."""


@dataclass(frozen=True, eq=False)
class Resampling:
    """Which rows each resample holds."""

    queries: int
    strata: tuple[tuple[NDArray[np.int64], int], ...]
    """Rows of each set, in the order of its frames, and the length of its blocks."""
    resamples: int
    seed: int

    @classmethod
    def of(
        cls,
        queries: int,
        *,
        strata: NDArray[Any] | None = None,
        block: int | Mapping[Any, int] = 1,
        resamples: int = 1000,
        seed: int = 0,
    ) -> Resampling:
        """Plan the resamples of so many queries.

        ``strata`` names the set of each query; every resample then holds as many queries of each set as there
        are. ``block`` is 1 for independent queries and at least ``ROUTE_BLOCK`` for consecutive frames
        (moving blocks: any run of that many frames is as likely as any other); a mapping gives it for each
        set.
        """
        if queries < 1 or not 1 <= resamples <= MOST_RESAMPLES or seed < 0:
            raise KappaPlaceError(
                f"A bootstrap needs queries and resamples (1 to {MOST_RESAMPLES:,}) and a seed ≥ 0, got "
                f"{queries}, {resamples} and {seed}."
            )
        labels = np.zeros(queries, dtype=np.int64) if strata is None else np.asarray(strata)
        if labels.shape != (queries,):
            raise KappaPlaceError(f"Strata name the set of each of {queries} queries, got {labels.shape}.")
        parts = []
        for label in np.unique(labels).tolist():
            rows = np.flatnonzero(labels == label)
            if isinstance(block, Mapping) and label not in block:
                raise KappaPlaceError(f"The bootstrap needs a block length for the set {label!r}.")
            length = block[label] if isinstance(block, Mapping) else block
            if length < 1:
                raise KappaPlaceError(f"A block holds at least one query, got {length}.")
            if length > 1 and len(rows) < 2 * length:
                raise KappaPlaceError(
                    f"A route of {len(rows)} frames is too short for blocks of {length}; it needs two."
                )
            parts.append((rows, length))
        return cls(queries, tuple(parts), resamples, seed)

    def rows(self) -> Iterator[NDArray[np.int64]]:
        """The rows of one resample after the other; the same ones each time."""
        rng = np.random.default_rng(self.seed)
        for _ in range(self.resamples):
            yield np.concatenate([rows[_draw(rng, len(rows), block)] for rows, block in self.strata])


def _draw(rng: np.random.Generator, queries: int, block: int) -> NDArray[np.int64]:
    """Positions of one resample of a set: blocks from anywhere, the last one cut to fit."""
    starts = rng.integers(0, queries - block + 1, -(-queries // block))
    return (starts[:, None] + np.arange(block)).ravel()[:queries]


class Interval(NamedTuple):
    """A metric and where it would lie for other queries of the same kind."""

    value: float
    low: float
    high: float
    undefined: int
    """Resamples in which the metric does not exist (all right, say); they are left out."""


class Comparison(NamedTuple):
    """One metric of A minus the same of B, on the same resamples."""

    difference: float
    low: float
    high: float
    p_value: float
    """Two-sided, of "no difference"; where it is small, the sign of the difference says which is better."""
    undefined: int


@dataclass(frozen=True, eq=False)
class Replicates:
    """A metric of the data and of each resample."""

    value: float
    samples: NDArray[np.float64]
    plan: Resampling

    def interval(self, level: float = 0.95) -> Interval:
        """The percentile interval; NaN where the metric is undefined."""
        return Interval(self.value, *_limits(self.value, self.samples, level))


def bootstrap_many(
    metrics: Callable[..., Mapping[str, float]], arrays: Sequence[NDArray[Any]], plan: Resampling
) -> dict[str, Replicates]:
    """Several metrics on the same resamples, from a function that computes them together.

    ``arrays`` hold one row a query and are given to the function in this order.
    """
    for array in arrays:
        if len(array) != plan.queries:
            raise KappaPlaceError(f"The plan resamples {plan.queries} queries, got an array of {len(array)}.")
    values = metrics(*arrays)
    samples = np.empty((len(values), plan.resamples))
    for i, rows in enumerate(plan.rows()):
        resample = metrics(*(array[rows] for array in arrays))
        samples[:, i] = [resample[name] for name in values]
    return {
        name: Replicates(float(value), row, plan)
        for (name, value), row in zip(values.items(), samples, strict=True)
    }


def bootstrap(metric: Callable[..., float], arrays: Sequence[NDArray[Any]], plan: Resampling) -> Replicates:
    """One metric on every resample.

    >>> success = np.arange(50) < 40
    >>> bootstrap(np.mean, (success,), Resampling.of(50, resamples=200)).interval().value
    0.8
    """
    return bootstrap_many(lambda *rows: {"metric": metric(*rows)}, arrays, plan)["metric"]


def compare(a: Replicates, b: Replicates, level: float = 0.95) -> Comparison:
    """Whether A differs from B, from replicates of one plan.

    The p-value is twice the share of resamples in which the difference has the other sign (or is zero),
    counting the data itself as one of them, so it is never 0.
    """
    if a.plan is not b.plan:
        raise KappaPlaceError("Only replicates of the same resampling plan can be paired.")
    difference = a.value - b.value
    samples = a.samples - b.samples
    low, high, undefined = _limits(difference, samples, level)
    defined = samples[np.isfinite(samples)]
    if not np.isfinite(difference) or not len(defined):
        return Comparison(difference, low, high, float("nan"), undefined)
    tail = min((defined <= 0).sum(), (defined >= 0).sum())
    return Comparison(difference, low, high, float(min(1.0, 2 * (tail + 1) / (len(defined) + 1))), undefined)


def paired_bootstrap(
    metric: Callable[..., float],
    a: Sequence[NDArray[Any]],
    b: Sequence[NDArray[Any]],
    plan: Resampling,
    level: float = 0.95,
) -> Comparison:
    """Whether the metric of A's arrays differs from that of B's arrays for the same queries."""
    return compare(bootstrap(metric, a, plan), bootstrap(metric, b, plan), level)


def holm(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's correction: p-values that may be compared with the level although several were computed.

    NaN (an undefined comparison) stays NaN and is not counted.

    >>> holm([0.01, 0.04, 0.03]).round(3)
    array([0.03, 0.06, 0.06])
    """
    raw = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(raw)[: int(np.isfinite(raw).sum())]  # NaN sorts last
    scaled = raw[order] * np.arange(len(order), 0, -1)
    adjusted = np.full(raw.shape, np.nan)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return adjusted


def _limits(value: float, samples: NDArray[np.float64], level: float) -> tuple[float, float, int]:
    if not 0 < level < 1:
        raise KappaPlaceError(f"The level of an interval lies between 0 and 1, got {level}.")
    defined = samples[np.isfinite(samples)]
    undefined = len(samples) - len(defined)
    if not np.isfinite(value) or not len(defined):
        return float("nan"), float("nan"), undefined
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high), undefined
