"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kappaplace.reports import how_to_read, html
from kappaplace.reports.artifacts import Artefacts
from kappaplace.reports.figures import comparison_figure
from kappaplace.reports.groups import Group, group_of, pooled_group
from kappaplace.reports.score_tables import comparison_table

if TYPE_CHECKING:
    from kappaplace.evaluation.results import EvaluationResult


def comparison_pieces(made: Artefacts, results: Sequence[EvaluationResult]) -> list[str]:
    """Tables for every set that two runs share, pooled where all sets are the same; then the curves."""
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
    shared = [groups for groups in shared if len(groups) > 1]
    if not shared:
        return [html.paragraph("These runs share no set, so there is nothing to compare.")]
    pieces, figures = [], []
    for groups in shared:
        first = next(iter(groups.values()))
        pieces.append(made.table(f"comparison-{first.name}", comparison_table(groups, first.title)))
        figures.append(_curves(made, groups))
    note = html.paragraph(how_to_read.COMPARISON_TABLE, small=True)
    return [*pieces, note, html.grid([figure for figure in figures if figure])]


def unique_names(results: Sequence[EvaluationResult]) -> dict[str, EvaluationResult]:
    """Runs by name; a name that comes again gets a number."""
    runs: dict[str, EvaluationResult] = {}
    for result in results:
        name, count = result.name, 1
        while name in runs:
            count += 1
            name = f"{result.name} ({count})"
        runs[name] = result
    return runs


def _curves(made: Artefacts, groups: Mapping[str, Group]) -> str:
    first = next(iter(groups.values()))
    labels = {name: column.label for group in groups.values() for name, column in group.scores.items()}
    curves = {
        label: {run: group.risk_coverage(name) for run, group in groups.items() if name in group.scores}
        for name, label in labels.items()
    }
    curves = {label: lines for label, lines in curves.items() if len(lines) > 1}
    if not curves:
        return ""
    alternative = f"Risk over coverage of {', '.join(groups)} for each score, {first.title}"
    how = f"{first.title}. {how_to_read.COMPARISON}"
    return made.figure(f"comparison-{first.name}", comparison_figure(curves), alternative, how)
