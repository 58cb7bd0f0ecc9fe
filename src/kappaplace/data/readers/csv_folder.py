"""A folder of images and your own CSV file: columns are guessed by name, or named with ``columns=…``."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from kappaplace.data.geodesy import project
from kappaplace.data.readers.layout import (
    Reader,
    Row,
    check_folder,
    labels,
    list_images,
    number,
    parse_column,
    read_rows,
    select_file,
    unix_times,
)
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError

# Meaning → possible names of its column, best first; compared in lower case without blanks and dashes.
# hdop is not an accuracy: it is a factor without a unit, and its metres depend on the receiver.
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
UNPOSED = "none, images remain without a position"
# Kind of coordinates → the meanings it needs; the first kind with all its columns is used.
_KINDS = {LATLON: ("lat", "lon"), UTM: ("east", "north"), PAIR: ("latlon",), LOCAL: ("x", "y")}


def guess_columns(header: list[str]) -> dict[str, str]:
    """Guess the meaning of columns by their names: meaning → column.

    >>> guess_columns(["File name", "LATITUDE", "lon", "remark"])
    {'path': 'File name', 'lat': 'LATITUDE', 'lon': 'lon'}
    """
    plain = {re.sub(r"[\s_\-.]", "", name.lower()): name for name in reversed(header)}
    best = {key: next((plain[n] for n in names if n in plain), "") for key, names in NAMES.items()}
    return {key: column for key, column in best.items() if column}


def understand(header: list[str], columns: str, file: Path) -> tuple[dict[str, str], str]:
    """Find the meaning of the columns and the kind of coordinates.

    Args:
        header: Names of the columns.
        columns: Columns that replace guesses: ``"path=file,lat=Y,lon=X,query="`` names three columns and
            excludes a fourth meaning.
        file: The file, for messages.

    Returns:
        Meaning → column, and the kind of coordinates.
    """
    named = _named(columns, header, file)
    guessed = {m: c for m, c in guess_columns(header).items() if c not in named.values()}
    meaning = {m: c for m, c in (guessed | named).items() if c}
    if "path" not in meaning:
        raise KappaPlaceError(
            f"{file} has no column of file names, only {', '.join(header)}. Name it with columns=path=…."
        )
    kind = _coordinate_kind(meaning, {m for m, c in named.items() if c}, file)
    unused = {m for other, needed in _KINDS.items() if other != kind for m in needed}
    return {m: c for m, c in meaning.items() if m not in unused}, kind


def _named(columns: str, header: list[str], file: Path) -> dict[str, str]:
    named: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in columns.split(","))):
        meaning, equals, column = (word.strip() for word in part.partition("="))
        if not equals:
            raise KappaPlaceError(f"columns={part} has no column. Write meaning=column, as in path=file.")
        if meaning not in NAMES or (column and column not in header):
            raise KappaPlaceError(
                f"columns={part} is not valid for {file}. Write MEANING=COLUMN, with one of the meanings "
                f"{', '.join(NAMES)} and one of the columns {', '.join(header)}."
            )
        named[meaning] = column
    return named


def _coordinate_kind(meaning: dict[str, str], named: set[str], file: Path) -> str:
    named_kinds = [kind for kind, needed in _KINDS.items() if named.intersection(needed)]
    if len(named_kinds) > 1:
        raise KappaPlaceError(
            f"columns=… names two kinds of coordinates ({', '.join(named_kinds)}). Name only one."
        )
    kinds = named_kinds or list(_KINDS)
    for kind in kinds:
        if all(m in meaning for m in _KINDS[kind]):
            return kind
    for kind in kinds:  # half a pair is a mistake: images would have no position without a warning
        present = [m for m in _KINDS[kind] if m in meaning]
        missing = [m for m in _KINDS[kind] if m not in meaning]
        if present:
            raise KappaPlaceError(
                f"{file} has a column for {present[0]} ({meaning[present[0]]}) but none for {missing[0]}. "
                f"Name it with columns={missing[0]}=…, or exclude both with columns={present[0]}=."
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
    """A CSV file with the meaning of its columns, and the image of every row."""

    file: Path
    rows: list[Row]
    columns: dict[str, str]
    """Meaning → column."""
    kind: str
    """Kind of coordinates."""
    paths: list[str]
    """Image of every row."""

    def column(self, meaning: str, parse: Callable[[str], T]) -> list[T] | None:
        """Return the values of a column by its meaning; None if the file has no such column."""
        name = self.columns.get(meaning)
        return None if name is None else parse_column(self.rows, name, parse, self.file)

    @property
    def first_rows(self) -> list[int]:
        """Row of the first mention of each image."""
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
    """Read images with poses from a CSV file; every row must name an image.

    Args:
        folder: Folder of the images.
        csv: The CSV file. Default: the only one in the folder.
        columns: Columns that replace guesses, such as path=file,lat=Y,lon=X. query= excludes one.
            Default: guess all of them.
        frame: Frame of UTM coordinates, such as EPSG:32610.
        radius: Distance in metres within which a reference is a positive. Default: 25.
        ask: Function that confirms the guessed columns. Default: accept them.

    Returns:
        The table.
    """
    root = check_folder(folder)
    return sheet_table(open_sheet(root, csv, columns, ask), root, frame, radius)


def open_sheet(root: Path, csv: str, columns: str, ask: Ask) -> Sheet:
    """Read a CSV file, guess its columns and have the guess confirmed; arguments as in `read`."""
    file = select_file(root, csv, root.glob("*.csv"), "CSV file", "csv")
    rows = read_rows(file)
    if not rows:
        raise KappaPlaceError(f"{file} contains no rows. Add a row per image.")
    meaning, kind = understand(list(rows[0]), columns, file)
    paths, by_end = _match_images(root, rows, meaning["path"], file)
    sheet = Sheet(file, rows, meaning, kind, paths)
    text = "Columns: " + ", ".join(f"{k} = {v!r}" for k, v in meaning.items()) + f"; coordinates: {kind}"
    if by_end:
        text += f"; {by_end} names matched the end of a path"
    repeated = len(rows) - len(sheet.first_rows)
    if repeated:
        text += f"; {repeated} rows repeat an image and are ignored"
    if not ask(text):
        raise KappaPlaceError("The guessed columns were declined. Name them with columns=path=…,lat=…,lon=….")
    return sheet


def sheet_table(sheet: Sheet, root: Path, frame: str, radius: float) -> PlaceImages:
    """Build the table of a CSV file; rows that repeat an image are parsed too, so that no error is hidden.

    Args:
        sheet: The CSV file.
        root: Folder of the images.
        frame: Frame of UTM coordinates.
        radius: Distance in metres within which a reference is a positive.

    Returns:
        The table.
    """
    positions, own_frame = _positions(sheet, frame)
    place, time = sheet.column("place", str), sheet.column("timestamp", str)
    columns: dict[str, npt.ArrayLike | None] = {
        "heading": sheet.column("heading", number),
        "timestamp": None if time is None else unix_times(time),
        "place": None if place is None else labels(place),
        "condition": sheet.column("condition", str),
        "is_query": sheet.column("query", is_query),
        "accuracy": sheet.column("accuracy", number),
    }
    first = sheet.first_rows
    return PlaceImages.create(
        [sheet.paths[row] for row in first],
        None if positions is None else positions[first],
        **{name: None if values is None else np.array(values)[first] for name, values in columns.items()},
        root=root,
        frame=own_frame,
        name=root.name,
        radius=radius,
    )


def _positions(sheet: Sheet, frame: str) -> tuple[NDArray[np.float64] | None, str]:
    def pair(a: str, b: str) -> NDArray[np.float64]:
        return np.column_stack([np.array(sheet.column(m, number), dtype=np.float64) for m in (a, b)])

    if sheet.kind == LATLON:
        return project(*pair("lat", "lon").T)
    if sheet.kind == PAIR:
        return project(*np.array(sheet.column("latlon", _degrees), dtype=np.float64).T)
    if sheet.kind == UTM:
        if not frame:
            raise KappaPlaceError("UTM coordinates need their zone. Pass it as in frame=EPSG:32610.")
        return pair("east", "north"), frame
    if sheet.kind == LOCAL:
        return pair("x", "y"), frame or "local"
    return None, "local"


def _degrees(cell: str) -> tuple[float, float]:
    match = _PAIR.fullmatch(cell)
    if cell and not match:
        raise ValueError(
            f"{cell!r} must be a latitude and longitude (exclude the column with columns=latlon=)"
        )
    return (float(match[1]), float(match[2])) if match else (np.nan, np.nan)


def is_query(cell: str) -> bool:
    """Return whether a cell marks a query; an empty cell marks a reference.

    >>> is_query("Query"), is_query("0")
    (True, False)
    """
    word = cell.lower()
    if word not in _QUERY | _REFERENCE:
        raise ValueError(
            f"{cell!r} must be query, reference, 1 or 0 (exclude the column with columns=query=)"
        )
    return word in _QUERY


def _match_images(root: Path, rows: list[Row], column: str, file: Path) -> tuple[list[str], int]:
    """Return the names of the CSV file as paths below the folder, and how many matched only an end of a path.

    A name can be a path below ``root``, or the end of the path of exactly one image. It can also be a path
    through a folder with the name of ``root``, for example on another disk. Folders in a name always count:
    cam2/z.jpg is not cam1/z.jpg.
    """
    images = list_images(root)
    present = set(images)
    ends = _ends(images)
    own_name = root.resolve().name
    paths, by_end = [], 0
    for row in rows:
        written = row[column].strip()
        name = posixpath.normpath(written.replace("\\", "/")) if written else ""
        path = name if name in present else ends.get(name) or _below(own_name, name, present)
        if not path:
            raise KappaPlaceError(
                f"{file} line {row.line}: {written!r} must name exactly one image below {root}."
            )
        by_end += path != name
        paths.append(path)
    return paths, by_end


def _ends(images: list[str]) -> dict[str, str]:
    """Map every end of a path, folder by folder, to its image; empty if two images share it."""
    ends: dict[str, str] = {}
    for image in images:
        rest = image
        while "/" in rest:
            rest = rest.partition("/")[2]
            ends[rest] = "" if rest in ends else image
    return ends


def _below(folder: str, name: str, present: set[str]) -> str:
    """Return the part of a name after the name of the folder, if exactly one such part is an image."""
    parts = name.split("/")
    rests = {"/".join(parts[i + 1 :]) for i, part in enumerate(parts) if part == folder} & present
    return rests.pop() if len(rests) == 1 else ""


READER = Reader(
    "csv", "a folder of images and a CSV file with lat/lon, UTM or x/y; columns are guessed and shown", read
)
