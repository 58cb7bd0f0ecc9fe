"""Tables of an evaluation: retrieval, scores, probabilities, missing scores and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kappaplace.reports.groups import NAN, Group, Metrics
from kappaplace.reports.tables import MISSING, Cell, Table, interval, mark_best, number

if TYPE_CHECKING:
    from kappaplace.evaluation import EvaluationResult


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
    """Return the calibration and ranking metrics of every score; the last row is a constant score."""
    metrics = [*(f"ECE@{k}" for k in group.ks), *RANKING]
    constant = tuple(Cell(number(group.constant_score.get(name))) for name in metrics)
    table = _metrics_table(group, metrics, list(group.scores), f"Scores, {group.title}.")
    return Table(table.header, (*table.rows, (Cell("constant score"), *constant)), table.caption)


def match_table(group: Group) -> Table | None:
    """Return the calibration of the K·N pairs of a query and a match; None if no score evaluates pairs."""
    scores = [name for name, column in group.scores.items() if column.match is not None]
    metrics = [f"match ECE@{k}" for k in group.ks]
    return _metrics_table(group, metrics, scores, f"Match level, {group.title}.") if scores else None


def probability_table(group: Group) -> Table | None:
    """Return the metrics of the scores that are probabilities; None if there are none."""
    scores = [name for name, column in group.scores.items() if column.probability is not None]
    return _metrics_table(group, PROBABILITY, scores, f"Probabilities, {group.title}.") if scores else None


def mean_table(mean: Metrics, labels: Mapping[str, str]) -> Table:
    """Return the unweighted mean over datasets, as the evaluation measured it."""
    scores = {name: values for name, values in (mean.get("scores") or {}).items() if name in labels}
    metrics = [
        name for name in ("ECE@1", "ECE@5", "ECE@10", *RANKING) if any(name in v for v in scores.values())
    ]
    columns = []
    for name in metrics:
        values = [_float(row.get(name)) for row in scores.values()]
        best = mark_best(values, name in LARGER_IS_BETTER)
        columns.append([Cell(number(v), best=b) for v, b in zip(values, best, strict=True)])
    rows = tuple(zip([Cell(labels[name]) for name in scores], *columns, strict=True))
    return Table(("score", *map(_arrow, metrics)), rows, "Scores, unweighted mean over datasets.")


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
            limits = [_limits(group, name, metric) for group in having.values()]
            marks = mark_best(values, metric in LARGER_IS_BETTER)
            columns.append(
                [Cell(number(v), interval(i), b) for v, i, b in zip(values, limits, marks, strict=True)]
            )
        for run, *cells in zip(having, *columns, strict=True):
            rows.append((Cell(label), Cell(run), *cells))
    return Table(("score", "run", *map(_arrow, ["R@1", *metrics])), tuple(rows), f"Comparison, {title}.")


def _metrics_table(group: Group, metrics: Sequence[str], scores: Sequence[str], caption: str) -> Table:
    columns = []
    for metric in metrics:
        values = [group.values[name].get(metric, NAN) for name in scores]
        best = mark_best(values, metric in LARGER_IS_BETTER)
        small = [interval(group.interval(name, metric)) for name in scores]
        columns.append([Cell(number(v), i, b) for v, i, b in zip(values, small, best, strict=True)])
    names = [Cell(group.scores[name].label) for name in scores]
    return Table(("score", *map(_arrow, metrics)), tuple(zip(names, *columns, strict=True)), caption)


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
