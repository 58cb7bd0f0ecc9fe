"""The queries that a report evaluates together, one dataset or all datasets pooled, with their metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics import (
    BOTH_TAILS,
    ECE_NOTE,
    UPPER_TAIL,
    AcceptanceCurve,
    EceSurface,
    ReliabilityCurve,
    acceptance_curve,
    ece_surface,
    match_calibration_error,
    pool,
    probability_summary,
    recall_at,
    reference_metrics,
    reliability_curve,
    score_flaw,
    score_summary,
    success_at,
)
from kappaplace.reports.artifacts import Artifacts
from kappaplace.reports.figures import (
    ece_bars_figure,
    ece_sensitivity_figure,
    reliability_figure,
    risk_coverage_figure,
    score_histogram_figure,
)
from kappaplace.reports.html import CAPTIONS

if TYPE_CHECKING:
    from kappaplace.evaluation import EvaluationResult, SetResult

Metrics: TypeAlias = Mapping[str, Any]
"""Metrics as an evaluation stores them: nested by score and metric."""
KS = (1, 5, 10)
POOLED = "pooled"
MOST_CURVES = 10
"""Maximum number of scores in a figure. Tables list all of them."""
NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Column:
    """One score on the queries of a group."""

    label: str
    query: NDArray[np.float64]
    match: NDArray[np.float64] | None
    probability: NDArray[np.float64] | None
    one_sided: bool


@dataclass(frozen=True, eq=False)
class Group:
    """Queries that are evaluated together."""

    name: str
    title: str
    hits: NDArray[np.bool_]
    scores: Mapping[str, Column]
    stored: Metrics
    """Metrics that the evaluation has measured; the others are computed here."""

    @property
    def ks(self) -> list[int]:
        """Values of K in R@K and ECE@K, up to the number of matches."""
        return [k for k in KS if k <= self.hits.shape[1]]

    @cached_property
    def success(self) -> NDArray[np.bool_]:
        """Whether the top match of each query is correct."""
        return success_at(self.hits, 1)

    @cached_property
    def recall(self) -> dict[str, float]:
        """R@K and the other retrieval metrics of the evaluation."""
        return {
            **{f"R@{k}": recall_at(self.hits, k) for k in self.ks},
            **_numbers(self.stored.get("recall") or {}),
        }

    @cached_property
    def values(self) -> dict[str, dict[str, float]]:
        """All metrics of each score; those stored by the evaluation take precedence."""
        return {name: self._values(name) for name in self.scores}

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Metrics of a constant score and of a perfect ranking, the limits for every score."""
        return reference_metrics(self.hits)

    @cached_property
    def flaws(self) -> dict[str, str]:
        """Reasons why scores cannot rank queries, by score; scores without a flaw are omitted."""
        flaws = {name: score_flaw(column.query) for name, column in self.scores.items()}
        return {name: flaw for name, flaw in flaws.items() if flaw}

    @cached_property
    def shown(self) -> dict[str, Column]:
        """The scores that figures draw: at most `MOST_CURVES`, those with the lowest AURC."""
        ranked = sorted(self.scores, key=lambda name: (name in self.flaws, self.risk_coverage(name).aurc))
        return {name: column for name, column in self.scores.items() if name in ranked[:MOST_CURVES]}

    @property
    def shown_note(self) -> str:
        """Which scores figures draw; empty if they draw all of them."""
        count = len(self.scores)
        if count <= MOST_CURVES:
            return ""
        return f" Drawn: the {MOST_CURVES} of {count} scores with the lowest AURC."

    def interval(self, score: str, metric: str) -> Sequence[float] | None:
        """Return the bootstrap interval of a metric, if the evaluation has one."""
        intervals = self.stored.get("intervals") or {}
        return ((intervals.get("scores") or intervals).get(score) or {}).get(metric)

    def recall_interval(self, metric: str) -> Sequence[float] | None:
        """Return the bootstrap interval of R@K, if the evaluation has one."""
        return ((self.stored.get("intervals") or {}).get("recall") or {}).get(metric)

    def reliability(self, score: str, k: int = 1) -> ReliabilityCurve:
        """Return the reliability curve of a score in the paper's protocol."""
        column = self.scores[score]
        return reliability_curve(column.query, success_at(self.hits, k), _clamp(column))

    def risk_coverage(self, score: str) -> AcceptanceCurve:
        """Return the risk–coverage curve: the fraction of errors at each fraction of answered queries."""
        return acceptance_curve(self.scores[score].query, self.success)

    def surface(self, score: str) -> EceSurface:
        """Return ECE@1 for all choices that its definition leaves open."""
        column = self.scores[score]
        return ece_surface(column.query, self.success, column.one_sided)

    def _values(self, name: str) -> dict[str, float]:
        stored = _numbers((self.stored.get("scores") or {}).get(name) or {})
        column = self.scores[name]
        values = dict(stored)
        for k in self.ks:
            if f"ECE@{k}" not in stored:
                values[f"ECE@{k}"] = self.reliability(name, k).error
            if column.match is not None and f"match ECE@{k}" not in stored:
                values[f"match ECE@{k}"] = match_calibration_error(column.match, self.hits, k, _clamp(column))
        if "AUROC" not in stored or "coverage@10%" not in stored:
            values = {**score_summary(column.query, self.success), **values}
        if column.probability is not None and "smooth ECE" not in stored:
            values = {**probability_summary(column.probability, self.success), **values}
        return values


