"""The report of an evaluation: one page that needs nothing else, with its figures and tables beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kappaplace.errors import KappaPlaceError
from kappaplace.reports import group_figures, how_to_read, html
from kappaplace.reports.artifacts import Artefacts, slug
from kappaplace.reports.comparison import comparison_pieces
from kappaplace.reports.groups import Group, group_of, pooled_group
from kappaplace.reports.score_tables import left_out_table, mean_table, retrieval_table
from kappaplace.reports.set_chapter import score_pieces, set_chapter
from kappaplace.reports.tables import Table

if TYPE_CHECKING:
    from kappaplace.evaluation.results import EvaluationResult


def write_report(result: EvaluationResult, folder: Path, others: Sequence[EvaluationResult] = ()) -> Path:
    """Write report.html, figures/*.png and *.svg, tables/*.tex; returns the page.

    ``others`` are runs on the same sets to be shown side by side with this one.
    """
    if not result.sets:
        raise KappaPlaceError(f"The evaluation {result.name} holds no set, so there is nothing to report.")
    made = Artefacts(folder)
    sets = [group_of(result, part) for part in result.sets]
    pooled = pooled_group(result)
    main = pooled or sets[0]
    retrieval = retrieval_table(result, [*sets, pooled] if pooled else sets)
    chapters = [
        ("Retrieval", [made.table("retrieval", retrieval)]),
        ("Which score knows when it is wrong?", _verdict(made, main, result)),
    ]
    if others:
        chapters.append(("Side by side", comparison_pieces(made, [result, *others])))
    for part, group in zip(result.sets, sets, strict=True):
        chapters.append((part.name, set_chapter(made, part, group, alone=pooled is None)))
    chapters.append(("Missing scores", _missing(made, result, pooled)))
    chapters.append(("How this was made", _facts(result)))
    return made.page(html.page(f"Evaluation of {result.name}", _lead(main, len(sets)), _sections(chapters)))


def _sections(chapters: Sequence[tuple[str, list[str]]]) -> list[str]:
    anchors = [f"{number}-{slug(title)}" for number, (title, _) in enumerate(chapters, 1)]
    sections = [html.contents(list(zip(anchors, (title for title, _ in chapters), strict=True)))]
    for anchor, (title, pieces) in zip(anchors, chapters, strict=True):
        sections += [html.heading(title, anchor), *pieces]
    return sections


def _lead(group: Group, sets: int) -> str:
    recall = " · ".join(f"R@{k} {group.recall[f'R@{k}']:.3f}" for k in group.ks)
    queries = f"{len(group.hits):,} {'query' if len(group.hits) == 1 else 'queries'}"
    return f"{queries} in {sets} {'set' if sets == 1 else 'sets'}. {recall}."


def _verdict(made: Artefacts, group: Group, result: EvaluationResult) -> list[str]:
    """All queries together: the tables, and the figures that need no single set."""
    if not group.scores:
        return [html.paragraph("No score could be computed on every set.")]
    pieces = score_pieces(made, group)
    several = len(result.sets) > 1
    if several and result.metrics.get("mean"):
        labels = {name: column.label for name, column in group.scores.items()}
        pieces.append(made.table("scores-mean", mean_table(result.metrics["mean"], labels)))
    figures = [group_figures.ece_bars(made, group), group_figures.risk_coverage(made, group)]
    if several:  # one set alone has them in its own chapter
        figures += [group_figures.reliability(made, group), group_figures.histograms(made, group)]
    figures.append(group_figures.ece_sensitivity(made, group))
    return [*pieces, html.paragraph(how_to_read.SCORES, small=True), html.grid(figures)]


def _missing(made: Artefacts, result: EvaluationResult, pooled: Group | None) -> list[str]:
    """Scores left out, with the reasons."""
    table = left_out_table(result)
    pieces = [made.table("left-out", table) if table else html.paragraph("No score was left out.")]
    if pooled is not None:
        every = {name: score.label for part in result.sets for name, score in part.scores.items()}
        missing = [label for name, label in every.items() if name not in pooled.scores]
        if missing:
            pieces.append(
                html.paragraph(f"Not pooled, because some set lacks it: {', '.join(missing)}.", small=True)
            )
    return pieces


def _facts(result: EvaluationResult) -> list[str]:
    """What the evaluation recorded of itself; times are not told, so that equal runs give equal pages."""
    rows = [("run", name, _text(value)) for name, value in result.facts.items()]
    for part in result.sets:
        rows += [(part.name, name, _text(value)) for name, value in part.facts.items()]
        if part.block > 1:
            rows.append((part.name, "bootstrap", f"blocks of {part.block} consecutive frames"))
    rows = [row for row in rows if row[2]]
    if not rows:
        return [html.paragraph("The evaluation recorded nothing about itself.")]
    return [Table.of_words(("of", "what", "value"), rows).html()]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)
