"""The report of an evaluation: one page that needs nothing else, with its figures and tables beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kappaplace.errors import KappaPlaceError
from kappaplace.reports import groups, how_to_read, html
from kappaplace.reports.artifacts import Artefacts, slug
from kappaplace.reports.groups import Group, group_of, pooled_group
from kappaplace.reports.score_tables import left_out_table, mean_table, retrieval_table
from kappaplace.reports.tables import Table

if TYPE_CHECKING:
    from kappaplace.evaluation import EvaluationResult
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.reports.figures import kappa_histogram_figure
from kappaplace.reports.gallery import (
    confident_queries,
    gallery_html,
    gallery_picture,
    gallery_rows,
    has_confidence,
    has_pictures,
    shown_score,
    worst_failures,
)
from kappaplace.reports.ground import map_figure, thinning
from kappaplace.reports.score_tables import match_table, probability_table, score_table

if TYPE_CHECKING:
    from kappaplace.evaluation import ScoreColumns, SetResult
from typing import TYPE_CHECKING

from kappaplace.reports.figures import comparison_figure
from kappaplace.reports.score_tables import comparison_table

if TYPE_CHECKING:
    from kappaplace.evaluation import EvaluationResult
import math

from kappaplace.reports.tables import paper_table


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
    figures = [groups.ece_bars(made, group), groups.risk_coverage(made, group)]
    if several:  # one set alone has them in its own chapter
        figures += [groups.reliability(made, group), groups.histograms(made, group)]
    figures.append(groups.ece_sensitivity(made, group))
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


def set_chapter(made: Artefacts, part: SetResult, group: Group, alone: bool) -> list[str]:
    """All of one set; ``alone``: it is the only one, so its table stands above already."""
    score = shown_score(part)
    if score is None:
        return [html.paragraph("No score could be computed on this set.")]
    pieces = [] if alone else score_pieces(made, group)
    figures = [] if alone else [groups.risk_coverage(made, group)]
    figures += [groups.reliability(made, group), groups.histograms(made, group)]
    missing = []
    for figure, reason in (
        (_kappa(made, part, group), "No κ histogram: the model gives no κ."),
        (_map(made, part, score, group), "No map: there are no poses."),
    ):
        if figure:
            figures.append(figure)
        else:
            missing.append(html.paragraph(reason, small=True))
    return [*pieces, html.grid(figures), *missing, *_galleries(made, part, score, group)]


def score_pieces(made: Artefacts, group: Group) -> list[str]:
    """The tables of a group: scores, and matches and probabilities where there are any."""
    pieces = [made.table(f"scores-{group.name}", score_table(group))]
    for name, table in (("match", match_table(group)), ("probabilities", probability_table(group))):
        if table is not None:
            pieces.append(made.table(f"{name}-{group.name}", table))
    return pieces


def _kappa(made: Artefacts, part: SetResult, group: Group) -> str:
    if part.query_kappa is None:
        return ""
    figure = kappa_histogram_figure(part.query_kappa, part.reference_kappa, group.success)
    alternative = f"Histograms of κ of queries and references, {part.name}"
    return made.figure(f"kappa-{part.name}", figure, alternative, how_to_read.KAPPA)


def _map(made: Artefacts, part: SetResult, score: ScoreColumns, group: Group) -> str:
    if part.query_positions is None or part.reference_positions is None:
        return ""
    placed = np.isfinite(part.query_positions).all(axis=1)
    ground = part.reference_positions[np.isfinite(part.reference_positions).all(axis=1)]
    if not placed.any():
        return ""
    figure = map_figure(ground, part.query_positions[placed], score.query[placed], group.success[placed])
    how = how_to_read.MAP.format(score=score.label) + thinning(len(ground), int(placed.sum()))
    alternative = f"Map of references and queries coloured by uncertainty, {part.name}"
    return made.figure(f"map-{part.name}", figure, alternative, how)


def _galleries(made: Artefacts, part: SetResult, score: ScoreColumns, group: Group) -> list[str]:
    if not len(part.query_images) or not len(part.reference_images):
        return [html.paragraph("No gallery: the image files are not known.", small=True)]
    failures = worst_failures(score.query, group.success)
    pieces = [html.heading(f"Sure, middling and unsure queries ({score.label})", level=3)]
    chosen, how = confident_queries(score.query), how_to_read.GALLERY
    if has_confidence(score):
        how += how_to_read.CONFIDENCE
    pieces += _gallery(made, part, score, f"gallery-{part.name}", chosen, how)
    pieces.append(html.heading(f"Wrong and sure of it ({score.label})", level=3))
    if not failures:
        return [*pieces, html.paragraph("No top match is wrong.", small=True)]
    titled = [(f"Failure {number}", query) for number, query in enumerate(failures, 1)]
    return [*pieces, *_gallery(made, part, score, f"failures-{part.name}", titled, how_to_read.FAILURES)]


def _gallery(
    made: Artefacts,
    part: SetResult,
    score: ScoreColumns,
    name: str,
    chosen: Sequence[tuple[str, int]],
    how: str,
) -> list[str]:
    rows = gallery_rows(part, score, chosen)
    if not has_pictures(rows):
        first = PurePath(part.query_images[chosen[0][1]]).name
        text = f"No gallery: none of its image files can be opened, {first or 'unnamed'} among them."
        return [html.paragraph(text, small=True)]
    return [html.paragraph(how, small=True), made.piece(name, gallery_picture(rows), gallery_html(rows))]


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
    shared = [runs for runs in shared if len(runs) > 1]
    if not shared:
        return [html.paragraph("These runs share no set, so there is nothing to compare.")]
    pieces, figures = [], []
    for group in shared:
        first = next(iter(group.values()))
        pieces.append(made.table(f"comparison-{first.name}", comparison_table(group, first.title)))
        figures.append(_curves(made, group))
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


def write_paper_report(rows: Sequence[Mapping[str, Any]], folder: str | Path) -> Path:
    """report.html with one table for each of the paper's, and the same tables as LaTeX beside it."""
    files = Artefacts(folder)
    measured = sum(math.isfinite(row["ours"]) for row in rows)
    sections = []
    for name in dict.fromkeys(str(row["table"]) for row in rows):
        mine = [row for row in rows if row["table"] == name]
        sections += [html.heading(name), files.table(f"paper {name}", paper_table(mine))]
    lead = f"{measured} of {len(rows)} published numbers could be measured with the data and models given."
    return files.page(html.page("The paper's numbers and ours", lead, sections))