def group_of(result: EvaluationResult, part: SetResult) -> Group:
    """Return the queries of one dataset."""
    labels = Counter(score.label for score in part.scores.values())
    columns = {}
    for name, score in part.scores.items():
        # Two scores with the same label must be distinguished.
        label = score.label if labels[score.label] == 1 else f"{score.label} ({name})"
        columns[name] = Column(label, score.query, score.match, score.probability, score.one_sided)
    return Group(part.name, part.name, part.hits, columns, result.metrics.get(part.name) or {})


def pooled_group(result: EvaluationResult) -> Group | None:
    """Return the queries of all datasets, or of those that the evaluation pools, with their common scores.

    None if there is only one dataset.
    """
    if len(result.sets) < 2:
        return None
    names = result.facts.get("pool") or [part.name for part in result.sets]
    parts = [group_of(result, part) for part in result.sets if part.name in names]
    k = min(part.hits.shape[1] for part in parts)
    columns = {}
    for name in parts[0].scores:
        if all(name in part.scores for part in parts):
            columns[name] = _joined([part.scores[name] for part in parts], k)
    hits = pool([(part.hits[:, :k],) for part in parts]).arrays[0]
    title = "all datasets pooled" if len(parts) == len(result.sets) else f"pooled: {', '.join(names)}"
    return Group(POOLED, title, hits, columns, result.metrics.get(POOLED) or {})


def _joined(columns: list[Column], k: int) -> Column:
    first = columns[0]
    match = [(c.match[:, :k],) for c in columns if c.match is not None]
    probability = [(c.probability,) for c in columns if c.probability is not None]
    return Column(
        first.label,
        pool([(c.query,) for c in columns]).arrays[0],
        pool(match).arrays[0] if len(match) == len(columns) else None,
        pool(probability).arrays[0] if len(probability) == len(columns) else None,
        first.one_sided,
    )


def _clamp(column: Column) -> tuple[float | None, float | None]:
    return UPPER_TAIL if column.one_sided else BOTH_TAILS


def _numbers(values: Metrics) -> dict[str, float]:
    """Return the numbers as floats; JSON's null becomes NaN."""
    return {
        name: NAN if value is None else float(value)
        for name, value in values.items()
        if value is None or isinstance(value, int | float | np.number)
    }


def risk_coverage(files: Artifacts, group: Group) -> str:
    """Write the risk–coverage curves of the best scores."""
    curves = {column.label: group.risk_coverage(name) for name, column in group.shown.items()}
    alternative = f"Risk over coverage of {', '.join(curves)}, {group.title}"
    figure = risk_coverage_figure(curves)
    return files.figure(
        f"risk-coverage-{group.name}", figure, alternative, CAPTIONS["risk"] + group.shown_note
    )


def reliability(files: Artifacts, group: Group) -> str:
    """Write the reliability curves at every K, one plot per score."""
    curves = {
        column.label: {k: group.reliability(name, k) for k in group.ks}
        for name, column in group.shown.items()
    }
    figure = reliability_figure(curves, columns=min(2, len(curves)))
    alternative = f"Reliability curves of {', '.join(curves)}, {group.title}"
    return files.figure(
        f"reliability-{group.name}", figure, alternative, CAPTIONS["reliability"] + group.shown_note
    )


def histograms(files: Artifacts, group: Group) -> str:
    """Write the histograms of each score for correct and incorrect top matches."""
    scores = {column.label: column.query for column in group.shown.values()}
    figure = score_histogram_figure(scores, group.success)
    alternative = f"Histograms of {', '.join(scores)} for correct and incorrect matches, {group.title}"
    return files.figure(
        f"histograms-{group.name}", figure, alternative, CAPTIONS["histograms"] + group.shown_note
    )


def ece_bars(files: Artifacts, group: Group) -> str:
    """Write the bars of ECE@K of every score."""
    errors = {
        column.label: {k: group.values[name][f"ECE@{k}"] for k in group.ks}
        for name, column in group.shown.items()
    }
    alternative = f"Bars of ECE at several K for {', '.join(errors)}, {group.title}"
    return files.figure(
        "ece-bars",
        ece_bars_figure(errors, group.ks),
        alternative,
        f"{CAPTIONS['bars']} {ECE_NOTE}{group.shown_note}",
    )


def ece_sensitivity(files: Artifacts, group: Group) -> str:
    """Write ECE@1 for other numbers of bins, clamps and zoom."""
    surfaces = {column.label: group.surface(name) for name, column in group.shown.items()}
    alternative = f"ECE@1 over the number of bins, with and without zoom, for {', '.join(surfaces)}"
    figure = ece_sensitivity_figure(surfaces)
    return files.figure("ece-sensitivity", figure, alternative, CAPTIONS["sensitivity"] + group.shown_note)
