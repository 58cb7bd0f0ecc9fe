"""Two or more evaluations side by side: one metric of every score, with intervals and paired tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.measuring import (
    POOLED,
    plan_of,
    pooled_column,
    pooled_hits,
    recall_metrics,
    score_metrics,
)
from kappaplace.evaluation.results import EvaluationResult, ScoreColumns, SetResult, write_rows
from kappaplace.files import make_folder
from kappaplace.metrics.bootstrap import Replicates, Resampling, bootstrap, holm
from kappaplace.metrics.bootstrap import compare as compare_replicates
from kappaplace.metrics.retrieval import success_at
from kappaplace.metrics.selective import RISKS, auc_pr, augrc, aurc, auroc, coverage_at_risk, e_aurc

LEAST_RESAMPLES = 1000
RESAMPLES_PER_TEST = (
    80  # the least p-value is 2/(resamples + 1), and Holm multiplies it by the number of tests
)
RETRIEVAL = ""
"""In place of a score: metrics of retrieval itself."""


class Cell(NamedTuple):
    """One metric of one evaluation, and how it differs from the first."""

    value: float
    low: float
    high: float
    difference: float = math.nan
    p_value: float = math.nan
    """Two-sided, Holm-corrected over the set's table; NaN where nothing was tested."""


@dataclass(frozen=True, eq=False)
class ComparedSet:
    """One set: rows are scores, columns the evaluations (or, of a single one, its own scores)."""

    name: str
    metric: str
    queries: int
    rows: dict[str, list[Cell | None]]
    """Score (or retrieval) → one cell an evaluation; None where it lacks the score."""
    note: str = ""
    """Why nothing was tested."""


@dataclass(frozen=True, eq=False)
class ComparisonTable:
    """All sets, and all of them pooled."""

    names: tuple[str, ...]
    sets: tuple[ComparedSet, ...]


def compare(
    results: Sequence[EvaluationResult],
    metric: str = "AUROC",
    *,
    against: str = "",
    resamples: int | None = None,
    seed: int = 0,
) -> ComparisonTable:
    """A metric of every score in every evaluation, tested against the first.

    A single evaluation compares its scores with one of them instead: ``against``, or the first. Sets that
    only some evaluations have are left out of the table; what is pooled is what all have. Without a number of
    resamples there are enough for a clear difference to stay significant after Holm's correction.
    """
    if not results:
        raise KappaPlaceError("Give at least one evaluation to compare.")
    if resamples is None:
        tests = max(1, len(results) - 1) * max(len(each.scores) for result in results for each in result.sets)
        resamples = max(LEAST_RESAMPLES, RESAMPLES_PER_TEST * tests)
    shared = [each.name for each in results[0].sets if all(each.name in _names(r) for r in results)]
    if not shared:
        listed = "; ".join(f"{r.name}: {', '.join(_names(r))}" for r in results)
        raise KappaPlaceError(
            f"These evaluations have no set in common ({listed}); evaluate the same tables."
        )
    if against and (len(results) > 1 or any(against not in each.scores for each in results[0].sets)):
        raise KappaPlaceError(
            f"{against} is no score of a single evaluation: --against names the score of one folder with "
            "which its others are compared."
        )
    groups = [[name] for name in shared] + ([shared] if len(shared) > 1 else [])
    compared = []
    for group in groups:
        chosen = [[each for name in group for each in result.sets if each.name == name] for result in results]
        name = group[0] if len(group) == 1 else POOLED
        compared.append(_compared(name, metric, chosen, against, resamples, seed))
    if not any(cell for each in compared for row in each.rows.values() for cell in row):
        raise KappaPlaceError(f"No score has the metric {metric!r}; known are {', '.join(_known(results))}.")
    return ComparisonTable(_distinct(results), tuple(compared))


def _names(result: EvaluationResult) -> list[str]:
    return [each.name for each in result.sets]


def _distinct(results: Sequence[EvaluationResult]) -> tuple[str, ...]:
    names = [result.name for result in results]
    repeated = {name for name in names if names.count(name) > 1}
    return tuple(f"{name} ({i + 1})" if name in repeated else name for i, name in enumerate(names))


def _known(results: Sequence[EvaluationResult]) -> list[str]:
    tables = [found for result in results for found in result.metrics.values()]
    names: dict[str, None] = {}
    for found in tables:
        for metrics in (found["recall"], *found["scores"].values()):
            names |= dict.fromkeys(metrics)
    return list(names)


