"""Tables of an evaluation as HTML and LaTeX: retrieval, scores, probabilities, missing ones, comparisons."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from kappaplace.metrics import ECE_NOTE
from kappaplace.reports.groups import NAN, Group, Metrics
from kappaplace.reports.html import Cell, Table

if TYPE_CHECKING:
    from kappaplace.evaluation import EvaluationResult


DIGITS = 3
MISSING = "–"


def number(value: float | None, digits: int = DIGITS) -> str:
    """Return a number as text, or a dash if it is not defined."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def interval(limits: Sequence[float | None] | None) -> str:
    """Return an interval as text, or nothing if it is not defined."""
    if limits is None or any(limit is None or not math.isfinite(limit) for limit in limits):
        return ""
    return f"[{number(limits[0])}, {number(limits[1])}]"


def mark_best(values: Sequence[float], larger: bool) -> list[bool]:
    """Return which numbers are the best.

    Numbers that look the same in print are marked the same. Nothing is marked if all are equal, or if there
    is only one.

    Args:
        values: Numbers of a column.
        larger: Whether larger numbers are better.

    Returns:
        Whether each number is one of the best.
    """
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return [False] * len(values)
    best = number(max(finite) if larger else min(finite))
    if all(number(value) == best for value in finite):
        return [False] * len(values)
    return [math.isfinite(value) and number(value) == best for value in values]


RANKING = ("AUROC", "AUC-PR", "AURC", "AUGRC", "coverage@10%")
PROBABILITY = ("smooth ECE", "equal-mass ECE", "debiased ECE", "Brier", "log-loss")
LARGER_IS_BETTER = frozenset({"AUROC", "AUC-PR", "coverage@10%", "R@1"})
POLICIES = {
    "fail": "counted as failures",
    "skip": "excluded from all numbers",
    "error": "not allowed",
}


def retrieval_table(result: EvaluationResult, groups: Sequence[Group]) -> Table:
    """Return R@K of each dataset and pooled, with the numbers of queries and references."""
    metrics = list(dict.fromkeys(name for group in groups for name in group.recall))
    sets = {part.name: part for part in result.sets}
    rows = []
    for group in groups:
        part = sets.get(group.name)
        if part is None:  # pooled
            references = MISSING
            without = sum(each.without_positives for each in result.sets)
        else:
            references = f"{part.references:,}" if part.references else MISSING
            without = part.without_positives
        numbers = [
            Cell(number(group.recall.get(name)), interval(group.recall_interval(name))) for name in metrics
        ]
        counts = (group.title, f"{len(group.hits):,}", references, f"{without:,}")
        rows.append((*map(Cell, counts), *numbers))
    header = (
        "dataset",
        "queries",
        "references",
        "without positives",
        *(f"{name}\u00a0↑" for name in metrics),
    )
    return Table(header, tuple(rows), f"Retrieval. Queries without positives are {_policies(result)}.")


def score_table(group: Group) -> Table:
    """Return the metrics of every score; the last rows are a constant score and a perfect ranking."""
    metrics = [*(f"ECE@{k}" for k in group.ks), *RANKING]
    limits = tuple(
        (Cell(name), *(Cell(number(values.get(metric))) for metric in metrics))
        for name, values in group.baselines.items()
    )
    table = _metrics_table(group, metrics, list(group.scores), f"Scores, {group.title}. {ECE_NOTE}")
    return Table(table.header, (*table.rows, *limits), table.caption)


def match_table(group: Group) -> Table | None:
    """Return the calibration of the K·N pairs of a query and a match; None if no score evaluates pairs."""
    scores = [name for name, column in group.scores.items() if column.match is not None]
    metrics = [f"match ECE@{k}" for k in group.ks]
    caption = f"Match level, {group.title}. {ECE_NOTE}"
    return _metrics_table(group, metrics, scores, caption) if scores else None


def probability_table(group: Group) -> Table | None:
    """Return the metrics of the scores that are probabilities; None if there are none."""
    scores = [name for name, column in group.scores.items() if column.probability is not None]
    return _metrics_table(group, PROBABILITY, scores, f"Probabilities, {group.title}.") if scores else None


