"""Comparison of evaluations: one metric of every score, with intervals and paired tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.measuring import (
    POOLED,
    flaws_of,
    plan_of,
    pooled_column,
    pooled_hits,
    recall_metrics,
    score_metrics,
)
from kappaplace.evaluation.results import EvaluationResult, ScoreColumns, SetResult, metric_rows, write_rows
from kappaplace.files import make_folder
from kappaplace.metrics.bootstrap import Replicates, Resampling, bootstrap, holm
from kappaplace.metrics.bootstrap import compare as compare_replicates
from kappaplace.metrics.retrieval import success_at
from kappaplace.metrics.selective import RISKS, auc_pr, augrc, aurc, auroc, coverage_at_risk, e_aurc

LEAST_RESAMPLES = 1000
RESAMPLES_PER_TEST = 80
"""Number of resamples per test. Holm's correction multiplies the least p-value, 2/(resamples + 1), by the
number of tests."""
RETRIEVAL = ""
"""Name of the row with metrics of the retrieval itself, instead of a score."""


class Cell(NamedTuple):
    """Cell of a table: a metric of one evaluation, and its difference from the first evaluation."""

    value: float
    """The metric."""
    low: float
    """Lower limit of the confidence interval."""
    high: float
    """Upper limit of the confidence interval."""
    difference: float = math.nan
    """Value minus that of the first evaluation. NaN if there is no test."""
    p_value: float = math.nan
    """Two-sided p-value, with Holm's correction for all tests on the dataset. NaN if there is no test."""
    flaw: str = ""
    """Reason why the metric is meaningless, for an ECE of a nearly constant score; empty otherwise."""


@dataclass(frozen=True, eq=False)
class ComparedSet:
    """Comparison on one dataset: rows are scores, columns are evaluations."""

    name: str
    """Name of the dataset, or "pooled"."""
    metric: str
    """Name of the metric."""
    queries: int
    """Number of queries."""
    rows: dict[str, list[Cell | None]]
    """Cells by score, or by `RETRIEVAL`: one per evaluation, None if the evaluation lacks the score."""
    note: str = ""
    """Reason why there is no test. Empty if there is one."""


@dataclass(frozen=True, eq=False)
class ComparisonTable:
    """Comparison on all datasets, and on all of them pooled."""

    names: tuple[str, ...]
    """Names of the evaluations."""
    sets: tuple[ComparedSet, ...]
    """The datasets; the pooled one comes last."""


def compare(
    results: Sequence[EvaluationResult],
    metric: str = "AUROC",
    *,
    against: str = "",
    resamples: int | None = None,
    seed: int = 0,
) -> ComparisonTable:
    """Compare a metric of every score in every evaluation with the first evaluation.

    For a single evaluation, its scores are compared with one of them instead. Only datasets that all
    evaluations have are compared and pooled.

    Args:
        results: The evaluations.
        metric: Name of the metric, such as "AUROC" or "R@1".
        against: For a single evaluation, the score to compare the others with. Default: the first.
        resamples: Number of bootstrap resamples. Default: enough for a clear difference to stay significant
            after Holm's correction.
        seed: Random seed for the bootstrap.

    Returns:
        One table per dataset.

    Raises:
        KappaPlaceError: If the evaluations have no dataset in common, or no score has the metric.
    """
    if not results:
        raise KappaPlaceError("There is no evaluation to compare. Pass at least one.")
    if resamples is None:
        tests = max(1, len(results) - 1) * max(len(each.scores) for result in results for each in result.sets)
        resamples = max(LEAST_RESAMPLES, RESAMPLES_PER_TEST * tests)
    shared = [each.name for each in results[0].sets if all(each.name in _names(r) for r in results)]
    if not shared:
        names = "; ".join(f"{r.name}: {', '.join(_names(r))}" for r in results)
        raise KappaPlaceError(
            f"These evaluations have no dataset in common ({names}). Evaluate the same tables."
        )
    if against and (len(results) > 1 or any(against not in each.scores for each in results[0].sets)):
        raise KappaPlaceError(
            f"against='{against}' must be a score of a single evaluation. Pass one folder, and choose from: "
            f"{', '.join(results[0].sets[0].scores)}."
        )
    together = [name for name in shared if name in results[0].facts.get("pool", shared)]
    groups = [[name] for name in shared] + ([together] if len(shared) > 1 and together else [])
    tables = []
    for group in groups:
        sets = [[each for name in group for each in result.sets if each.name == name] for result in results]
        name = POOLED if group is together else group[0]
        tables.append(_compare(name, metric, sets, against, resamples, seed))
    if not any(cell for each in tables for row in each.rows.values() for cell in row):
        raise KappaPlaceError(
            f"No score has the metric '{metric}'. Choose from: {', '.join(_metrics_of(results))}."
        )
    return ComparisonTable(_distinct_names(results), tuple(tables))


