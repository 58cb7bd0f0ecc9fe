"""Answers as one HTML page: the map with what was found, and the matches beside the query."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from kappaplace.data import thumbnail
from kappaplace.files import replace_file
from kappaplace.maps import Localization, MapStore, Match
from kappaplace.reports.figures import COLOURS, PLOT_STYLE, RIGHT, WIDTH, new_figure
from kappaplace.reports.html import heading, page, paragraph, picture, png_of, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kappaplace.maps import PlaceMap


CARDS = 3
MOST_ANSWERS = 200
"""More pictures than this make a page that no browser likes."""
MOST_REFERENCES = 20_000
FRAMES = {"accept": "right", "reject": "wrong"}
"""Which frame a decision gets; what is doubtful or undecided stays grey."""


def write_answers(place_map: PlaceMap, answers: Sequence[Localization], file: str | Path) -> None:
    """Write the page; only the first `MOST_ANSWERS` answers are shown, and it says so."""
    store, shown = place_map.store, answers[:MOST_ANSWERS]
    sections = [paragraph(note, small=True) for note in dict.fromkeys(n for a in answers for n in a.notes)]
    if len(shown) < len(answers):
        sections.append(
            paragraph(f"The first {len(shown):,} of {len(answers):,} answers are shown.", small=True)
        )
    sections += [_overview(store, shown)] if len(shown) > 1 else []
    for answer in shown:
        sections += _answer(store, answer, alone=len(shown) == 1)
    asked = "1 query" if len(answers) == 1 else f"{len(answers):,} queries"
    lead = f"{asked} in a map of {len(store):,} references"
    text = page(f"Where was this? {store.manifest.name}".strip(), lead, sections)
    replace_file(Path(file), lambda part: part.write_text(text, encoding="utf-8", errors="backslashreplace"))


def _overview(store: MapStore, answers: Sequence[Localization]) -> str:
    figure = map_figure(store, [(a.matches, a) for a in answers], lines=False)
    words = "Grey: the map. Coloured: where each query was found; green is accepted, a cross is rejected."
    return "" if figure is None else picture(png_of(figure), "the map with all answers", words)


def _answer(store: MapStore, answer: Localization, alone: bool) -> list[str]:
    pieces = [heading(PurePath(answer.query).name), paragraph(answer.sentence)]
    words = [f"κ {answer.kappa:,.3g}"] if np.isfinite(answer.kappa) else []
    cards = [_card("query", answer.query, picture_data(answer.query, None), ["query", *words])]
    for match in answer.matches[:CARDS]:
        frame = FRAMES.get(match.decision or "", "query")
        said = [f"{match.rank}. similarity {match.similarity:.3f}"]
        said += [f"probability {match.probability:.2f}"] if match.probability is not None else []
        said += [f"({match.x:,.1f}, {match.y:,.1f})"] if np.isfinite(match.x) else ["no position"]
        small = store.thumbnail(match.reference)
        cards.append(_card(frame, match.name, picture_data(match.image, small), said))
    pieces.append(f'<div class="row">{"".join(cards)}</div>')
    if alone and (figure := map_figure(store, [(answer.matches, answer)])) is not None:
        words_ = (
            "Grey: the map. Blue: the matches, larger where they rank higher. Star: the estimated position."
        )
        pieces.append(picture(png_of(figure), "the map with the matches", words_))
    pieces.append(_table(answer))
    return pieces


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
    """The picture inside the page: the map's own small copy, or the file if it is still there."""
    if small is None:
        made = thumbnail(path)
        return "" if made is None else made.data
    return "data:image/jpeg;base64," + base64.b64encode(small).decode("ascii")


def _card(frame: str, name: str, data: str, words: Sequence[str]) -> str:
    shown = html.escape(PurePath(name).name, quote=True)
    inside = (
        f'<img alt="{shown}" src="{data}">' if data else f'<div class="gone">{shown} cannot be opened</div>'
    )
    return f'<div class="{frame}">{inside}<p>{"<br>".join(map(html.escape, words))}</p></div>'


def map_figure(
    store: MapStore, found: Sequence[tuple[Sequence[Match], Localization]], *, lines: bool = True
) -> Figure | None:
    """References grey, matches blue, estimates by their decision; None where nothing has a position."""
    import matplotlib

    known = store.positions[np.isfinite(store.positions[:, 0])]
    if not len(known):
        return None
    origin = known.min(axis=0)
    spread = np.linspace(0, len(known) - 1, min(len(known), MOST_REFERENCES)).round().astype(np.int64)
    ground = known[spread] - origin
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(WIDTH, WIDTH)
        axis = figure.subplots()
        axis.scatter(ground[:, 0], ground[:, 1], s=4, color="#b5b5b5", linewidths=0, rasterized=True)
        for matches, answer in found:
            at = np.array([[m.x, m.y] for m in matches if np.isfinite(m.x)]).reshape(-1, 2) - origin
            if lines and len(at):
                sizes = np.linspace(60, 12, len(at))
                axis.scatter(at[:, 0], at[:, 1], s=sizes, color=COLOURS[0], linewidths=0, alpha=0.8)
            if answer.pose is not None:
                x, y = answer.pose.x - origin[0], answer.pose.y - origin[1]
                accepted, rejected = answer.decision == "accept", answer.decision == "reject"
                colour = RIGHT if accepted else COLOURS[1]
                axis.scatter([x], [y], s=90, marker="x" if rejected else "*", color=colour, zorder=3)
        axis.set_aspect("equal", adjustable="datalim")
        axis.set(xlabel=f"metres east of {origin[0]:,.0f}", ylabel=f"metres north of {origin[1]:,.0f}")
        axis.locator_params(nbins=5)
        return figure
