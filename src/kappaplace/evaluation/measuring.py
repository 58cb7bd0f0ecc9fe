"""Metrics of scores with intervals: per dataset, pooled, and averaged over datasets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.results import EvaluationResult, Metrics, ScoreColumns, SetResult
from kappaplace.metrics.bootstrap import Resampling, bootstrap_many
from kappaplace.metrics.calibration import (
    BOTH_TAILS,
    NO_CLAMP,
    UPPER_TAIL,
    ReliabilityCurve,
    expected_calibration_error,
    match_calibration_error,
    reliability_curve,
)
from kappaplace.metrics.retrieval import KS, average_precision_at, recall_at, success_at
from kappaplace.metrics.selective import auroc
from kappaplace.metrics.summary import (
    TIED,
    pool,
    probability_summary,
    reference_metrics,
    score_flaw,
    score_summary,
)
from kappaplace.progress import track
from kappaplace.types import Json
from kappaplace.uncertainty.base import Evidence, Score, Scores

POOLED, MEAN = "pooled", "mean"
RESAMPLES = 1000
LEVEL = 0.95

Values = dict[str, float]
Intervals = dict[str, tuple[float, float]]


def measure(
    sets: Sequence[SetResult], *, resamples: int = RESAMPLES, seed: int = 0, pooled: Sequence[str] = ()
) -> dict[str, Metrics]:
    """Compute the metrics of every dataset, and for several datasets also pooled metrics and the mean.

    Args:
        sets: Results of the datasets, as `score_set` returns them.
        resamples: Number of bootstrap resamples for the intervals. 0 omits the intervals.
        seed: Random seed for the bootstrap.
        pooled: Names of the datasets to pool. Default: all.

    Returns:
        Metrics by the name of the dataset, "pooled" and "mean". Scores that a dataset lacks are not pooled.

    Raises:
        KappaPlaceError: If there is no dataset.
    """
    if not sets:
        raise KappaPlaceError("There is no dataset to measure. Pass at least one result.")
    metrics = {each.name: measure_set(each, resamples=resamples, seed=seed) for each in sets}
    if len(sets) > 1:
        mean = _mean(list(metrics.values()))
        metrics[POOLED] = _measure([s for s in sets if s.name in pooled] or sets, resamples, seed)
        metrics[MEAN] = mean
    return metrics


def measure_set(result: SetResult, *, resamples: int = RESAMPLES, seed: int = 0) -> Metrics:
    """Compute the metrics of one dataset.

    Args:
        result: Result of the dataset, as `score_set` returns it.
        resamples: Number of bootstrap resamples for the intervals. 0 omits the intervals.
        seed: Random seed for the bootstrap.

    Returns:
        Number of queries, recall, metrics by score, and intervals.
    """
    return _measure([result], resamples, seed)


def recall_metrics(hits: NDArray[np.bool_], positives: NDArray[np.integer] | None = None) -> Values:
    """Return R@K, and mAP@K if the number of positives per query is known."""
    ks = [k for k in KS if k <= hits.shape[1]]
    values = {f"R@{k}": float(success_at(hits, k).mean()) for k in ks}
    if positives is not None:
        values |= {f"mAP@{k}": float(average_precision_at(hits, positives, k).mean()) for k in ks}
    return values


def score_metrics(score: ScoreColumns, hits: NDArray[np.bool_], zoom: bool = True) -> Values:
    """Compute every metric of one score: calibration errors, ranking, and the quality of its probability.

    Args:
        score: The score of N queries.
        hits: Whether each match is a positive, N×K.
        zoom: Whether to include ECE@K on the range of the values, which takes as long as all other metrics.

    Returns:
        Values by the name of the metric. ECE@K follows the protocol of the paper.
    """
    ks = [k for k in KS if k <= hits.shape[1]]
    clamp = UPPER_TAIL if score.one_sided else BOTH_TAILS
    success = {k: success_at(hits, k) for k in ks}
    values = {f"ECE@{k}": expected_calibration_error(score.query, success[k], clamp) for k in ks}
    if zoom:
        values |= {
            f"zoom ECE@{k}": expected_calibration_error(score.query, success[k], NO_CLAMP, zoom=True)
            for k in ks
        }
    if score.match is not None:
        values |= {f"match ECE@{k}": match_calibration_error(score.match, hits, k, clamp) for k in ks}
    values |= score_summary(score.query, success[1])
    if score.probability is not None:
        values |= probability_summary(score.probability, success[1])
    return values


def plan_of(sets: Sequence[SetResult], resamples: int, seed: int) -> Resampling:
    """Return the resamples of the bootstrap: of whole drives if possible, and of blocks of frames on a route.

    Args:
        sets: The datasets.
        resamples: Number of resamples.
        seed: Random seed.

    Returns:
        The resamples of all queries.
    """
    strata = np.repeat(np.arange(len(sets)), [len(each.hits) for each in sets])
    block = {number: each.block for number, each in enumerate(sets)}
    groups = np.concatenate([np.full(len(s.hits), -1) if s.sessions is None else s.sessions for s in sets])
    return Resampling.of(
        len(strata), strata=strata, block=block, groups=groups, resamples=resamples, seed=seed
    )


def pooled_hits(sets: Sequence[SetResult]) -> tuple[NDArray[np.bool_], NDArray[np.int64] | None]:
    """Return the hits of all datasets (N×K, with the smallest K) and the number of positives per query.

    The number is None if a dataset does not have it.
    """
    k = min(each.hits.shape[1] for each in sets)
    hits = pool([(each.hits[:, :k],) for each in sets]).arrays[0]
    counts = [each.positives for each in sets if each.positives is not None]
    return hits, np.concatenate(counts) if len(counts) == len(sets) else None


def pooled_column(sets: Sequence[SetResult], name: str) -> ScoreColumns | None:
    """Return one score of all datasets; None if a dataset lacks it."""
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


def _measure(sets: Sequence[SetResult], resamples: int, seed: int) -> Metrics:
    hits, positives = pooled_hits(sets)
    columns = {name: pooled_column(sets, name) for name in sets[0].scores}
    scores = {name: score_metrics(each, hits) for name, each in columns.items() if each is not None}
    metrics: Metrics = {
        "queries": len(hits),
        "recall": recall_metrics(hits, positives),
        "scores": scores,
        "baselines": reference_metrics(hits),
    }
    if not resamples:
        return metrics
    plan = plan_of(sets, resamples, seed)
    intervals: dict[str, Intervals] = {}
    with track("Resampling", len(columns)) as bar:
        for name, column in columns.items():
            if column is not None:
                intervals[name] = _score_intervals(column, hits, plan)
            bar.advance()
    recall = _intervals(
        lambda rows: recall_metrics(hits[rows], None if positives is None else positives[rows]), plan
    )
    return {**metrics, "intervals": {"level": LEVEL, "recall": recall, "scores": intervals}}


def flaws_of(part: SetResult) -> dict[str, str]:
    """Return the reason for each score that cannot rank queries, by name; see `score_flaw`."""
    flaws = {name: score_flaw(column.query) for name, column in part.scores.items()}
    return {name: flaw for name, flaw in flaws.items() if flaw}


def warnings_of(result: EvaluationResult) -> list[str]:
    """Return warnings about meaningless metrics: flawed scores, κ below 1, descriptors that coincide.

    Args:
        result: The evaluation.

    Returns:
        One message per dataset and problem.
    """
    warnings = []
    for part in result.sets:
        flaws = [f"{part.scores[name].label} ({flaw})" for name, flaw in flaws_of(part).items()]
        if flaws:
            warnings.append(
                f"{part.name}: queries have the same value of {', '.join(flaws)}. The ECE marked with * is "
                "meaningless, because that of a constant score is R@K."
            )
        kappa = part.query_kappa
        if kappa is not None and len(kappa) > 1:
            low, high = np.percentile(kappa, (5, 95))
            text = f"{part.name}: κ is {low:.3g} to {high:.3g} for 90% of the queries"
            if float(np.mean(kappa <= 1)) >= TIED:
                warnings.append(f"{text}, and 1/κ is floored at κ = 1. Train the head longer.")
            elif score_flaw(kappa):
                warnings.append(f"{text}, so it carries no information. Train the head longer.")
        if misplaced := part.facts.get("misplaced"):
            warnings.append(
                f"{part.name}: some copies of a reference have the label of another place "
                f"({', '.join(misplaced)}). Check their labels."
            )
        if part.facts.get("coincident"):
            warnings.append(f"{part.name}: {part.facts['coincident']}")
    return warnings


# Repeated queries of a resample look like miscalibration to these metrics, so intervals would be too high.
NO_INTERVAL = ("smooth ECE", "equal-mass ECE", "debiased ECE", "Brier reliability", "Brier resolution")


def _intervals(metrics: Callable[[NDArray[np.int64]], Values], plan: Resampling) -> Intervals:
    """Return the interval of each metric, which is a function of the rows of a resample."""
    replicates = bootstrap_many(metrics, [np.arange(plan.queries)], plan)
    limits = {name: each.interval(LEVEL) for name, each in replicates.items() if name not in NO_INTERVAL}
    return {name: (limit.low, limit.high) for name, limit in limits.items()}


def _score_intervals(column: ScoreColumns, hits: NDArray[np.bool_], plan: Resampling) -> Intervals:
    # ECE with zoom hardly differs, and takes as long as all other calibration errors.
    return _intervals(lambda rows: score_metrics(column.take(rows), hits[rows], zoom=False), plan)


def _mean(parts: Sequence[Metrics]) -> Metrics:
    """Return the mean over datasets, with equal weights, of the metrics that all datasets have."""
    return {
        "queries": sum(each["queries"] for each in parts),
        "baselines": {
            name: _mean_of([each["baselines"][name] for each in parts]) for name in parts[0]["baselines"]
        },
        "recall": _mean_of([each["recall"] for each in parts]),
        "scores": {
            name: _mean_of([each["scores"][name] for each in parts])
            for name in parts[0]["scores"]
            if all(name in each["scores"] for each in parts)
        },
    }


def _mean_of(rows: Sequence[Mapping[str, float]]) -> Values:
    return {
        name: float(np.mean([row[name] for row in rows]))
        for name in rows[0]
        if all(name in row for row in rows)
    }


@dataclass(frozen=True, eq=False)
class ScoreResult:
    """The quality of one score."""

    score: Score
    """The score."""
    uncertainty: Scores
    """Uncertainty per query (N)."""
    curves: dict[int, ReliabilityCurve]
    """Reliability curves by K."""
    auroc: float
    """Area under the ROC curve of success at K = 1. NaN if all queries succeed, or none."""

    @property
    def ece(self) -> dict[int, float]:
        """ECE@K in the protocol of the paper, by K."""
        return {k: curve.error for k, curve in self.curves.items()}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Recall of a retrieval, and the quality of every score."""

    hits: NDArray[np.bool_]
    """Whether each match is a positive, N×K."""
    recall: dict[int, float]
    """Recall R@K, by K."""
    scores: tuple[ScoreResult, ...]
    """One result per score."""

    def to_dict(self) -> dict[str, Json]:
        """Convert to plain values for JSON.

        Returns:
            Number of queries, recall, and metrics by score. An undefined AUROC is None.
        """
        return {
            "queries": len(self.hits),
            "recall": {f"R@{k}": value for k, value in self.recall.items()},
            "scores": {
                result.score.name: {
                    **{f"ECE@{k}": v for k, v in result.ece.items()},
                    "AUROC": None if math.isnan(result.auroc) else result.auroc,
                }
                for result in self.scores
            },
        }


def evaluate_scores(evidence: Evidence, hits: NDArray[np.bool_], scores: Sequence[Score]) -> Evaluation:
    """Evaluate scores on one retrieval.

    Args:
        evidence: Queries, references and matches, as `kappaplace.retrieve` returns them.
        hits: Whether each match is a positive, N×K.
        scores: The scores, as `kappaplace.uncertainty.score_named` returns them.

    Returns:
        Recall, and reliability and AUROC of every score.
    """
    ks = [k for k in KS if k <= hits.shape[1]]
    success = {k: success_at(hits, k) for k in ks}
    results = []
    for score in scores:
        uncertainty = score.query(evidence)
        clamp = UPPER_TAIL if score.one_sided else BOTH_TAILS
        curves = {k: reliability_curve(uncertainty, success[k], clamp) for k in ks}
        results.append(ScoreResult(score, uncertainty, curves, auroc(uncertainty, success[1])))
    return Evaluation(hits, {k: recall_at(hits, k) for k in ks}, tuple(results))
