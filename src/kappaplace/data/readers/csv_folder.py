"""A folder of images plus a CSV of your own: columns are guessed by name, shown, and can be named."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.geodesy import project
from kappaplace.data.place_images import DEFAULT_RADIUS, PlaceImages
from kappaplace.data.readers.cells import labels, number, parsed, read_rows
from kappaplace.data.readers.csv_columns import LATLON, LOCAL, PAIR, UTM, understand
from kappaplace.data.readers.dates import unix_times
from kappaplace.data.readers.layout import Reader, chosen_file, existing_folder, list_images
from kappaplace.errors import KappaPlaceError

T = TypeVar("T")
Ask = Callable[[str], bool]

_PAIR = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*[;, ]\s*(-?\d+(?:\.\d+)?)\s*")
_QUERY = {"1", "1.0", "true", "t", "yes", "y", "q", "query", "queries", "test"}
_REFERENCE = {"", "0", "0.0", "false", "f", "no", "n", "r", "ref", "refs", "reference", "references"}
_REFERENCE |= {"database", "db", "gallery", "index", "map", "train"}


@dataclass(frozen=True)
class Sheet:
    """A CSV that is understood: what its columns mean, and the image of every row."""

    file: Path
    rows: list[dict[str, str]]
    columns: dict[str, str]
    """Meaning → column."""
    kind: str
    paths: list[str]

    def parsed(self, meaning: str, parse: Callable[[str], T]) -> list[T] | None:
        """A column by its meaning; None where the file has none."""
        column = self.columns.get(meaning)
        return None if column is None else parsed(self.rows, column, parse, self.file)

    @property
    def first_rows(self) -> list[int]:
        """Rows that name an image for the first time."""
        return sorted({path: row for row, path in reversed(list(enumerate(self.paths)))}.values())


def read(
    folder: str | Path,
    *,
    csv: str = "",
    columns: str = "",
    frame: str = "",
    radius: float = DEFAULT_RADIUS,
    ask: Ask = lambda text: True,
) -> PlaceImages:
    """Read ``csv``; ``columns="path=file,lat=Y,lon=X"`` overrides the guess; every row needs its image."""
    root = existing_folder(folder)
    return sheet_table(open_sheet(root, csv, columns, ask), root, frame, radius)


def open_sheet(root: Path, csv: str, columns: str, ask: Ask) -> Sheet:
    """Understand the CSV and ask whether that is right."""
    file = chosen_file(root, csv, root.glob("*.csv"), "CSV file", "csv")
    rows = read_rows(file)
    if not rows:
        raise KappaPlaceError(f"{file} holds no row.")
    meaning, kind = understand(list(rows[0]), columns, file)
    paths, by_end = _found(root, parsed(rows, meaning["path"], str, file), file)
    sheet = Sheet(file, rows, meaning, kind, paths)
    text = "Columns: " + ", ".join(f"{k} = {v!r}" for k, v in meaning.items()) + f"; coordinates: {kind}"
    if by_end:
        text += f"; {by_end} names were matched by the end of the path"
    repeated = len(rows) - len(sheet.first_rows)
    if repeated:
        text += f"; {repeated} rows repeat an image and are left out"
    if not ask(text):
        raise KappaPlaceError("The guess was declined: name the columns with columns=path=…,lat=…,lon=….")
    return sheet


def sheet_table(sheet: Sheet, root: Path, frame: str, radius: float) -> PlaceImages:
    """The table of a sheet. All rows are parsed, those that repeat an image too, so that no error hides."""
    positions, own_frame = _positions(sheet, frame)
    condition, place = sheet.parsed("condition", str), sheet.parsed("place", str)
    time = sheet.parsed("timestamp", str)
    known: dict[str, Any] = {
        "heading": sheet.parsed("heading", number),
        "timestamp": None if time is None else unix_times(time),
        "place": None if place is None else labels(place),
        "condition": condition,
        "is_query": sheet.parsed("query", is_query),
        "accuracy": sheet.parsed("accuracy", number),
    }
    first = sheet.first_rows
    return PlaceImages.create(
        [sheet.paths[row] for row in first],
        None if positions is None else positions[first],
        **{name: None if values is None else np.array(values)[first] for name, values in known.items()},
        root=root,
        frame=own_frame,
        name=root.name,
        radius=radius,
    )


def _positions(sheet: Sheet, frame: str) -> tuple[NDArray[np.float64] | None, str]:
    def pair(a: str, b: str) -> NDArray[np.float64]:
        return np.column_stack([np.array(sheet.parsed(m, number), dtype=np.float64) for m in (a, b)])

    if sheet.kind == LATLON:
        return project(*pair("lat", "lon").T)
    if sheet.kind == PAIR:
        return project(*np.array(sheet.parsed("latlon", _degrees), dtype=np.float64).T)
    if sheet.kind == UTM:
        if not frame:
            raise KappaPlaceError(
                "UTM coordinates need their zone: give frame=EPSG:32610 (326 north, 327 south, zone)."
            )
        return pair("east", "north"), frame
    if sheet.kind == LOCAL:
        return pair("x", "y"), frame or "local"
    return None, "local"


def _degrees(cell: str) -> tuple[float, float]:
    match = _PAIR.fullmatch(cell)
    if cell and not match:
        raise ValueError(f"{cell!r} is no latitude and longitude (leave the column out with columns=latlon=)")
    return (float(match[1]), float(match[2])) if match else (np.nan, np.nan)


def is_query(cell: str) -> bool:
    """The role a cell states; an empty one is a reference.

    >>> is_query("Query"), is_query("0")
    (True, False)
    """
    word = cell.lower()
    if word not in _QUERY | _REFERENCE:
        raise ValueError(
            f"{cell!r} is no role; use query or reference, 1 or 0, or do without with columns=query="
        )
    return word in _QUERY


def _found(root: Path, names: list[str], file: Path) -> tuple[list[str], int]:
    """Names of the CSV as paths below the folder, and how many had to be matched by the end of their path.

    A name is taken as written; or it is the end of one image's path (the image lies deeper); or it goes
    through a folder called like ``root`` (a path from above it, or from another disk). A folder that the
    name states is never ignored: cam2/z.jpg is not cam1/z.jpg.
    """
    images = list_images(root)
    present = set(images)
    ends = _ends(images)
    own_name = root.resolve().name
    paths, by_end = [], 0
    for row, written in enumerate(names, start=1):
        name = posixpath.normpath(written.replace("\\", "/")) if written else ""
        path = name if name in present else ends.get(name) or _below(own_name, name, present)
        if not path:
            raise KappaPlaceError(f"{file} row {row}: there is no single image {written!r} below {root}.")
        by_end += path != name
        paths.append(path)
    return paths, by_end


def _ends(images: list[str]) -> dict[str, str]:
    """Every end of an image's path, folder by folder → the image; empty where two images share it."""
    ends: dict[str, str] = {}
    for image in images:
        rest = image
        while "/" in rest:
            rest = rest.partition("/")[2]
            ends[rest] = "" if rest in ends else image
    return ends


def _below(folder: str, name: str, present: set[str]) -> str:
    """The part of a name behind the folder's own name, where exactly one such part is an image."""
    parts = name.split("/")
    rests = {"/".join(parts[i + 1 :]) for i, part in enumerate(parts) if part == folder} & present
    return rests.pop() if len(rests) == 1 else ""


READER = Reader(
    "csv",
    "a folder of images plus a CSV with lat/lon, UTM or x/y; columns are guessed and shown",
    read,
    {
        "csv": "the CSV file (default: the only one in the folder)",
        "columns": "what the guess gets wrong: path=file,lat=Y,lon=X,heading=…; query= leaves one out",
        "frame": "frame of UTM coordinates, e.g. EPSG:32610",
        "radius": "metres within which a reference is a positive (25)",
    },
)
