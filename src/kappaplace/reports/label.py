"""The page for labelling matches in a browser.

It loads nothing from other hosts, and its content security policy forbids it. Images are embedded, and
scripts and styles must match their hashes. The browser stores every answer. Names of files are hidden,
because they often reveal the place.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.maps import PlaceMap, Sheet, head_lines, match_picture, query_picture
from kappaplace.progress import track
from kappaplace.reports.html import icon_url, image_url, template, tokens


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
    style, script = tokens() + template("label.css"), template("label.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = template("label.html").replace("%POLICY%", policy).replace("%STYLE%", style)
    page = page.replace("%SCRIPT%", script).replace("%TITLE%", html.escape(title))
    page = page.replace("%ICON%", icon_url())
    return page.replace("%RADIUS%", f"{radius:g}").replace("%DATA%", text)


def _data(jpeg: bytes | None) -> str:
    return "" if jpeg is None else image_url(jpeg, "jpeg")


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
