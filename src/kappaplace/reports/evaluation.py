"""The report of an evaluation: one self-contained page, with its figures and tables as separate files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.errors import KappaPlaceError
from kappaplace.reports import groups, html
from kappaplace.reports.figures import comparison_figure, kappa_histogram_figure
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
from kappaplace.reports.html import CAPTIONS, Artifacts, Table, slug
from kappaplace.reports.tables import (
    comparison_table,
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
    if others:
        chapters.append(("Comparison", comparison_pieces(files, [result, *others])))
    for part, group in zip(result.sets, sets, strict=True):
        chapters.append((part.name, set_chapter(files, part, group, only=pooled is None)))
    chapters.append(("Missing scores", _missing(files, result, pooled)))
    chapters.append(("Settings", _facts(result)))
    return files.page(html.page(f"Evaluation of {result.name}", _lead(main, len(sets)), _sections(chapters)))


def _sections(chapters: Sequence[tuple[str, list[str]]]) -> list[str]:
    anchors = [f"{number}-{slug(title)}" for number, (title, _) in enumerate(chapters, 1)]
    sections = [html.contents(list(zip(anchors, (title for title, _ in chapters), strict=True)))]
    for anchor, (title, pieces) in zip(anchors, chapters, strict=True):
        sections += [html.heading(title, anchor), *pieces]
    return sections


def _lead(group: Group, sets: int) -> str:
    recall = " · ".join(f"R@{k} {group.recall[f'R@{k}']:.3f}" for k in group.ks)
    queries = f"{len(group.hits):,} {'query' if len(group.hits) == 1 else 'queries'}"
    return f"{queries} in {sets} {'dataset' if sets == 1 else 'datasets'}. {recall}."


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


def comparison_pieces(files: Artifacts, results: Sequence[EvaluationResult]) -> list[str]:
    """Return tables and curves of each dataset that two runs share, and pooled if they share all."""
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
    if not curves:
        return ""
    alternative = f"Risk over coverage of {', '.join(groups)} for each score, {first.title}"
    caption = f"{first.title}. {CAPTIONS['comparison']}"
    return files.figure(f"comparison-{first.name}", comparison_figure(curves), alternative, caption)
