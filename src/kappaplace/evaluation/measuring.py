"""From scores and hits to every metric, with intervals: per set, pooled over sets, and as their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.results import ScoreColumns, SetResult
from kappaplace.metrics.bootstrap import Resampling, bootstrap_many
from kappaplace.metrics.calibration import (
    BOTH_TAILS,
    NO_CLAMP,
    UPPER_TAIL,
    expected_calibration_error,
    match_calibration_error,
)
from kappaplace.metrics.retrieval import KS, average_precision_at, success_at
from kappaplace.metrics.summary import pool, probability_summary, score_summary
from kappaplace.progress import track

POOLED, MEAN = "pooled", "mean"
RESAMPLES = 1000
LEVEL = 0.95

Metrics = dict[str, Any]


def measure(sets: Sequence[SetResult], *, resamples: int = RESAMPLES, seed: int = 0) -> Metrics:
    """Metrics of every set by name; of several sets also pooled, and their mean.

    ``resamples`` = 0 leaves the intervals out. Pooled scores are those that every set has.
    """
    if not sets:
        raise KappaPlaceError("There is no set to measure.")
    found = {each.name: measure_set(each, resamples=resamples, seed=seed) for each in sets}
    if len(sets) > 1:
        mean = _mean(list(found.values()))
        found[POOLED] = _measured(list(sets), resamples, seed)
        found[MEAN] = mean
    return found


def measure_set(result: SetResult, *, resamples: int = RESAMPLES, seed: int = 0) -> Metrics:
    """Metrics of one set."""
    return _measured([result], resamples, seed)


def recall_metrics(hits: NDArray[np.bool_], positives: NDArray[np.integer] | None = None) -> dict[str, float]:
    """R@K and mAP@K, which no score can change."""
    ks = [k for k in KS if k <= hits.shape[1]]
    values = {f"R@{k}": float(success_at(hits, k).mean()) for k in ks}
    if positives is not None:
        values |= {f"mAP@{k}": float(average_precision_at(hits, positives, k).mean()) for k in ks}
    return values


def score_metrics(
    query: NDArray[np.floating],
    hits: NDArray[np.bool_],
    *,
    one_sided: bool,
    match: NDArray[np.floating] | None = None,
    probability: NDArray[np.floating] | None = None,
    zoom: bool = True,
) -> dict[str, float]:
    """Every metric of one score: ECE@K as the paper has it, with zoom, of matches, ranking, probability."""
    ks = [k for k in KS if k <= hits.shape[1]]
    clamp = UPPER_TAIL if one_sided else BOTH_TAILS
    success = {k: success_at(hits, k) for k in ks}
    values = {f"ECE@{k}": expected_calibration_error(query, success[k], clamp) for k in ks}
    if zoom:
        values |= {
            f"zoom ECE@{k}": expected_calibration_error(query, success[k], NO_CLAMP, zoom=True) for k in ks
        }
    if match is not None:
        values |= {f"match ECE@{k}": match_calibration_error(match, hits, k, clamp) for k in ks}
    values |= score_summary(query, success[1])
    if probability is not None:
        values |= probability_summary(probability, success[1])
    return values


def plan_of(sets: Sequence[SetResult], resamples: int, seed: int) -> Resampling:
    """Resamples of all queries: as many of each set as there are, frames of a route by moving blocks."""
    strata = np.repeat(np.arange(len(sets)), [len(each.hits) for each in sets])
    block = {number: each.block for number, each in enumerate(sets)}
    return Resampling.of(len(strata), strata=strata, block=block, resamples=resamples, seed=seed)


def pooled_hits(sets: Sequence[SetResult]) -> NDArray[np.bool_]:
    """Hits of all sets, cut to the matches that all of them have."""
    k = min(each.hits.shape[1] for each in sets)
    return pool([(each.hits[:, :k],) for each in sets]).arrays[0]


def pooled_column(sets: Sequence[SetResult], name: str) -> ScoreColumns | None:
    """One score of all sets as one; None where a set lacks it."""
    parts = [each.scores[name] for each in sets if name in each.scores]
    if len(parts) < len(sets):
        return None
    k = min(each.hits.shape[1] for each in sets)
    match = [part.match[:, :k] for part in parts if part.match is not None]
    probability = [part.probability for part in parts if part.probability is not None]
    return ScoreColumns(
        name,
        parts[0].label,
        np.concatenate([part.query for part in parts]),
        np.concatenate(match) if len(match) == len(sets) else None,
        parts[0].one_sided,
        np.concatenate(probability) if len(probability) == len(sets) else None,
    )


def _measured(sets: list[SetResult], resamples: int, seed: int) -> Metrics:
    hits = pooled_hits(sets)
    counts = [each.positives for each in sets if each.positives is not None]
    positives = np.concatenate(counts) if len(counts) == len(sets) else None
    plan = plan_of(sets, resamples, seed) if resamples else None
    of_hits = [hits] if positives is None else [hits, positives]
    recall, recall_intervals = _with_intervals(recall_metrics, of_hits, plan)
    scores: dict[str, dict[str, float]] = {}
    intervals: dict[str, dict[str, tuple[float, float]]] = {}
    with track("Resampling", len(sets[0].scores)) as bar:
        for name in sets[0].scores:
            column = pooled_column(sets, name)
            if column is not None:
                scores[name], intervals[name] = _score(column, hits, plan)
            bar.advance()
    measured: Metrics = {"queries": len(hits), "recall": recall, "scores": scores}
    if plan is not None:
        measured["intervals"] = {"level": LEVEL, "recall": recall_intervals, "scores": intervals}
    return measured


def _score(
    column: ScoreColumns, hits: NDArray[np.bool_], plan: Resampling | None
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    values = score_metrics(
        column.query,
        hits,
        one_sided=column.one_sided,
        match=column.match,
        probability=column.probability,
    )
    optional = {"match": column.match, "probability": column.probability}
    given = {name: part for name, part in optional.items() if part is not None}

    def again(query: NDArray[Any], drawn: NDArray[Any], *rest: NDArray[Any]) -> dict[str, float]:
        named = dict(zip(given, rest, strict=True))
        # Zoom hardly differs from the clamp and costs as much as all other calibration errors.
        return score_metrics(query, drawn, one_sided=column.one_sided, zoom=False, **named)

    _, intervals = _with_intervals(again, [column.query, hits, *given.values()], plan)
    return values, intervals


# Resampled queries come twice, which these take for miscalibration: intervals would lie above their values.
NO_INTERVAL = ("smooth ECE", "equal-mass ECE", "debiased ECE", "Brier reliability", "Brier resolution")


def _with_intervals(
    metrics: Any, arrays: Sequence[NDArray[Any]], plan: Resampling | None
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    if plan is None:
        return metrics(*arrays), {}
    replicates = bootstrap_many(metrics, arrays, plan)
    values = {name: each.value for name, each in replicates.items()}
    limits = {name: each.interval(LEVEL) for name, each in replicates.items() if name not in NO_INTERVAL}
    return values, {name: (limit.low, limit.high) for name, limit in limits.items()}


def _mean(found: Sequence[Metrics]) -> Metrics:
    """Each set counts the same, however large; only what every set has."""
    return {
        "queries": sum(each["queries"] for each in found),
        "recall": _mean_of([each["recall"] for each in found]),
        "scores": {
            name: _mean_of([each["scores"][name] for each in found])
            for name in found[0]["scores"]
            if all(name in each["scores"] for each in found)
        },
    }


def _mean_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {
        name: float(np.mean([row[name] for row in rows]))
        for name in rows[0]
        if all(name in row for row in rows)
    }
