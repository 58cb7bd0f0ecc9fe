"""Comparison of evaluations in a report: which run is better in words, tables and curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kappaplace.reports import html
from kappaplace.reports.artifacts import Artifacts
from kappaplace.reports.figures import comparison_figure
from kappaplace.reports.groups import MOST_CURVES, Group, group_of, pooled_group
from kappaplace.reports.html import CAPTIONS
from kappaplace.reports.tables import comparison_table, interval, number

if TYPE_CHECKING:
    from kappaplace.evaluation import EvaluationResult

Ranked = tuple[str, float, Sequence[float] | None]
"""Name, value and interval."""
USUAL = ("cosine", "l2")
"""Scores that people use today, the first of which an evaluation has is the baseline."""


def headline(group: Group) -> str:
    """Return in words how often the best match is correct, and which score detects errors best."""
    recall = (group.title, group.recall["R@1"], group.recall_interval("R@1"))
    wrong = float(1 - group.success.mean())
    text = f"The best match is correct for {_value(recall)} of {len(group.hits):,} queries (R@1)."
    ranked = [
        (column.label, group.values[name].get("AUROC", math.nan), group.interval(name, "AUROC"), name)
        for name, column in group.scores.items()
        if name not in group.flaws
    ]
    ranked = sorted((each for each in ranked if math.isfinite(each[1])), key=lambda each: -each[1])
    if not ranked:
        return (
            f"{text} No score can be compared, because {'no' if wrong == 0 else 'every'} match is incorrect."
        )
    best = ranked[0]
    text += f" {best[0]} detects incorrect matches best of {len(ranked)} scores: AUROC {_value(best[:3])}."
    usual = next((each for name in USUAL for each in ranked[1:] if each[3] == name), None)
    if usual is None:
        return text
    text += f" {usual[0]} has {_value(usual[:3])}{_apart(best[:3], usual[:3])}."
    covered = [group.values[each[3]].get("coverage@10%", math.nan) for each in (best, usual)]
    if all(map(math.isfinite, covered)):
        text += (
            f" With 10% errors, {best[0]} can answer {covered[0]:.0%} of the queries and {usual[0]} "
            f"{covered[1]:.0%}."
        )
    return text


def comparison_headline(results: Sequence[EvaluationResult]) -> str:
    """Return in words which run has the highest R@1, and which detects incorrect matches best."""
    shared = shared_groups(results)
    if not shared:
        return "These runs have no dataset in common."
    group = shared[0]
    where = next(iter(group.values())).title
    recall = [(run, each.recall["R@1"], each.recall_interval("R@1")) for run, each in group.items()]
    lines = [f"On {where}, {_winner('R@1', recall)}"]
    common = [
        name for name in next(iter(group.values())).scores if all(name in g.scores for g in group.values())
    ]
    rows = {
        name: [
            (run, g.values[name].get("AUROC", math.nan), g.interval(name, "AUROC"))
            for run, g in group.items()
        ]
        for name in common
        if not any(name in g.flaws for g in group.values())
    }
    rows = {name: values for name, values in rows.items() if all(math.isfinite(v[1]) for v in values)}
    if rows:
        name = max(rows, key=lambda score: max(value[1] for value in rows[score]))
        label = next(iter(group.values())).scores[name].label
        lines.append(f"With {label}, {_winner('AUROC', rows[name])}")
    return " ".join(lines)


def _winner(metric: str, values: Sequence[Ranked]) -> str:
    first, second, *_ = sorted(values, key=lambda each: -each[1])
    if number(first[1]) == number(second[1]):
        return f"{first[0]} and {second[0]} have the same {metric}, {_value(first)}."
    return (
        f"{first[0]} has the highest {metric}, {_value(first)}; {second[0]} has {_value(second)}"
        f"{_apart(first, second)}."
    )


def _value(each: Ranked) -> str:
    limits = interval(each[2])
    return f"{number(each[1])}{' ' + limits if limits else ''}"


def _apart(one: Ranked, other: Ranked) -> str:
    """Return whether the intervals overlap, in words; nothing if one is unknown."""
    if not interval(one[2]) or not interval(other[2]):
        return ""
    assert one[2] is not None
    assert other[2] is not None
    low, high = max(one[2][0], other[2][0]), min(one[2][1], other[2][1])
    return ", but the intervals overlap" if low <= high else ", and the intervals do not overlap"


def shared_groups(results: Sequence[EvaluationResult]) -> list[dict[str, Group]]:
    """Return the groups of each dataset that two runs share, pooled first if they share all."""
    runs = unique_names(results)
    names = list(dict.fromkeys(part.name for result in results for part in result.sets))
    shared: list[dict[str, Group]] = []
    if all([part.name for part in result.sets] == names for result in results):
        pooled = {run: pooled_group(result) for run, result in runs.items()}
        shared.append({run: group for run, group in pooled.items() if group is not None})
    for name in names:
        shared.append(
            {
                run: group_of(result, part)
                for run, result in runs.items()
                for part in result.sets
                if part.name == name
            }
        )
    return [runs for runs in shared if len(runs) > 1]


def comparison_pieces(files: Artifacts, results: Sequence[EvaluationResult]) -> list[str]:
    """Return tables and curves of each dataset that two runs share, and pooled if they share all."""
    shared = shared_groups(results)
    if not shared:
        return [html.paragraph("These runs have no dataset in common.")]
    pieces, figures = [], []
    for group in shared:
        first = next(iter(group.values()))
        pieces.append(files.table(f"comparison-{first.name}", comparison_table(group, first.title)))
        figures.append(_curves(files, group))
    note = html.paragraph(CAPTIONS["comparison_table"], small=True)
    return [*pieces, note, html.grid([figure for figure in figures if figure])]


def unique_names(results: Sequence[EvaluationResult]) -> dict[str, EvaluationResult]:
    """Return the runs by name; a repeated name gets a number."""
    runs: dict[str, EvaluationResult] = {}
    for result in results:
        name, count = result.name, 1
        while name in runs:
            count += 1
            name = f"{result.name} ({count})"
        runs[name] = result
    return runs


def _curves(files: Artifacts, groups: Mapping[str, Group]) -> str:
    first = next(iter(groups.values()))
    labels = {name: column.label for group in groups.values() for name, column in group.scores.items()}
    curves = {
        label: {run: group.risk_coverage(name) for run, group in groups.items() if name in group.scores}
        for name, label in labels.items()
    }
    curves = {label: lines for label, lines in curves.items() if len(lines) > 1}
    best = sorted(curves, key=lambda label: min(curve.aurc for curve in curves[label].values()))[:MOST_CURVES]
    curves = {label: lines for label, lines in curves.items() if label in best}
    if not curves:
        return ""
    alternative = f"Risk over coverage of {', '.join(groups)} for each score, {first.title}"
    caption = f"{first.title}. {CAPTIONS['comparison']}"
    return files.figure(f"comparison-{first.name}", comparison_figure(curves), alternative, caption)
