"""The chapter of one set: its table, its figures, its map and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.reports import group_figures, how_to_read, html
from kappaplace.reports.artifacts import Artefacts
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
from kappaplace.reports.groups import Group
from kappaplace.reports.score_tables import match_table, probability_table, score_table

if TYPE_CHECKING:
    from kappaplace.evaluation.results import ScoreColumns, SetResult


def set_chapter(made: Artefacts, part: SetResult, group: Group, alone: bool) -> list[str]:
    """All of one set; ``alone``: it is the only one, so its table stands above already."""
    score = shown_score(part)
    if score is None:
        return [html.paragraph("No score could be computed on this set.")]
    pieces = [] if alone else score_pieces(made, group)
    figures = [] if alone else [group_figures.risk_coverage(made, group)]
    figures += [group_figures.reliability(made, group), group_figures.histograms(made, group)]
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
