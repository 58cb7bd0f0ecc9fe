"""Confidence intervals and paired comparisons of metrics, by resampling queries.

    plan = Resampling.of(len(success), strata=datasets, block={0: 20, 1: 1})   # dataset 0 is a route
    a = bootstrap(auroc, (margin, success), plan)
    b = bootstrap(auroc, (cosine, success), plan)
    a.interval(), compare(a, b).p_value

A metric is computed on the rows of each resample. Everything that belongs to a query (its scores, its row of
matches, its success) is resampled together. The same plan samples the same rows, so two scores can be paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from kappaplace.checks import share, within
from kappaplace.errors import KappaPlaceError

ROUTE_BLOCK = 20
"""Recommended block length for consecutive frames of a route, because neighboring frames are dependent."""

MOST_RESAMPLES = 1_000_000
"""Largest number of resamples: more would not improve an interval and would not fit into memory."""

Arrays = Sequence[NDArray[np.generic]]
"""Arrays with one row per query."""


@dataclass(frozen=True, eq=False)
class Resampling:
    """Plan of a bootstrap: the rows of each resample."""

    queries: int
    """Number of queries."""
    strata: tuple[tuple[NDArray[np.int64], int | tuple[NDArray[np.int64], ...]], ...]
    """Rows of each dataset, in the order of its frames, and the length of its blocks or its groups."""
    resamples: int
    """Number of resamples."""
    seed: int
    """Random seed."""

    @classmethod
    def of(
        cls,
        queries: int,
        *,
        strata: npt.ArrayLike | None = None,
        block: int | Mapping[int, int] | Mapping[str, int] = 1,
        groups: npt.ArrayLike | None = None,
        resamples: int = 1000,
        seed: int = 0,
    ) -> Resampling:
        """Plan the resamples.

        Args:
            queries: Number of queries.
            strata: Dataset of each query. Every resample then contains the same number of queries per
                dataset as the data. Default: one dataset.
            block: Length of the blocks, for all datasets or per dataset: 1 for independent queries, at least
                ``ROUTE_BLOCK`` for consecutive frames. Blocks move: every run of frames is equally likely.
            groups: Drive of each query; drives are sampled as a whole, and ``block`` is ignored. For a
                dataset without drives, pass a negative number for all its queries.
            resamples: Number of resamples, up to 1,000,000.
            seed: Random seed, 0 or more.

        Returns:
            The plan.

        Raises:
            KappaPlaceError: If an argument is out of range, or a route has fewer frames than two blocks.
        """
        within(queries, "queries", 1)
        within(resamples, "resamples", 1, MOST_RESAMPLES)
        within(seed, "seed", 0)
        labels = np.zeros(queries, dtype=np.int64) if strata is None else np.asarray(strata)
        if labels.shape != (queries,):
            raise KappaPlaceError(f"strata must have shape ({queries},), got {labels.shape}.")
        parts: list[tuple[NDArray[np.int64], int | tuple[NDArray[np.int64], ...]]] = []
        for label in np.unique(labels).tolist():
            rows = np.flatnonzero(labels == label)
            if isinstance(block, Mapping) and label not in block:
                raise KappaPlaceError(f"block must contain a length for the dataset {label!r}.")
            length = block[label] if isinstance(block, Mapping) else block
            within(length, "block", 1)
            own = None if groups is None else np.asarray(groups)[rows]
            if own is not None and own.min() >= 0:
                parts.append((rows, tuple(np.flatnonzero(own == group) for group in np.unique(own))))
                continue
            if length > 1 and len(rows) < 2 * length:
                raise KappaPlaceError(
                    f"A route of {len(rows)} frames is too short for blocks of {length}. "
                    "Pass a smaller block."
                )
            parts.append((rows, length))
        return cls(queries, tuple(parts), resamples, seed)

    def rows(self) -> Iterator[NDArray[np.int64]]:
        """Sample the rows of all resamples, the same rows for every call.

        Yields:
            Row numbers of one resample, in the order of the datasets.
        """
        rng = np.random.default_rng(self.seed)
        for _ in range(self.resamples):
            yield np.concatenate([rows[_draw(rng, len(rows), block)] for rows, block in self.strata])


def _draw(
    rng: np.random.Generator, queries: int, block: int | tuple[NDArray[np.int64], ...]
) -> NDArray[np.int64]:
    """Sample positions in a dataset: whole groups, or random blocks, of which the last is cut to fit."""
    if isinstance(block, tuple):
        return np.concatenate([block[group] for group in rng.integers(0, len(block), len(block))])
    starts = rng.integers(0, queries - block + 1, -(-queries // block))
    return (starts[:, None] + np.arange(block)).ravel()[:queries]


class Interval(NamedTuple):
    """A metric and its confidence interval."""

    value: float
    """The metric of the data."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    undefined: int
    """Resamples without a value (for example, all queries are correct); they are ignored."""


