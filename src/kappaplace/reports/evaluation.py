"""The report of an evaluation: one self-contained page, with its figures and tables as separate files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.errors import KappaPlaceError
from kappaplace.reports import groups, html
from kappaplace.reports.artifacts import Artifacts, slug
from kappaplace.reports.comparison import comparison_headline, comparison_pieces, headline
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
from kappaplace.reports.groups import Group, group_of, pooled_group
from kappaplace.reports.html import CAPTIONS, Table
from kappaplace.reports.tables import (
    left_out_table,
    match_table,
    mean_table,
    probability_table,
    retrieval_table,
    score_table,
)

if TYPE_CHECKING:
    from kappaplace.evaluation import EvaluationResult, ScoreColumns, SetResult


def write_report(result: EvaluationResult, folder: Path, others: Sequence[EvaluationResult] = ()) -> Path:
    """Write the report of an evaluation: report.html, figures/*.png and *.svg, tables/*.tex.

    Args:
        result: The evaluation.
        folder: Output folder.
        others: Evaluations on the same datasets to compare it with.

    Returns:
        Path of ``report.html``.

    Raises:
        KappaPlaceError: If the evaluation has no dataset.
    """
    if not result.sets:
        raise KappaPlaceError(
            f"The evaluation {result.name} has no dataset. Run `kappaplace evaluate` again."
        )
    files = Artifacts(folder)
    sets = [group_of(result, part) for part in result.sets]
    pooled = pooled_group(result)
    main = pooled or sets[0]
    retrieval = retrieval_table(result, [*sets, pooled] if pooled else sets)
    chapters = [
        ("Retrieval", [files.table("retrieval", retrieval)]),
        ("Which score detects incorrect matches?", _verdict(files, main, result)),
    ]
    title, lead = f"Evaluation of {result.name}", headline(main)
    if others:
        runs = [result, *others]
        chapters.insert(0, ("Comparison", comparison_pieces(files, runs)))
        title = f"Comparison of {', '.join(dict.fromkeys(each.name for each in runs))}"
        lead = comparison_headline(runs)
    for part, group in zip(result.sets, sets, strict=True):
        chapters.append((part.name, set_chapter(files, part, group, only=pooled is None)))
    chapters.append(("Missing scores", _missing(files, result, pooled)))
    chapters.append(("Settings", _facts(result)))
    return files.page(html.page(title, lead, _sections(chapters, opened=1 if others else 2)))


def _sections(chapters: Sequence[tuple[str, list[str]]], opened: int) -> list[str]:
    """Return a table of contents and the chapters, of which the first ones are unfolded."""
    anchors = [f"{number}-{slug(title)}" for number, (title, _) in enumerate(chapters, 1)]
    sections = [html.contents(list(zip(anchors, (title for title, _ in chapters), strict=True)))]
    for number, (anchor, (title, pieces)) in enumerate(zip(anchors, chapters, strict=True)):
        sections.append(html.chapter(title, pieces, anchor, opened=number < opened))
    return sections


def _verdict(files: Artifacts, group: Group, result: EvaluationResult) -> list[str]:
    """Return the tables and figures of all queries together."""
    if not group.scores:
        return [html.paragraph("No score could be computed on every dataset.")]
    from kappaplace.evaluation import flaws_of, warnings_of  # on call: it loads torch

    pieces = [html.paragraph(f"Warning: {text}") for text in warnings_of(result)]
    pieces += score_pieces(files, group)
    several = len(result.sets) > 1
    if several and result.metrics.get("mean"):
        labels = {name: column.label for name, column in group.scores.items()}
        flaws = {name for part in result.sets for name in flaws_of(part)}
        pieces.append(files.table("scores-mean", mean_table(result.metrics["mean"], labels, flaws)))
    figures = [groups.ece_bars(files, group), groups.risk_coverage(files, group)]
    if several:  # the chapter of a single dataset has them
        figures += [groups.reliability(files, group), groups.histograms(files, group)]
    figures.append(groups.ece_sensitivity(files, group))
    return [*pieces, html.paragraph(CAPTIONS["scores"], small=True), html.grid(figures)]


def _missing(files: Artifacts, result: EvaluationResult, pooled: Group | None) -> list[str]:
    """Return the table of the missing scores and the reasons."""
    table = left_out_table(result)
    pieces = [files.table("left-out", table) if table else html.paragraph("No score is missing.")]
    if pooled is not None:
        every = {name: score.label for part in result.sets for name, score in part.scores.items()}
        missing = [label for name, label in every.items() if name not in pooled.scores]
        if missing:
            pieces.append(
                html.paragraph(f"Not pooled, because a dataset lacks it: {', '.join(missing)}.", small=True)
            )
    return pieces


def _facts(result: EvaluationResult) -> list[str]:
    """Return the settings of the evaluation. Times are omitted, so that equal runs give equal pages."""
    rows = [("run", name, _text(value)) for name, value in result.facts.items()]
    for part in result.sets:
        rows += [(part.name, name, _text(value)) for name, value in part.facts.items()]
        if part.block > 1:
            rows.append((part.name, "bootstrap", f"blocks of {part.block} consecutive frames"))
    rows = [row for row in rows if row[2]]
    if not rows:
        return [html.paragraph("The evaluation recorded no settings.")]
    return [Table.of_words(("dataset", "setting", "value"), rows).html()]


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)


def set_chapter(files: Artifacts, part: SetResult, group: Group, only: bool) -> list[str]:
    """Return the chapter of one dataset.

    Args:
        files: Output files of the report.
        part: Results of the dataset.
        group: The same results with their metrics.
        only: Whether it is the only dataset, whose table is in an earlier chapter.

    Returns:
        HTML of the chapter, part by part.
    """
    score = shown_score(part)
    if score is None:
        return [html.paragraph("No score could be computed on this dataset.")]
    pieces = [] if only else score_pieces(files, group)
    figures = [] if only else [groups.risk_coverage(files, group)]
    figures += [groups.reliability(files, group), groups.histograms(files, group)]
    missing = []
    for figure, reason in (
        (_kappa(files, part, group), "No κ histogram: the model has no κ."),
        (_map(files, part, score, group), "No map: the images have no positions."),
    ):
        if figure:
            figures.append(figure)
        else:
            missing.append(html.paragraph(reason, small=True))
    return [*pieces, html.grid(figures), *missing, *_galleries(files, part, score, group)]


def score_pieces(files: Artifacts, group: Group) -> list[str]:
    """Return the tables of a group: scores, and matches and probabilities if there are any."""
    pieces = [files.table(f"scores-{group.name}", score_table(group))]
    for name, table in (("match", match_table(group)), ("probabilities", probability_table(group))):
        if table is not None:
            pieces.append(files.table(f"{name}-{group.name}", table))
    return pieces


def _kappa(files: Artifacts, part: SetResult, group: Group) -> str:
    if part.query_kappa is None:
        return ""
    figure = kappa_histogram_figure(part.query_kappa, part.reference_kappa, group.success)
    alternative = f"Histograms of κ of queries and references, {part.name}"
    return files.figure(f"kappa-{part.name}", figure, alternative, CAPTIONS["kappa"])


def _map(files: Artifacts, part: SetResult, score: ScoreColumns, group: Group) -> str:
    if part.query_positions is None or part.reference_positions is None:
        return ""
    placed = np.isfinite(part.query_positions).all(axis=1)
    ground = part.reference_positions[np.isfinite(part.reference_positions).all(axis=1)]
    if not placed.any():
        return ""
    figure = map_figure(ground, part.query_positions[placed], score.query[placed], group.success[placed])
    caption = CAPTIONS["map"].format(score=score.label) + thinning(len(ground), int(placed.sum()))
    alternative = f"Map of references and queries colored by uncertainty, {part.name}"
    return files.figure(f"map-{part.name}", figure, alternative, caption)


def _galleries(files: Artifacts, part: SetResult, score: ScoreColumns, group: Group) -> list[str]:
    if not len(part.query_images) or not len(part.reference_images):
        return [html.paragraph("No gallery: the evaluation has no image files.", small=True)]
    failures = worst_failures(score.query, group.success)
    pieces = [html.heading(f"Queries of high, middle and low confidence ({score.label})", level=3)]
    queries, caption = confident_queries(score.query), CAPTIONS["gallery"]
    if has_confidence(score):
        caption += " " + CAPTIONS["confidence"]
    pieces += _gallery(files, part, score, f"gallery-{part.name}", queries, caption)
    pieces.append(html.heading(f"Incorrect matches of high confidence ({score.label})", level=3))
    if not failures:
        return [*pieces, html.paragraph("Every top match is correct.", small=True)]
    queries = [(f"Failure {number}", query) for number, query in enumerate(failures, 1)]
    return [*pieces, *_gallery(files, part, score, f"failures-{part.name}", queries, CAPTIONS["failures"])]


def _gallery(
    files: Artifacts,
    part: SetResult,
    score: ScoreColumns,
    name: str,
    queries: Sequence[tuple[str, int]],
    caption: str,
) -> list[str]:
    rows = gallery_rows(part, score, queries)
    if not has_pictures(rows):
        first = PurePath(part.query_images[queries[0][1]]).name
        text = f"No gallery: none of its image files can be opened, for example {first or 'unnamed'}."
        return [html.paragraph(text, small=True)]
    return [html.paragraph(caption, small=True), files.piece(name, gallery_picture(rows), gallery_html(rows))]
