"""Labelling in a terminal: one question a match, each answer saved at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kappaplace.files import replace_file
from kappaplace.maps.label_file import NO, UNKNOWN, YES, Sheet, write_labels
from kappaplace.maps.label_pairs import match_picture, query_picture
from kappaplace.maps.place_map import PlaceMap
from kappaplace.reports.label_pictures import side_by_side

KEYS = {"y": YES, "n": NO, "u": UNKNOWN}
PIXELS = 640


def label_loop(
    place_map: PlaceMap,
    sheet: Sheet,
    file: str | Path,
    *,
    ask: Callable[[str], str],
    say: Callable[[str], None],
    picture: Path | None = None,
) -> Sheet:
    """Ask about each row that has no label yet, until all have one or the person stops.

    ``ask`` puts a question and gives the reply; the end of the input (EOFError) stops, as q does. Both images
    of the question are drawn side by side into ``picture``.
    """
    at = _first_open(sheet)
    while at < len(sheet.rows):
        row = sheet.rows[at]
        say(f"{at + 1} of {len(sheet.rows)}\n  query {row.query}\n  match {row.match}")
        if picture is not None:
            _draw(place_map, sheet, at, picture)
        try:
            reply = ask("The same place? y, n, u (don't know), b (back), q (stop)").strip().lower()
        except EOFError:
            return sheet
        if reply in ("q", "quit"):
            return sheet
        if reply in ("b", "back"):
            at = max(at - 1, 0)
        elif (label := KEYS.get(reply[:1])) is not None and reply in (reply[:1], label):
            sheet = sheet.with_label(at, label)
            write_labels(sheet, file)
            at += 1
        else:
            say(f"{reply!r} is none of y, n, u, b and q.")
    return sheet


def _draw(place_map: PlaceMap, sheet: Sheet, at: int, file: Path) -> None:
    both = side_by_side(query_picture(sheet, at, PIXELS), match_picture(place_map, sheet, at, PIXELS))
    replace_file(file, lambda part: part.write_bytes(both), sync=False)


def _first_open(sheet: Sheet) -> int:
    return next((i for i, row in enumerate(sheet.rows) if not row.label), len(sheet.rows))
