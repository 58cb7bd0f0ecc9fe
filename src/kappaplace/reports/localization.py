"""HTML pages of queries with their matches: answers of a map, positions of photos, and labelling.

The labelling page loads nothing from other hosts, and its content security policy forbids it. Images are
embedded, and scripts and styles must match their hashes. The browser stores every answer.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.data import thumbnail
from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.maps import (
    Geotags,
    Localization,
    MapStore,
    Match,
    PhotoTag,
    PlaceMap,
    Sheet,
    head_lines,
    match_picture,
    query_picture,
)
from kappaplace.progress import track
from kappaplace.reports.figures import COLORS, RIGHT, WIDTH, new_figure, styled
from kappaplace.reports.html import card, heading, page, paragraph, picture, png_of, table, template
from kappaplace.reports.pairs import evidence_jpeg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kappaplace.maps import PlaceMap

CARDS = 3
MOST_ANSWERS = 200
"""Maximum number of answers on a page; browsers are slow with more images."""
MOST_REFERENCES = 20_000
TAG_FRAMES = {"accepted": "right", "between": "right", "implausible": "wrong"}
"""Frame of a photo by its status; gray for photos without a new position."""
TRUST = (
    "Green: the position is written with --apply. Red: the answer was accepted, but it contradicts photos "
    "taken shortly before or after. Gray: the answer is not certain enough, and nothing is written."
)
FRAMES = {"accept": "right", "reject": "wrong"}
"""Frame of each decision; a doubtful match, or one without a decision, has a gray frame."""


def write_answers(place_map: PlaceMap, answers: Sequence[Localization], file: str | Path) -> None:
    """Write answers as one HTML page, which shows the first `MOST_ANSWERS` of them.

    Args:
        place_map: Map that was queried.
        answers: Answers of `PlaceMap.localize`.
        file: HTML file to write.
    """
    store, shown = place_map.store, answers[:MOST_ANSWERS]
    sections = [paragraph(note, small=True) for note in dict.fromkeys(n for a in answers for n in a.notes)]
    if len(shown) < len(answers):
        sections.append(
            paragraph(f"The first {len(shown):,} of {len(answers):,} answers are shown.", small=True)
        )
    sections += [_overview(store, shown)] if len(shown) > 1 else []
    for answer in shown:
        sections += _answer(place_map, answer, only=len(shown) == 1)
    queries = "1 query" if len(answers) == 1 else f"{len(answers):,} queries"
    lead = f"{queries} in a map of {len(store):,} references"
    text = page(f"Where was this? {store.manifest.name}".strip(), lead, sections)
    write_file(Path(file), text.encode("utf-8", "backslashreplace"))


def write_geotags(place_map: PlaceMap, geotags: Geotags, file: str | Path) -> None:
    """Write the positions of photos as one HTML page, with the matches and the status of each photo.

    The page shows the first `MOST_ANSWERS` photos without GPS.

    Args:
        place_map: Map that was queried.
        geotags: Result of `kappaplace.geotag`.
        file: HTML file to write.
    """
    store = place_map.store
    statuses = dict.fromkeys(tag.status for tag in geotags.tags)
    sections = [paragraph(TRUST)]
    sections.append(table(["status", "photos"], [[name, f"{geotags.count(name):,}"] for name in statuses]))
    sections += [paragraph(note, small=True) for note in geotags.notes]
    queries = [tag for tag in geotags.tags if tag.answer is not None]
    if len(queries) > MOST_ANSWERS:
        text = f"The first {MOST_ANSWERS:,} of {len(queries):,} photos are shown."
        sections.append(paragraph(text, small=True))
    for tag in queries[:MOST_ANSWERS]:
        sections += _photo(store, geotags, tag)
    text = page(f"Positions for {geotags.root.name}", geotags.sentence, sections)
    write_file(Path(file), text.encode("utf-8", "backslashreplace"))


def _photo(store: MapStore, geotags: Geotags, tag: PhotoTag) -> list[str]:
    """Return one photo next to its matches."""
    assert tag.answer is not None
    degrees = geotags.degrees(tag)
    where = "" if degrees is None else f" Position {degrees[0]:.6f}, {degrees[1]:.6f} ± {tag.accuracy:.0f} m."
    frame = TAG_FRAMES.get(tag.status, "query")
    cards = [card(frame, tag.photo.name, picture_data(str(tag.photo), None), ["photo"])]
    for rank, match in enumerate(tag.answer.matches, 1):
        captions = [f"{rank}. similarity {match.similarity:.3f}"]
        captions += [f"probability {match.probability:.2f}"] if match.probability is not None else []
        captions += [match.decision] if match.decision is not None else []
        image = picture_data(match.image, store.thumbnail(match.reference))
        cards.append(
            card(FRAMES.get(match.decision or "", "query"), PurePath(match.name).name, image, captions)
        )
    return [
        heading(tag.photo.name),
        paragraph(f"{tag.status.capitalize()}: {tag.reason}.{where}"),
        f'<div class="row">{"".join(cards)}</div>',
    ]


def _overview(store: MapStore, answers: Sequence[Localization]) -> str:
    figure = map_figure(store, answers, matches=False)
    caption = "Gray: the map. Colored: estimated positions. Green is accepted, a cross is rejected."
    return "" if figure is None else picture(png_of(figure), "Map with all answers", caption)


def _answer(place_map: PlaceMap, answer: Localization, only: bool) -> list[str]:
    store, name = place_map.store, PurePath(answer.query).name
    pieces = [heading(name), paragraph(answer.sentence)]
    words = [f"κ {answer.kappa:,.3g}"] if np.isfinite(answer.kappa) else []
    cards = [card("query", name, picture_data(answer.query, None), ["query", *words])]
    for match in answer.matches[:CARDS]:
        frame = FRAMES.get(match.decision or "", "query")
        captions = [f"{match.rank}. similarity {match.similarity:.3f}"]
        captions += [f"probability {match.probability:.2f}"] if match.probability is not None else []
        captions += [f"({match.x:,.1f}, {match.y:,.1f})"] if np.isfinite(match.x) else ["no position"]
        image = picture_data(match.image, store.thumbnail(match.reference))
        cards.append(card(frame, PurePath(match.name).name, image, captions))
    pieces.append(f'<div class="row">{"".join(cards)}</div>')
    pieces += _evidence(place_map, answer)
    if only and (figure := map_figure(store, [answer])) is not None:
        caption = "Gray: the map. Blue: the matches; higher ranks are larger. Star: the estimated position."
        pieces.append(picture(png_of(figure), "Map with the matches", caption))
    pieces.append(_table(answer))
    return pieces


def _evidence(place_map: PlaceMap, answer: Localization) -> list[str]:
    """Return the picture of the patches that agree with the best match, if they are known."""
    if not answer.matches:
        return []
    best, store = answer.matches[0], place_map.store
    try:
        evidence = place_map.match_evidence(answer.query, best.reference)
        image = store.thumbnail(best.reference) or best.image
        data = evidence_jpeg(answer.query, image, evidence)
    except KappaPlaceError:  # an image has moved, or the model has no patches
        return []
    caption = (
        f"Lines: patches that agree between the query (left) and the best match (right), "
        f"{len(evidence.weights):,} in all. Many parallel lines speak for the same place."
    )
    return [picture(data, "Patches that agree with the best match", caption, "jpeg")]


def _table(answer: Localization) -> str:
    header = ["match", "similarity", "κ", "uncertainty", "probability", "decision", "x", "y"]
    rows = [
        [m.name, f"{m.similarity:.4f}", _number(m.kappa), f"{m.uncertainty:.4g}", *_shown(m)]
        for m in answer.matches
    ]
    return table(header, rows)


def _shown(m: Match) -> list[str]:
    probability = "–" if m.probability is None else f"{m.probability:.3f}"
    return [probability, m.decision or "–", _number(m.x, 1), _number(m.y, 1)]


def _number(value: float, digits: int | None = None) -> str:
    if not np.isfinite(value):
        return "–"
    return f"{value:,.3g}" if digits is None else f"{value:,.{digits}f}"


def picture_data(path: str, small: bytes | None) -> str:
    """Return an image as a data URL.

    Args:
        path: Image file, used if the map has no thumbnail.
        small: Thumbnail of the map, as JPEG.

    Returns:
        The URL; empty if the image cannot be opened.
    """
    if small is None:
        image = thumbnail(path)
        return "" if image is None else image.data
    return "data:image/jpeg;base64," + base64.b64encode(small).decode("ascii")


@styled
def map_figure(store: MapStore, answers: Sequence[Localization], *, matches: bool = True) -> Figure | None:
    """Draw references gray, matches blue, and estimated positions by their decision.

    Args:
        store: Map with the references.
        answers: Answers to draw.
        matches: Whether to draw the matches.

    Returns:
        The figure; None if no reference has a position.
    """
    positions = store.positions[np.isfinite(store.positions[:, 0])]
    if not len(positions):
        return None
    origin = positions.min(axis=0)
    last, count = len(positions) - 1, min(len(positions), MOST_REFERENCES)
    ground = positions[np.linspace(0, last, count).round().astype(np.int64)] - origin
    figure = new_figure(WIDTH, WIDTH)
    axis = figure.subplots()
    axis.scatter(ground[:, 0], ground[:, 1], s=4, color="#b5b5b5", linewidths=0, rasterized=True)
    for answer in answers:
        points = np.array([[m.x, m.y] for m in answer.matches if np.isfinite(m.x)]).reshape(-1, 2) - origin
        if matches and len(points):
            sizes = np.linspace(60, 12, len(points))
            axis.scatter(points[:, 0], points[:, 1], s=sizes, color=COLORS[0], linewidths=0, alpha=0.8)
        if answer.pose is not None:
            x, y = answer.pose.x - origin[0], answer.pose.y - origin[1]
            accepted, rejected = answer.decision == "accept", answer.decision == "reject"
            color = RIGHT if accepted else COLORS[1]
            axis.scatter([x], [y], s=90, marker="x" if rejected else "*", color=color, zorder=3)
    axis.set_aspect("equal", adjustable="datalim")
    axis.set(xlabel=f"metres east of {origin[0]:,.0f}", ylabel=f"metres north of {origin[1]:,.0f}")
    axis.locator_params(nbins=5)
    return figure


@dataclass(frozen=True)
class Question:
    """One query with its match. Images are JPEG, or None if they cannot be opened."""

    order: int
    query: str
    match: str
    label: str
    query_picture: bytes | None
    match_picture: bytes | None


def label_page(
    questions: Sequence[Question], *, title: str, radius: float, sample: str, head: Sequence[str], file: str
) -> str:
    """Return the page as text.

    Args:
        questions: Queries with their matches.
        title: Title of the page.
        radius: Distance in metres within which two images show the same place.
        sample: Identifier of the sample, under which the browser stores the answers.
        head: Lines of the labels file before its columns.
        file: Name of the labels file.

    Returns:
        HTML of the page.
    """
    data = {
        "sample": sample,
        "head": list(head),
        "file": file,
        "rows": [[q.order, q.query, q.match, q.label] for q in questions],
        "pictures": [[_data(q.query_picture), _data(q.match_picture)] for q in questions],
    }
    text = json.dumps(data).replace("<", "\\u003c")
    style, script = template("label.css"), template("label.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = template("label.html").replace("%POLICY%", policy).replace("%STYLE%", style)
    page = page.replace("%SCRIPT%", script).replace("%TITLE%", html.escape(title))
    return page.replace("%RADIUS%", f"{radius:g}").replace("%DATA%", text)


def _data(jpeg: bytes | None) -> str:
    return "" if jpeg is None else "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


PIXELS = 480
"""Longer side of each image in pixels."""


def write_label_page(place_map: PlaceMap, sheet: Sheet, page: str | Path, labels_name: str) -> int:
    """Write a page for labelling the matches of a sheet in a browser.

    Args:
        place_map: Map that was queried.
        sheet: Queries with their matches, sampled by `PlaceMap.label`.
        page: HTML file to write.
        labels_name: Name under which the page saves the labels.

    Returns:
        Number of images that cannot be opened.

    Raises:
        KappaPlaceError: If the queries were not sampled at random, or no image of the map can be opened.
    """
    if sheet.sampling is None:
        raise KappaPlaceError("Labelling pages need queries sampled at random. Run `kappaplace map label`.")
    questions = []
    with track("Resizing images", len(sheet.rows)) as bar:
        for position, row in enumerate(sheet.rows):
            pictures = (
                query_picture(sheet, position, PIXELS),
                match_picture(place_map, sheet, position, PIXELS),
            )
            questions.append(Question(row.order, row.query, row.match, row.label, *pictures))
            bar.advance()
    if all(question.match_picture is None for question in questions):
        raise KappaPlaceError(
            f'None of the images of the map can be opened, for example "{questions[0].match}". Restore '
            "them, or build the map with --thumbnails."
        )
    text = label_page(
        questions,
        title=f"Labels for {sheet.sampling.map}",
        radius=place_map.manifest.radius,
        sample=sheet.sampling.sample,
        head=head_lines(sheet),
        file=labels_name,
    )
    write_file(Path(page), text.encode("utf-8", "backslashreplace"))
    return sum((q.query_picture is None) + (q.match_picture is None) for q in questions)
