"""HTML pages of queries with their matches: answers of a map, and positions of photos."""

from __future__ import annotations

import html
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.data import thumbnail
from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.maps import Geotags, Localization, MapStore, Match, PhotoTag
from kappaplace.progress import track
from kappaplace.reports.figures import COLORS, WIDTH, new_figure, styled
from kappaplace.reports.html import (
    card,
    chapter,
    counts,
    drawing,
    heading,
    image_url,
    page,
    paragraph,
    picture,
    short,
    table,
)
from kappaplace.reports.pairs import evidence_jpeg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kappaplace.maps import PlaceMap

CARDS = 3
MOST_ANSWERS = 200
"""Maximum number of answers on a page; browsers are slow with more images."""
MOST_LISTED = 12
"""Maximum number of answers that are listed; more of them are folded into a chapter per decision."""
MOST_EVIDENCE = 24
"""Maximum number of answers with matched patches, which take time to compute."""
MOST_REFERENCES = 20_000
FILM_SIZE = (180, 135)
"""Size of a query in the filmstrip, in pixels."""
TAG_FRAMES = {"accepted": "right", "between": "right", "implausible": "wrong"}
"""Frame of a photo by its status; gray for photos without a new position."""
TRUST = (
    "Green: the position is written with --apply. Red: the answer was accepted, but it contradicts photos "
    "taken shortly before or after. Gray: the answer is not certain enough, and nothing is written."
)
FRAMES = {"accept": "right", "doubtful": "doubtful", "reject": "wrong"}
"""Frame of each decision; a match without a decision has a gray frame."""
OUTCOMES = {"accept": "accepted", "doubtful": "doubtful", "reject": "rejected", None: "without a decision"}
STYLES = {"accept": ("#0b7a41", "o"), "doubtful": ("#b86e00", "^"), None: (COLORS[0], "o")}
"""Color and marker of an estimated position; rejected answers have none."""


def write_answers(place_map: PlaceMap, answers: Sequence[Localization], file: str | Path) -> None:
    """Write answers as one HTML page, which shows the first `MOST_ANSWERS` of them.

    A sentence and the number of decisions come first, then all queries as a filmstrip, a map, and one answer
    per folded chapter.

    Args:
        place_map: Map that was queried.
        answers: Answers of `PlaceMap.localize`.
        file: HTML file to write.
    """
    store, shown = place_map.store, answers[:MOST_ANSWERS]
    number = Counter(answer.decision for answer in answers)
    sections = []
    if len(answers) > 1:
        names = {OUTCOMES[key]: (key or "", count) for key in OUTCOMES if (count := number[key]) or key}
        sections.append(counts(names) if number[None] < len(answers) else "")
    sections += [paragraph(note, small=True) for note in dict.fromkeys(n for a in answers for n in a.notes)]
    if len(shown) < len(answers):
        text = f"The first {len(shown):,} of {len(answers):,} answers are shown."
        sections.append(paragraph(text, small=True))
    if len(shown) > 1:
        sections += [_film(shown), _overview(store, shown)]
    pieces = []
    with track("Writing the page", len(shown)) as bar:
        for position, answer in enumerate(shown):
            pieces.append(_answer(place_map, answer, position, only=len(shown) == 1))
            bar.advance()
    sections += pieces if len(shown) <= MOST_LISTED else _by_decision(shown, pieces)
    text = page(f"Where was this? {store.manifest.name}".strip(), _summary(answers, len(store)), sections)
    write_file(Path(file), text.encode("utf-8", "backslashreplace"))


def _by_decision(answers: Sequence[Localization], pieces: Sequence[str]) -> list[str]:
    """Return one chapter per decision, so that many answers do not make the page long."""
    chapters = []
    for decision, outcome in OUTCOMES.items():
        rows = [row for row, answer in enumerate(answers) if answer.decision == decision]
        if rows:
            title = f"{len(rows):,} {outcome}"
            chapters.append(chapter(title, [pieces[row] for row in rows], f"decision-{decision or 'none'}"))
    return chapters


def _summary(answers: Sequence[Localization], references: int) -> str:
    """Return what a reader wants to know first: the answer, or how many of them can be used."""
    if len(answers) == 1:
        return answers[0].sentence
    number = Counter(answer.decision for answer in answers)
    text = f"{len(answers):,} queries in a map of {references:,} references"
    if not answers or number[None] == len(answers):
        return f"{text}. The map is not calibrated, so no answer has a decision."
    parts = [f"{number[key]:,} {outcome}" for key, outcome in OUTCOMES.items() if key or number[key]]
    text = f"{text}: {', '.join(parts[:-1])} and {parts[-1]}."
    if any(answer.guaranteed for answer in answers):
        text += " The risk of accepted answers is guaranteed by labelled queries."
    return text


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


