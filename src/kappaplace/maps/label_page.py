"""A labelling page of a sheet: every query beside its match, inside one HTML file."""

from __future__ import annotations

from pathlib import Path

from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.maps.label_file import Sheet, head_lines
from kappaplace.maps.label_pairs import match_picture, query_picture
from kappaplace.maps.place_map import PlaceMap
from kappaplace.progress import track
from kappaplace.reports.label_page import Question, label_page

PIXELS = 480
"""Longer side of each picture: enough to tell places, small enough for a phone."""


def write_label_page(
    place_map: PlaceMap, sheet: Sheet, page: str | Path, labels_name: str, *, pixels: int = PIXELS
) -> int:
    """Write the page, which saves its labels as ``labels_name``; how many pictures cannot be opened."""
    if sheet.sampling is None:
        raise KappaPlaceError("A labelling page is made of queries drawn at random; draw them first.")
    questions = []
    with track("Shrinking pictures", len(sheet.rows)) as bar:
        for position, row in enumerate(sheet.rows):
            pictures = (
                query_picture(sheet, position, pixels),
                match_picture(place_map, sheet, position, pixels),
            )
            questions.append(Question(row.order, row.query, row.match, row.label, *pictures))
            bar.advance()
    if all(question.match_picture is None for question in questions):
        raise KappaPlaceError(
            f"None of the map's images can be opened (for instance {questions[0].match!r}), so there is "
            "nothing to compare; bring them back, or build the map with --thumbnails."
        )
    text = label_page(
        questions,
        title=f"Labels for {sheet.sampling.map}",
        radius=place_map.manifest.radius,
        sample=sheet.sampling.sample,
        head=head_lines(sheet),
        file=labels_name,
    )
    data = text.encode("utf-8", "backslashreplace")
    replace_file(Path(page), lambda part: part.write_bytes(data))
    return sum((q.query_picture is None) + (q.match_picture is None) for q in questions)
