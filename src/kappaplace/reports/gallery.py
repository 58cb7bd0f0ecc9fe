"""Galleries of queries: of high, middle and low confidence, and failures of high confidence."""

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
from kappaplace.reports.html import card, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kappaplace.evaluation import ScoreColumns, SetResult

MATCHES = 3
FAILURES = 5
# Percentiles of the queries, sorted by increasing confidence, that represent each level.
LEVELS = (("High confidence", (97, 85)), ("Middle confidence", (55, 45)), ("Low confidence", (15, 3)))
PREFERRED = "kappaplace"


@dataclass(frozen=True, eq=False)
class Card:
    """One image of a row with its captions."""

    name: str
    """Name of the image file."""
    picture: Thumbnail | None
    """Thumbnail of the image. None if the file cannot be opened."""
    captions: tuple[str, ...]
    right: bool | None = None
    """Whether the match is correct; None for the query itself."""


@dataclass(frozen=True, eq=False)
class Row:
    """A query and its best matches."""

    title: str
    query: int
    cards: tuple[Card, ...]


def shown_score(part: SetResult) -> ScoreColumns | None:
    """Return the score for galleries and maps: KappaPlace, otherwise the first that evaluates matches."""
    if PREFERRED in part.scores:
        return part.scores[PREFERRED]
    scores = list(part.scores.values())
    return next((score for score in scores if score.match is not None), scores[0] if scores else None)


def confident_queries(uncertainty: NDArray[np.float64]) -> list[tuple[str, int]]:
    """Return title and row of the queries that represent each level of confidence, without duplicates."""
    order = np.argsort(-uncertainty, kind="stable")
    titles: dict[int, str] = {}
    for title, percentiles in LEVELS:
        for percentile in percentiles:
            titles.setdefault(int(order[round((len(order) - 1) * percentile / 100)]), title)
    return [(title, query) for query, title in titles.items()]


def worst_failures(uncertainty: NDArray[np.float64], success: NDArray[np.bool_]) -> list[int]:
    """Return the rows of the most confident queries with incorrect matches, most confident first."""
    failures = np.flatnonzero(~success)
    return failures[np.argsort(uncertainty[failures], kind="stable")][:FAILURES].tolist()


def gallery_rows(part: SetResult, score: ScoreColumns, queries: Sequence[tuple[str, int]]) -> list[Row]:
    """Return the images and captions of queries.

    Args:
        part: Results of the dataset.
        score: Score that gives the confidence.
        queries: Title and row of each query.

    Returns:
        One row of images per query.
    """
    return [Row(title, query, _cards(part, score, query)) for title, query in queries]


def gallery_html(rows: Sequence[Row]) -> str:
    """Return framed images with captions, four per line, or two on a phone."""
    pieces, last = [], ""
    for row in rows:
        if row.title != last:
            pieces.append(f"<h4>{html.escape(row.title)}</h4>")
        cards = "".join(map(_card_html, row.cards))
        pieces.append(f'<div class="row">{cards}</div>')
        last = row.title
    return "".join(pieces)


def gallery_picture(rows: Sequence[Row]) -> Figure:
    """Return the same gallery as a figure for a paper."""
    gray = np.full((THUMBNAIL_SIZE[1], THUMBNAIL_SIZE[0], 3), 200, np.uint8)

    def pixels(card: Card) -> NDArray[np.uint8]:
        return gray if card.picture is None else card.picture.pixels

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
    """Return whether 1/U of a pair is defined: the score evaluates pairs and is always positive."""
    return score.match is not None and bool(score.match.min() > 0)


def has_pictures(rows: Sequence[Row]) -> bool:
    """Return whether any image can be opened."""
    return any(card.picture is not None for row in rows for card in row.cards)


def _cards(part: SetResult, score: ScoreColumns, query: int) -> tuple[Card, ...]:
    rank = float((score.query > score.query[query]).mean())
    words = [f"query, more confident than {rank:.0%}"]
    if part.query_kappa is not None:
        words.append(f"κ {short(part.query_kappa[query])}")
    path = part.query_images[query]
    cards = [Card(PurePath(path).name, thumbnail(path), tuple(words))]
    for rank, reference in enumerate(part.matches.indices[query, :MATCHES].tolist()):
        right = bool(part.hits[query, rank])
        words = [f"{rank + 1}. {'correct' if right else 'incorrect'}", *_confidence(score, query, rank)]
        if part.query_positions is not None and part.reference_positions is not None:
            distance = np.linalg.norm(part.reference_positions[reference] - part.query_positions[query])
            words[0] += f", {distance:,.0f} m away"
        path = part.reference_images[reference]
        cards.append(Card(PurePath(path).name, thumbnail(path), tuple(words), right))
    return tuple(cards)


def _confidence(score: ScoreColumns, query: int, rank: int) -> list[str]:
    """Return 1/U of the pair, or U itself if the score can be zero or negative."""
    if score.match is None:
        return []
    uncertainty = float(score.match[query, rank])
    if has_confidence(score):
        return [f"confidence {short(1 / uncertainty)}"]
    return [f"uncertainty {short(uncertainty)}"]


def _card_html(each: Card) -> str:
    kind, text = {
        None: ("query", "query"),
        True: ("right", "correct match"),
        False: ("wrong", "incorrect match"),
    }[each.right]
    data = "" if each.picture is None else each.picture.data
    return card(kind, each.name, data, each.captions, f"{text}: {each.name}")