class Comparison(NamedTuple):
    """A metric of A minus the same metric of B, on the same resamples."""

    difference: float
    """The difference for the data."""
    low: float
    """Lower end of the confidence interval of the difference."""
    high: float
    """Upper end of the confidence interval of the difference."""
    p_value: float
    """Two-sided p-value of "no difference"."""
    undefined: int
    """Resamples without a value for A or B; they are ignored."""


@dataclass(frozen=True, eq=False)
class Replicates:
    """A metric of the data and of each resample."""

    value: float
    """The metric of the data."""
    samples: NDArray[np.float64]
    """The metric of each resample; NaN if undefined."""
    plan: Resampling
    """The plan of the resamples."""

    def interval(self, level: float = 0.95) -> Interval:
        """Compute the percentile interval.

        Args:
            level: Confidence level.

        Returns:
            The interval; NaN if the metric is undefined.
        """
        return Interval(self.value, *_limits(self.value, self.samples, level))


def bootstrap_many(
    metrics: Callable[..., Mapping[str, float]], arrays: Arrays, plan: Resampling
) -> dict[str, Replicates]:
    """Compute several metrics on the same resamples, with a function that returns all of them.

    Args:
        metrics: Function that gets the arrays as arguments and returns the metrics by name.
        arrays: Arrays with one row per query.
        plan: The resamples.

    Returns:
        Each metric, for the data and for every resample.

    Raises:
        KappaPlaceError: If an array does not have one row per query of the plan.
    """
    for array in arrays:
        if len(array) != plan.queries:
            raise KappaPlaceError(f"arrays must have {plan.queries} rows, as in the plan, got {len(array)}.")
    values = metrics(*arrays)
    samples = np.empty((len(values), plan.resamples))
    for i, rows in enumerate(plan.rows()):
        resample = metrics(*(array[rows] for array in arrays))
        samples[:, i] = [resample[name] for name in values]
    return {
        name: Replicates(float(value), row, plan)
        for (name, value), row in zip(values.items(), samples, strict=True)
    }


def bootstrap(metric: Callable[..., float], arrays: Arrays, plan: Resampling) -> Replicates:
    """Compute one metric on every resample.

    Args:
        metric: Function that gets the arrays as arguments and returns the metric.
        arrays: Arrays with one row per query.
        plan: The resamples.

    Returns:
        The metric, for the data and for every resample.

    >>> success = np.arange(50) < 40
    >>> bootstrap(np.mean, (success,), Resampling.of(50, resamples=200)).interval().value
    0.8
    """
    return bootstrap_many(lambda *rows: {"metric": metric(*rows)}, arrays, plan)["metric"]


def compare(a: Replicates, b: Replicates, level: float = 0.95) -> Comparison:
    """Test whether a metric of A differs from the same metric of B.

    The p-value is twice the fraction of resamples in which the difference has the other sign or is zero. The
    data itself counts as one of them, so it is never 0.

    Args:
        a: Replicates of A.
        b: Replicates of B, from the same plan.
        level: Confidence level of the interval.

    Returns:
        The difference A − B with its interval and p-value.

    Raises:
        KappaPlaceError: If the plans differ.
    """
    if a.plan is not b.plan:
        raise KappaPlaceError("The replicates have different plans. Use the same plan for A and B.")
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
    a: Arrays,
    b: Arrays,
    plan: Resampling,
    level: float = 0.95,
) -> Comparison:
    """Test whether a metric differs between two results for the same queries.

    Args:
        metric: Function that gets the arrays of one result as arguments and returns the metric.
        a: Arrays of A, with one row per query.
        b: Arrays of B.
        plan: The resamples.
        level: Confidence level of the interval.

    Returns:
        The difference A − B with its interval and p-value.
    """
    return compare(bootstrap(metric, a, plan), bootstrap(metric, b, plan), level)


def holm(p_values: npt.ArrayLike) -> NDArray[np.float64]:
    """Correct several p-values for multiple comparisons, by Holm's method.

    Args:
        p_values: The p-values; NaN (an undefined comparison) stays NaN and is not counted.

    Returns:
        Corrected p-values, which can be compared with the significance level.

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
    share(level, "level")
    defined = samples[np.isfinite(samples)]
    undefined = len(samples) - len(defined)
    if not np.isfinite(value) or not len(defined):
        return float("nan"), float("nan"), undefined
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high), undefined