def _compared(
    name: str, metric: str, chosen: list[list[SetResult]], against: str, resamples: int, seed: int
) -> ComparedSet:
    note = _unpaired(chosen)
    shared_plan = plan_of(chosen[0], resamples, seed)
    plans = [plan_of(sets, resamples, seed) if note else shared_plan for sets in chosen]
    columns = [_replicates(sets, metric, plan) for sets, plan in zip(chosen, plans, strict=True)]
    names = list(dict.fromkeys(score for column in columns for score in column))
    rows: dict[str, list[Replicates | None]] = {
        score: [column.get(score) for column in columns] for score in names
    }
    return ComparedSet(name, metric, shared_plan.queries, _tested(rows, not note, against), note)


def _replicates(sets: list[SetResult], metric: str, plan: Resampling) -> dict[str, Replicates]:
    hits = pooled_hits(sets)
    counts = [each.positives for each in sets if each.positives is not None]
    positives = np.concatenate(counts) if len(counts) == len(sets) else None
    if metric in recall_metrics(hits, positives):
        arrays = [hits] if positives is None else [hits, positives]
        return {RETRIEVAL: bootstrap(lambda *rows: recall_metrics(*rows)[metric], arrays, plan)}
    found = {}
    for name in sets[0].scores:
        column = pooled_column(sets, name)
        if column is not None and metric in _metrics(column, hits):
            found[name] = _bootstrap(column, hits, metric, plan)
    return found


def _metrics(column: ScoreColumns, hits: NDArray[np.bool_], zoom: bool = True) -> dict[str, float]:
    return score_metrics(
        column.query,
        hits,
        one_sided=column.one_sided,
        match=column.match,
        probability=column.probability,
        zoom=zoom,
    )


# Those asked for most, by themselves: a tenth of the time of all metrics together.
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
    match = column.match if metric.startswith("match ") else None
    probability = (
        column.probability if metric not in _metrics(replace(column, probability=None), hits) else None
    )
    optional = {"match": match, "probability": probability}
    given = {name: part for name, part in optional.items() if part is not None}

    def again(query: NDArray[Any], drawn: NDArray[Any], *rest: NDArray[Any]) -> float:
        named = dict(zip(given, rest, strict=True))
        zoom = metric.startswith("zoom ")
        return score_metrics(query, drawn, one_sided=column.one_sided, zoom=zoom, **named)[metric]

    return bootstrap(again, [column.query, hits, *given.values()], plan)


def _tested(
    rows: dict[str, list[Replicates | None]], paired: bool, against: str
) -> dict[str, list[Cell | None]]:
    """Intervals of all cells, and tests against the first column; of one column against one of its rows."""
    alone = all(len(row) == 1 for row in rows.values())
    if alone and against and rows and against not in rows and RETRIEVAL not in rows:
        raise KappaPlaceError(
            f"{against} has no such metric to test against; choose another score or metric."
        )
    first_row = rows.get(against, next(iter(rows.values()), [None]))[0]
    cells: dict[str, list[Cell | None]] = {}
    tests: list[tuple[str, int]] = []
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
                tests.append((score, i))
            cells[score].append(cell)
    raw = [found.p_value for score, i in tests if (found := cells[score][i]) is not None]
    for (score, i), corrected in zip(tests, holm(raw), strict=True):
        tested = cells[score][i]
        assert tested is not None
        cells[score][i] = tested._replace(p_value=float(corrected))
    return cells


def _unpaired(chosen: list[list[SetResult]]) -> str:
    """Why evaluations cannot be paired, in one sentence; nothing where they can."""
    for others in chosen[1:]:
        for first, other in zip(chosen[0], others, strict=True):
            if not _same_queries(first, other):
                return (
                    f"The evaluations of {first.name} are not of the same queries (table, positives or "
                    "policy differ), so differences are not tested."
                )
    return ""


def _same_queries(a: SetResult, b: SetResult) -> bool:
    if len(a.hits) != len(b.hits) or a.block != b.block or a.policy != b.policy:
        return False
    if a.facts.get("hash") != b.facts.get("hash"):
        return False
    return bool(np.array_equal(_numbers(a), _numbers(b)))


def _numbers(each: SetResult) -> NDArray[np.int64]:
    return np.arange(len(each.hits)) if each.queries is None else each.queries


def comparison_rows(tables: Sequence[ComparisonTable]) -> list[dict[str, Any]]:
    """One row a cell, for CSV and JSON."""
    return [
        {
            "metric": compared.metric,
            "set": compared.name,
            "score": score,
            "evaluation": name,
            **cell._asdict(),
            "note": compared.note,
        }
        for table in tables
        for compared in table.sets
        for score, cells in compared.rows.items()
        for name, cell in zip(table.names, cells, strict=True)
        if cell is not None
    ]


def write_comparison(tables: Sequence[ComparisonTable], folder: str | Path) -> Path:
    """Write comparison.csv."""
    return write_rows(make_folder(folder) / "comparison.csv", comparison_rows(tables))
