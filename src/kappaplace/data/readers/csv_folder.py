"""A folder of images plus a CSV of your own: columns are guessed by name, shown, and can be named.

What the columns of a CSV of your own mean: guessed by name, overruled by ``columns=…``.
"""

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
from kappaplace.data.readers.layout import Reader, chosen_file, existing_folder, list_images
from kappaplace.data.readers.text import labels, number, parsed, read_rows, unix_times
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError

# Meaning → names that a column may have, best first; compared in lower case without blanks and dashes.
# hdop is no accuracy: it is a factor without a unit; the metres it stands for depend on the receiver.
NAMES: dict[str, tuple[str, ...]] = {
    "path": ("path", "file", "filename", "image", "imagepath", "img", "name", "key", "picture"),
    "lat": ("lat", "latitude", "gpslat", "gpslatitude"),
    "lon": ("lon", "lng", "long", "longitude", "gpslon", "gpslongitude"),
    "east": ("easting", "utmeast", "east", "utme", "utmx"),
    "north": ("northing", "utmnorth", "north", "utmn", "utmy"),
    "x": ("x", "tx", "posx", "positionx"),
    "y": ("y", "ty", "posy", "positiony"),
    "latlon": ("coordinates", "coordinatesimage", "latlon", "latlng", "location", "gps", "coords"),
    "heading": ("heading", "yaw", "compass", "bearing", "azimuth", "ca", "northdeg", "direction"),
    "timestamp": ("timestamp", "time", "datetime", "date", "capturedat", "t"),
    "place": ("place", "placeid", "building", "buildingname", "landmark", "class", "label"),
    "condition": ("condition", "session", "sequence", "sequencekey", "weather", "season", "run"),
    "query": ("isquery", "query", "role", "split", "subset"),
    "accuracy": ("accuracy", "gpsaccuracy", "hacc"),
}
LATLON = "latitude and longitude"
UTM = "UTM"
PAIR = "one column of latitude and longitude"
LOCAL = "local x and y in metres"
UNPOSED = "none, images stay unposed"
# Kind of coordinates → the meanings it needs; the first whose columns are there is taken.
_KINDS = {LATLON: ("lat", "lon"), UTM: ("east", "north"), PAIR: ("latlon",), LOCAL: ("x", "y")}


def guess_columns(header: list[str]) -> dict[str, str]:
    """Meaning → column of the file.

    >>> guess_columns(["File name", "LATITUDE", "lon", "remark"])
    {'path': 'File name', 'lat': 'LATITUDE', 'lon': 'lon'}
    """
    plain = {re.sub(r"[\s_\-.]", "", name.lower()): name for name in reversed(header)}
    found = {key: plain[n] for key, names in NAMES.items() for n in reversed(names) if n in plain}
    return {key: found[key] for key in NAMES if key in found}


def understand(header: list[str], columns: str, file: Path) -> tuple[dict[str, str], str]:
    """Meaning → column, and the kind of coordinates; what ``columns`` names comes before every guess.

    ``columns="path=file,lat=Y,lon=X,query="`` names three columns and leaves a fourth meaning out.
    """
    named = _named(columns, header, file)
    guessed = {m: c for m, c in guess_columns(header).items() if c not in named.values()}
    meaning = {m: c for m, c in (guessed | named).items() if c}
    if "path" not in meaning:
        raise KappaPlaceError(
            f"{file} has no column of file names among {', '.join(header)}: name it with columns=path=…."
        )
    kind = _coordinate_kind(meaning, {m for m, c in named.items() if c}, file)
    unused = {m for other, needed in _KINDS.items() if other != kind for m in needed}
    return {m: c for m, c in meaning.items() if m not in unused}, kind


def _named(columns: str, header: list[str], file: Path) -> dict[str, str]:
    named: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in columns.split(","))):
        meaning, equals, column = (word.strip() for word in part.partition("="))
        if not equals:
            raise KappaPlaceError(f"columns={part} lacks its column: write meaning=column, e.g. path=file.")
        if meaning not in NAMES or (column and column not in header):
            raise KappaPlaceError(
                f"columns={part}: meanings are {', '.join(NAMES)}; {file} has {', '.join(header)}."
            )
        named[meaning] = column
    return named


def _coordinate_kind(meaning: dict[str, str], named: set[str], file: Path) -> str:
    chosen = [kind for kind, needed in _KINDS.items() if named.intersection(needed)]
    if len(chosen) > 1:
        raise KappaPlaceError(f"columns=… names two kinds of coordinates ({', '.join(chosen)}): name one.")
    kinds = chosen or list(_KINDS)
    for kind in kinds:
        if all(m in meaning for m in _KINDS[kind]):
            return kind
    for kind in kinds:  # half a pair is a mistake: the images would silently stay unposed
        there = [m for m in _KINDS[kind] if m in meaning]
        lacking = [m for m in _KINDS[kind] if m not in meaning]
        if there:
            raise KappaPlaceError(
                f"{file} has a column for {there[0]} ({meaning[there[0]]}) but none for {lacking[0]}: "
                f"name it with columns={lacking[0]}=…, or do without both with columns={there[0]}=."
            )
    return UNPOSED


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