class SeedRow(NamedTuple):
    """Row of a table: a metric of one score, over runs that differ only in their random seed."""

    set: str
    """Name of the dataset, "pooled" or "mean"."""
    score: str
    """Name of the score. Empty for metrics of the retrieval."""
    metric: str
    """Name of the metric."""
    mean: float
    """Mean over the runs."""
    std: float
    """Sample standard deviation over the runs (divisor n − 1)."""
    runs: int
    """Number of runs."""


def spread_over_seeds(results: Sequence[EvaluationResult], metrics: Sequence[str] = ()) -> list[SeedRow]:
    """Compute mean and standard deviation of every metric over runs with different random seeds.

    Args:
        results: One evaluation per seed, of the same datasets.
        metrics: Names of the metrics. Default: all.

    Returns:
        One row per dataset, score and metric that all runs have.

    Raises:
        KappaPlaceError: If there are fewer than two runs, two of them have the same model, their queries
            differ, or no metric has this name.
    """
    if len(results) < 2:
        raise KappaPlaceError(
            f"The spread over seeds needs at least two runs, got {len(results)}. Pass one folder per seed."
        )
    models = [result.facts.get("fingerprint") for result in results]
    if None not in models and len(set(models)) < len(models):
        raise KappaPlaceError("Two runs evaluate the same model. Pass one run per seed.")
    note = (
        _why_unpaired([list(result.sets) for result in results]) if _same_sets(results) else "datasets differ"
    )
    if note:
        raise KappaPlaceError(f"Runs of different seeds must have the same queries ({note.rstrip('.')}).")
    cells: dict[tuple[str, str, str], list[float]] = {}
    for result in results:
        for row in metric_rows(result):
            key = str(row["set"]), str(row["score"]), str(row["metric"])
            if not metrics or key[2] in metrics:
                cells.setdefault(key, []).append(float(row["value"]))
    if not cells:
        raise KappaPlaceError(f"No metric has the name {', '.join(metrics)}. See metrics.csv of a run.")
    complete = {key: values for key, values in cells.items() if len(values) == len(results)}
    return [
        SeedRow(*key, float(np.mean(values)), float(np.std(values, ddof=1)), len(values))
        for key, values in complete.items()
    ]


def _same_sets(results: Sequence[EvaluationResult]) -> bool:
    return all(_names(result) == _names(results[0]) for result in results)


def _names(result: EvaluationResult) -> list[str]:
    return [each.name for each in result.sets]


def _distinct_names(results: Sequence[EvaluationResult]) -> tuple[str, ...]:
    names = [result.name for result in results]
    repeated = {name for name in names if names.count(name) > 1}
    return tuple(f"{name} ({i + 1})" if name in repeated else name for i, name in enumerate(names))


def _metrics_of(results: Sequence[EvaluationResult]) -> list[str]:
    names: dict[str, None] = {}
    for measured in (each for result in results for each in result.metrics.values()):
        for metrics in (measured["recall"], *measured["scores"].values()):
            names |= dict.fromkeys(metrics)
    return list(names)


def _compare(
    name: str, metric: str, evaluations: list[list[SetResult]], against: str, resamples: int, seed: int
) -> ComparedSet:
    note = _why_unpaired(evaluations)
    shared_plan = plan_of(evaluations[0], resamples, seed)
    plans = [plan_of(sets, resamples, seed) if note else shared_plan for sets in evaluations]
    columns = [_replicates(sets, metric, plan) for sets, plan in zip(evaluations, plans, strict=True)]
    names = list(dict.fromkeys(score for column in columns for score in column))
    rows = {score: [column.get(score) for column in columns] for score in names}
    cells = _cells(rows, not note, against)
    if "ECE@" in metric:
        flaws = [_flaws(sets) for sets in evaluations]
        cells = {
            score: [
                cell and cell._replace(flaw=each.get(score, ""))
                for cell, each in zip(row, flaws, strict=True)
            ]
            for score, row in cells.items()
        }
    return ComparedSet(name, metric, shared_plan.queries, cells, note)


def _flaws(sets: Sequence[SetResult]) -> dict[str, str]:
    return {name: flaw for each in sets for name, flaw in flaws_of(each).items()}


