"""Queries to look at: sure, middling and unsure ones, and failures that the system was sure of."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import THUMBNAIL_SIZE, Thumbnail, thumbnail
from kappaplace.reports.figures import GalleryRow, gallery_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kappaplace.evaluation import ScoreColumns, SetResult

MATCHES = 3
FAILURES = 5
# Which queries stand for which confidence: percentiles of the queries, sorted from unsure to sure.
LEVELS = (("High confidence", (97, 85)), ("Middle confidence", (55, 45)), ("Low confidence", (15, 3)))
PREFERRED = "kappaplace"


@dataclass(frozen=True, eq=False)
class Card:
    """One picture of a row with the words below it."""

    name: str
    """Of the image file."""
    picture: Thumbnail | None
    captions: tuple[str, ...]
    right: bool | None = None
    """None for the query itself."""


@dataclass(frozen=True, eq=False)
class Row:
    """A query and its best matches."""

    title: str
    query: int
    cards: tuple[Card, ...]


def shown_score(part: SetResult) -> ScoreColumns | None:
    """What galleries and maps show: KappaPlace, else the first score that judges matches, else the first."""
    if PREFERRED in part.scores:
        return part.scores[PREFERRED]
    scores = list(part.scores.values())
    return next((score for score in scores if score.match is not None), scores[0] if scores else None)


def confident_queries(uncertainty: NDArray[np.float64]) -> list[tuple[str, int]]:
    """Title and row of the queries that stand for each level of confidence; none comes twice."""
    order = np.argsort(-uncertainty, kind="stable")  # unsure to sure
    chosen: dict[int, str] = {}
    for title, percentiles in LEVELS:
        for percentile in percentiles:
            chosen.setdefault(int(order[round((len(order) - 1) * percentile / 100)]), title)
    return [(title, query) for query, title in chosen.items()]


def worst_failures(uncertainty: NDArray[np.float64], success: NDArray[np.bool_]) -> list[int]:
    """Rows of the wrong queries that look surest, the surest first."""
    wrong = np.flatnonzero(~success)
    return wrong[np.argsort(uncertainty[wrong], kind="stable")][:FAILURES].tolist()


def gallery_rows(part: SetResult, score: ScoreColumns, chosen: Sequence[tuple[str, int]]) -> list[Row]:
    """Cards with pictures for these queries."""
    return [Row(title, query, _cards(part, score, query)) for title, query in chosen]


def gallery_html(rows: Sequence[Row]) -> str:
    """Framed pictures with words below them: four in a line, two on a phone."""
    pieces, last = [], ""
    for row in rows:
        if row.title != last:
            pieces.append(f"<h4>{html.escape(row.title)}</h4>")
        cards = "".join(map(_card_html, row.cards))
        pieces.append(f'<div class="row">{cards}</div>')
        last = row.title
    return "".join(pieces)


def gallery_picture(rows: Sequence[Row]) -> Figure:
    """The same as a figure for a paper."""
    grey = np.full((THUMBNAIL_SIZE[1], THUMBNAIL_SIZE[0], 3), 200, np.uint8)

    def pixels(card: Card) -> NDArray[np.uint8]:
        return grey if card.picture is None else card.picture.pixels

    return gallery_figure(
        [
            GalleryRow(
                plain(row.title),
                pixels(row.cards[0]),
                "\n".join(row.cards[0].captions),
                [pixels(card) for card in row.cards[1:]],
                [bool(card.right) for card in row.cards[1:]],
                ["\n".join(card.captions) for card in row.cards[1:]],
            )
            for row in rows
        ]
    )


def has_confidence(score: ScoreColumns) -> bool:
    """Whether 1/U of a pair exists: the score judges pairs and is never zero or below."""
    return score.match is not None and bool(score.match.min() > 0)


def has_pictures(rows: Sequence[Row]) -> bool:
    """Whether any image could be opened."""
    return any(card.picture is not None for row in rows for card in row.cards)


def _cards(part: SetResult, score: ScoreColumns, query: int) -> tuple[Card, ...]:
    surer = float((score.query > score.query[query]).mean())
    words = [f"query, surer than {surer:.0%} of all"]
    if part.query_kappa is not None:
        words.append(f"κ {_short(part.query_kappa[query])}")
    path = part.query_images[query]
    cards = [Card(PurePath(path).name, thumbnail(path), tuple(words))]
    for rank, reference in enumerate(part.matches.indices[query, :MATCHES].tolist()):
        right = bool(part.hits[query, rank])
        words = [f"{rank + 1}. {'right' if right else 'wrong'}", *_confidence(score, query, rank)]
        if part.query_positions is not None and part.reference_positions is not None:
            metres = np.linalg.norm(part.reference_positions[reference] - part.query_positions[query])
            words[0] += f", {metres:,.0f} m away"
        path = part.reference_images[reference]
        cards.append(Card(PurePath(path).name, thumbnail(path), tuple(words), right))
    return tuple(cards)


def _confidence(score: ScoreColumns, query: int, rank: int) -> list[str]:
    """1/U of the pair; scores that can reach zero or below have no inverse, so they show U itself."""
    if score.match is None:
        return []
    uncertainty = float(score.match[query, rank])
    if has_confidence(score):
        return [f"confidence {_short(1 / uncertainty)}"]
    return [f"uncertainty {_short(uncertainty)}"]


def _short(value: float) -> str:
    """Three digits, and no exponent for large numbers."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _card_html(card: Card) -> str:
    name = html.escape(card.name, quote=True)
    kind = {None: "query", True: "right", False: "wrong"}[card.right]
    what = "query" if card.right is None else f"{kind} match"
    if card.picture is None:
        picture = f'<div class="gone">{name or "image"} cannot be opened</div>'
    else:
        picture = f'<img alt="{what}: {name}" src="{card.picture.data}">'
    words = "<br>".join(map(html.escape, card.captions))
    return f'<div class="{kind}">{picture}<p>{words}</p></div>'
