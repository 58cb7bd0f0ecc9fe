"""The tables of an evaluation: retrieval, scores, probabilities, what was left out, runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kappaplace.reports.groups import Group
from kappaplace.reports.tables import MISSING, Cell, Table, interval, mark_best, number

if TYPE_CHECKING:
    from kappaplace.evaluation import EvaluationResult
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics import UPPER_TAIL, acceptance_curve, auroc, reliability_curve
from kappaplace.reports.figures import COLOURS, PLOT_STYLE, WIDTH, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


RANKING = ("AUROC", "AUC-PR", "AURC", "AUGRC", "coverage@10%")
PROBABILITY = ("smooth ECE", "equal-mass ECE", "debiased ECE", "Brier", "log-loss")
LARGER_IS_BETTER = frozenset({"AUROC", "AUC-PR", "coverage@10%", "R@1"})
POLICIES = {
    "fail": "counted as failures",
    "skip": "left out of all numbers",
    "error": "not allowed: they stop the evaluation",
}


def retrieval_table(result: EvaluationResult, groups: Sequence[Group]) -> Table:
    """R@K of each set and pooled, with what stands behind it."""
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
    header = ("set", "queries", "references", "without positives", *(f"{name}\u00a0↑" for name in metrics))
    return Table(header, tuple(rows), f"Retrieval. Queries without any positive are {_policies(result)}.")


def score_table(group: Group) -> Table:
    """Every score with calibration and ranking; the last line is what a score without knowledge gets."""
    metrics = [*(f"ECE@{k}" for k in group.ks), *RANKING]
    blind = tuple(Cell(number(group.without_knowledge.get(name))) for name in metrics)
    table = _judged(group, metrics, list(group.scores), f"Scores, {group.title}.")
    return Table(table.header, (*table.rows, (Cell("without knowledge"), *blind)), table.caption)


def match_table(group: Group) -> Table | None:
    """Match level: each of the K·N pairs is judged on its own; None where no score judges pairs."""
    scores = [name for name, column in group.scores.items() if column.match is not None]
    metrics = [f"match ECE@{k}" for k in group.ks]
    return _judged(group, metrics, scores, f"Match level, {group.title}.") if scores else None


def probability_table(group: Group) -> Table | None:
    """Scores that give a probability; None where there is none."""
    scores = [name for name, column in group.scores.items() if column.probability is not None]
    return _judged(group, PROBABILITY, scores, f"Probabilities, {group.title}.") if scores else None


def mean_table(mean: Mapping[str, Any], labels: Mapping[str, str]) -> Table:
    """The mean over sets, each counting the same, as the evaluation measured it."""
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
    return Table(("score", *map(_arrow, metrics)), rows, "Scores, mean over sets: each set counts the same.")


def left_out_table(result: EvaluationResult) -> Table | None:
    """Scores that could not be had, and why."""
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
    return Table.of_words(("score", "set", "why it is missing"), rows, "Scores left out.")


def comparison_table(runs: Mapping[str, Group], title: str) -> Table:
    """Runs side by side, score by score; the best run of each score is marked."""
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
    return Table(("score", "run", *map(_arrow, ["R@1", *metrics])), tuple(rows), f"Side by side, {title}.")


def _judged(group: Group, metrics: Sequence[str], scores: Sequence[str], caption: str) -> Table:
    columns = []
    for metric in metrics:
        values = [group.values[name].get(metric, float("nan")) for name in scores]
        best = mark_best(values, metric in LARGER_IS_BETTER)
        small = [interval(group.interval(name, metric)) for name in scores]
        columns.append([Cell(number(v), i, b) for v, i, b in zip(values, small, best, strict=True)])
    names = [Cell(group.scores[name].label) for name in scores]
    return Table(("score", *map(_arrow, metrics)), tuple(zip(names, *columns, strict=True)), caption)


def _arrow(metric: str) -> str:
    return f"{metric}\u00a0{'↑' if metric in LARGER_IS_BETTER else '↓'}"  # the two stay together


def _of(group: Group, score: str, metric: str) -> float:
    return group.recall["R@1"] if metric == "R@1" else group.values[score].get(metric, float("nan"))


def _limits(group: Group, score: str, metric: str) -> Sequence[float] | None:
    return group.recall_interval("R@1") if metric == "R@1" else group.interval(score, metric)


def _policies(result: EvaluationResult) -> str:
    used = dict.fromkeys(part.policy for part in result.sets)
    if len(used) == 1:
        return POLICIES.get(next(iter(used)), next(iter(used)))
    return "; ".join(f"in {part.name} {POLICIES.get(part.policy, part.policy)}" for part in result.sets)


def _float(value: float | None) -> float:
    return float("nan") if value is None else float(value)


QUERIES = 4000
HALF = 0.0025
"""The re-scaling: u → u/(u + 0.0025). It rises with u, so no two queries change places."""


def rescaling_example() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """A score, the same score re-scaled, and which queries are right (seven of eight)."""
    # Most queries are sure and a few are not; the chance to be right is 1 − u, so u is honest.
    quantile = (np.arange(QUERIES) + 0.5) / QUERIES
    uncertainty = (-np.log1p(-quantile)) ** 1.5
    uncertainty /= np.quantile(uncertainty, 0.99)
    # Multiples of the golden ratio fill [0, 1) evenly: the shares come out without the noise of a dice.
    success = np.arange(1, QUERIES + 1) * ((5**0.5 - 1) / 2) % 1 >= uncertainty
    return uncertainty, uncertainty / (uncertainty + HALF), success


def rescaling_figure() -> Figure:
    """Left a score, right the same score re-scaled: histogram, reliability, risk–coverage."""
    import matplotlib

    before, after, success = rescaling_example()
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(WIDTH, 6.2)
        grid = figure.subplots(3, 2, sharey="row")
        for column, values, title, colour in (
            (0, before, "a score u", COLOURS[0]),
            (1, after, "the same as u/(u + 0.0025)", COLOURS[1]),
        ):
            _column(grid[:, column], values, success, title, colour)
        for axis, label in zip(grid[:, 0], ("share of queries", "R@1", "risk"), strict=True):
            axis.set_ylabel(label)
        return figure


def _column(
    axes: Any, values: NDArray[np.float64], success: NDArray[np.bool_], title: str, colour: str
) -> None:
    counts, edges = np.histogram(values, 20, (0, 1))
    axes[0].stairs(counts / len(values), edges, fill=True, color=colour)
    axes[0].set_title(title)
    axes[0].set_xlabel("uncertainty", fontsize=8)
    curve = reliability_curve(values, success, UPPER_TAIL)
    bins, filled = np.arange(1, len(curve.counts) + 1), curve.counts > 0
    axes[1].bar(bins, curve.counts / curve.counts.sum(), color="#bbbbbb", width=0.9)
    axes[1].plot(bins, curve.expected, "--", color="#666666")
    axes[1].plot(bins[filled], curve.observed[filled], "o-", color=colour, ms=4)
    axes[1].set_title(f"ECE@1 {curve.error:.2f}")
    axes[1].set_xlabel("bin, certain → uncertain", fontsize=8)
    axes[1].set_xticks(bins[::3])
    accepted = acceptance_curve(values, success)
    axes[2].plot(accepted.coverage, accepted.risk, color=colour)
    axes[2].set_title(f"AUROC {auroc(values, success):.2f}, AURC {accepted.aurc:.3f}")
    axes[2].set_xlabel("coverage", fontsize=8)
    for axis in axes:
        axis.title.set_fontsize(9)