def _replicates(sets: list[SetResult], metric: str, plan: Resampling) -> dict[str, Replicates]:
    hits, positives = pooled_hits(sets)
    if metric in recall_metrics(hits, positives):
        arrays = [hits] if positives is None else [hits, positives]
        return {RETRIEVAL: bootstrap(lambda *rows: recall_metrics(*rows)[metric], arrays, plan)}
    columns = {name: pooled_column(sets, name) for name in sets[0].scores}
    return {
        name: _bootstrap(column, hits, metric, plan)
        for name, column in columns.items()
        if column is not None and metric in score_metrics(column, hits)
    }


# The most frequent metrics, computed alone in a tenth of the time of all metrics.
_RANKING: dict[str, Callable[..., float]] = {
    "AUROC": auroc,
    "AUC-PR": auc_pr,
    "AURC": aurc,
    "E-AURC": e_aurc,
    "AUGRC": augrc,
    **{f"coverage@{risk:.0%}": partial(coverage_at_risk, risk=risk) for risk in RISKS},
}


def _bootstrap(column: ScoreColumns, hits: NDArray[np.bool_], metric: str, plan: Resampling) -> Replicates:
    if metric in _RANKING:
        return bootstrap(_RANKING[metric], [column.query, success_at(hits, 1)], plan)
    # Columns that the metric does not depend on are removed, because their metrics take time.
    if not metric.startswith("match "):
        column = replace(column, match=None)
    without = replace(column, probability=None)
    if metric in score_metrics(without, hits):
        column = without
    zoom = metric.startswith("zoom ")

    def value(rows: NDArray[np.int64]) -> float:
        return score_metrics(column.take(rows), hits[rows], zoom)[metric]

    return bootstrap(value, [np.arange(len(hits))], plan)


def _cells(
    rows: Mapping[str, Sequence[Replicates | None]], paired: bool, against: str
) -> dict[str, list[Cell | None]]:
    """Return intervals, and tests against the first column, or for a single column against one of its
    rows."""
    alone = all(len(row) == 1 for row in rows.values())
    if alone and against and rows and against not in rows and RETRIEVAL not in rows:
        raise KappaPlaceError(
            f"The score '{against}' does not have this metric. Choose another score or metric."
        )
    first_row = rows.get(against, next(iter(rows.values()), [None]))[0]
    cells: dict[str, list[Cell | None]] = {}
    tests: list[tuple[str, int, Cell]] = []
    for score, row in rows.items():
        cells[score] = []
        for i, own in enumerate(row):
            if own is None:
                cells[score].append(None)
                continue
            limits = own.interval()
            cell = Cell(limits.value, limits.low, limits.high)
            base = first_row if alone else row[0]
            if paired and base is not None and base is not own:
                test = compare_replicates(own, base)
                cell = cell._replace(difference=test.difference, p_value=test.p_value)
                tests.append((score, i, cell))
            cells[score].append(cell)
    corrected = holm([cell.p_value for _, _, cell in tests])
    for (score, i, cell), p_value in zip(tests, corrected, strict=True):
        cells[score][i] = cell._replace(p_value=float(p_value))
    return cells


def _why_unpaired(evaluations: list[list[SetResult]]) -> str:
    """Return why the evaluations cannot be paired; empty if they can."""
    for others in evaluations[1:]:
        for first, other in zip(evaluations[0], others, strict=True):
            if not _same_queries(first, other):
                return (
                    f"The evaluations of {first.name} do not have the same queries (table, positives or "
                    "policy differ), so differences are not tested."
                )
    return ""


def _same_queries(a: SetResult, b: SetResult) -> bool:
    if len(a.hits) != len(b.hits) or a.block != b.block or a.policy != b.policy:
        return False
    if a.facts.get("hash") != b.facts.get("hash"):
        return False
    return bool(np.array_equal(a.query_numbers, b.query_numbers))


def comparison_rows(tables: Sequence[ComparisonTable]) -> list[dict[str, str | float]]:
    """Return one row per cell, for CSV and JSON."""
    return [
        {
            "metric": compared.metric,
            "set": compared.name,
            "score": score,
            "evaluation": name,
            **{name: value for name, value in cell._asdict().items() if name != "flaw"},
            "note": compared.note or cell.flaw,
        }
        for table in tables
        for compared in table.sets
        for score, cells in compared.rows.items()
        for name, cell in zip(table.names, cells, strict=True)
        if cell is not None
    ]


def write_comparison(tables: Sequence[ComparisonTable], folder: str | Path) -> Path:
    """Write comparison.csv to a folder, and return the file."""
    rows = comparison_rows(tables)
    return write_rows(make_folder(folder) / "comparison.csv", rows, list(rows[0]))