def _film(answers: Sequence[Localization]) -> str:
    """Return every query as a small image with its decision, linked to its answer."""
    frames = []
    for position, answer in enumerate(answers):
        name = html.escape(PurePath(answer.query).name)
        small = thumbnail(answer.query)
        inner = '<div class="gone"></div>'
        if small is not None:
            buffer = io.BytesIO()
            Image.fromarray(small.pixels).resize(FILM_SIZE).save(buffer, "JPEG", quality=70)
            inner = f'<img alt="" src="{image_url(buffer.getvalue(), "jpeg")}" loading="lazy">'
        mark = html.escape(_mark(answer))
        frames.append(
            f'<a class="{answer.decision or ""}" href="#answer-{position}">{inner}{name}<br>{mark}</a>'
        )
    return f'<div class="film" tabindex="0" role="group" aria-label="All queries">{"".join(frames)}</div>'


def _mark(answer: Localization) -> str:
    """Return decision and probability of an answer, as far as they are known."""
    probability = "" if answer.probability is None else f"{100 * answer.probability:.0f}%"
    return " · ".join(part for part in (answer.decision or "", probability) if part) or "no decision"


def _overview(store: MapStore, answers: Sequence[Localization]) -> str:
    figure = map_figure(store, answers, matches=False)
    caption = "The map (gray) with the estimated positions. Rejected answers have no position."
    return "" if figure is None else drawing(figure, "Map with all answers", caption)


def _answer(place_map: PlaceMap, answer: Localization, position: int, only: bool) -> str:
    store, name = place_map.store, PurePath(answer.query).name
    words = [f"κ {short(answer.kappa)}"] if np.isfinite(answer.kappa) else []
    cards = [card("query", name, picture_data(answer.query, None), ["query", *words])]
    for match in answer.matches[:CARDS]:
        frame = FRAMES.get(match.decision or "", "query")
        captions = [f"{match.rank}. similarity {match.similarity:.3f}"]
        captions += [f"probability {match.probability:.2f}"] if match.probability is not None else []
        captions.append(_place(match))
        image = picture_data(match.image, store.thumbnail(match.reference))
        cards.append(card(frame, PurePath(match.name).name, image, captions))
    pieces = [] if only else [paragraph(answer.sentence)]
    pieces.append(f'<div class="row">{"".join(cards)}</div>')
    pieces += _evidence(place_map, answer) if position < MOST_EVIDENCE else []
    if only and (figure := map_figure(store, [answer])) is not None:
        caption = "The map with the matches (higher ranks are larger) and the estimated position."
        if answer.radius is not None and answer.radius_level is not None:
            caption += f" Circle: the true position is inside with {answer.radius_level:.0%} probability."
        pieces.append(drawing(figure, "Map with the matches", caption))
    pieces.append(_table(answer))
    if only:
        return "\n".join(pieces)
    return chapter(name, pieces, f"answer-{position}", badge=(answer.decision or "", _mark(answer)))


def _place(match: Match) -> str:
    if np.isfinite(match.latitude):
        return f"{match.latitude:.5f}, {match.longitude:.5f}"
    return f"({match.x:,.1f}, {match.y:,.1f})" if np.isfinite(match.x) else "no position"


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
    header = ["match", "similarity", "κ", "uncertainty", "probability", "decision", "position"]
    rows = [
        [
            m.name,
            f"{m.similarity:.3f}",
            short(m.kappa),
            short(m.uncertainty),
            "–" if m.probability is None else f"{m.probability:.3f}",
            m.decision or "–",
            _place(m),
        ]
        for m in answer.matches
    ]
    return table(header, rows)


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
    return image_url(small, "jpeg")


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
    axis.scatter(
        ground[:, 0], ground[:, 1], s=4, color="#9aa5b1", linewidths=0, rasterized=True, label="references"
    )
    for answer in answers:
        points = np.array([[m.x, m.y] for m in answer.matches if np.isfinite(m.x)]).reshape(-1, 2) - origin
        if matches and len(points):
            sizes = np.linspace(60, 12, len(points))
            axis.scatter(
                points[:, 0], points[:, 1], s=sizes, color=COLORS[5], linewidths=0, alpha=0.9, label="matches"
            )
    for decision, (color, marker) in STYLES.items():
        poses = [a.pose for a in answers if a.pose is not None and a.decision == decision]
        points = np.array([[pose.x, pose.y] for pose in poses]).reshape(-1, 2) - origin
        if len(points):
            name = (
                f"{decision or 'estimated'} ({len(points):,})" if len(answers) > 1 else "estimated position"
            )
            axis.plot(
                points[:, 0],
                points[:, 1],
                marker,
                ms=7,
                color=color,
                mec="white",
                mew=0.8,
                label=name,
                zorder=3,
            )
    if matches:
        for answer in answers:
            _radius(axis, answer, origin)
    axis.set_aspect("equal", adjustable="datalim")
    axis.set(xlabel=f"metres east of {origin[0]:,.0f}", ylabel=f"metres north of {origin[1]:,.0f}")
    axis.locator_params(nbins=5)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _radius(axis: Axes, answer: Localization, origin: NDArray[np.float64]) -> None:
    """Draw the circle that contains the true position with a known probability."""
    from matplotlib.patches import Circle

    if answer.pose is not None and answer.radius is not None:
        center = (answer.pose.x - origin[0], answer.pose.y - origin[1])
        axis.add_patch(Circle(center, answer.radius, fill=False, color=STYLES["accept"][0], linewidth=1.2))