def mean_table(mean: Metrics, labels: Mapping[str, str], flaws: Collection[str] = ()) -> Table:
    """Return the unweighted mean over datasets, as the evaluation measured it.

    Args:
        mean: Metrics of the mean.
        labels: Names of the scores in tables.
        flaws: Scores that cannot rank the queries of some dataset.

    Returns:
        The table.
    """
    scores = {name: values for name, values in (mean.get("scores") or {}).items() if name in labels}
    metrics = [
        name for name in ("ECE@1", "ECE@5", "ECE@10", *RANKING) if any(name in v for v in scores.values())
    ]
    columns = []
    for name in metrics:
        values = [_float(row.get(name)) for row in scores.values()]
        marks = [_is_ece(name) and score in flaws for score in scores]
        columns.append(_column(values, marks, name))
    rows = [list(row) for row in zip([Cell(labels[name]) for name in scores], *columns, strict=True)]
    for name, baseline in (mean.get("baselines") or {}).items():
        rows.append([Cell(name), *(Cell(number(_float(baseline.get(metric)))) for metric in metrics)])
    caption = f"Scores, unweighted mean over datasets. {ECE_NOTE}{_STARS if flaws else ''}"
    return Table(("score", *map(_arrow, metrics)), tuple(map(tuple, rows)), caption)


def left_out_table(result: EvaluationResult) -> Table | None:
    """Return the missing scores with the reasons; None if there are none."""
    sets: dict[tuple[str, str], list[str]] = {}
    for part in result.sets:
        for score, reason in part.left_out.items():
            sets.setdefault((score, reason), []).append(part.name)
    if not sets:
        return None
    everywhere = len(result.sets)
    rows = [
        [score, "all" if len(names) == everywhere else ", ".join(names), reason]
        for (score, reason), names in sets.items()
    ]
    return Table.of_words(("score", "dataset", "reason"), rows, "Missing scores.")


def comparison_table(runs: Mapping[str, Group], title: str) -> Table:
    """Return a comparison of runs, score by score; the best run of each score is marked."""
    labels = {name: column.label for group in runs.values() for name, column in group.scores.items()}
    metrics = ["ECE@1", *RANKING]
    rows: list[tuple[Cell, ...]] = []
    for name, label in labels.items():
        having = {run: group for run, group in runs.items() if name in group.scores}
        columns = []
        for metric in ("R@1", *metrics):
            values = [_of(group, name, metric) for group in having.values()]
            marks = [_is_ece(metric) and name in group.flaws for group in having.values()]
            small = [interval(_limits(group, name, metric)) for group in having.values()]
            columns.append(_column(values, marks, metric, small))
        for run, *cells in zip(having, *columns, strict=True):
            rows.append((Cell(label), Cell(run), *cells))
    stars = _STARS if any(group.flaws for group in runs.values()) else ""
    caption = f"Comparison, {title}. {ECE_NOTE}{stars}"
    return Table(("score", "run", *map(_arrow, ["R@1", *metrics])), tuple(rows), caption)


def _metrics_table(group: Group, metrics: Sequence[str], scores: Sequence[str], caption: str) -> Table:
    columns = []
    for metric in metrics:
        values = [group.values[name].get(metric, NAN) for name in scores]
        marks = [_is_ece(metric) and name in group.flaws for name in scores]
        small = [interval(group.interval(name, metric)) for name in scores]
        columns.append(_column(values, marks, metric, small))
    names = [Cell(group.scores[name].label) for name in scores]
    caption += _STARS if any(_is_ece(each) for each in metrics) and group.flaws.keys() & set(scores) else ""
    return Table(("score", *map(_arrow, metrics)), tuple(zip(names, *columns, strict=True)), caption)


_STARS = " * Most queries have the same value of this score, so its ECE is meaningless."


def _is_ece(metric: str) -> bool:
    """Return whether a constant score can get a good value of this metric."""
    return metric.startswith(("ECE@", "match ECE@"))


def _column(
    values: Sequence[float], flawed: Sequence[bool], metric: str, small: Sequence[str] | None = None
) -> list[Cell]:
    """Return the cells of a metric; a flawed score has a star and is never the best."""
    compared = [NAN if flaw else value for value, flaw in zip(values, flawed, strict=True)]
    best = mark_best(compared, metric in LARGER_IS_BETTER)
    print_ = small or [""] * len(values)
    texts = [number(value) + "*" * flaw for value, flaw in zip(values, flawed, strict=True)]
    return [Cell(*each) for each in zip(texts, print_, best, strict=True)]


def _arrow(metric: str) -> str:
    return f"{metric}\u00a0{'↑' if metric in LARGER_IS_BETTER else '↓'}"  # no line break between them


def _of(group: Group, score: str, metric: str) -> float:
    return group.recall["R@1"] if metric == "R@1" else group.values[score].get(metric, NAN)


def _limits(group: Group, score: str, metric: str) -> Sequence[float] | None:
    return group.recall_interval("R@1") if metric == "R@1" else group.interval(score, metric)


def _policies(result: EvaluationResult) -> str:
    used = dict.fromkeys(part.policy for part in result.sets)
    if len(used) == 1:
        return POLICIES.get(next(iter(used)), next(iter(used)))
    return "; ".join(f"in {part.name} {POLICIES.get(part.policy, part.policy)}" for part in result.sets)


def _float(value: float | None) -> float:
    return NAN if value is None else float(value)
