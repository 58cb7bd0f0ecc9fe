"""A folder of images plus a CSV of your own: columns are guessed by name, shown, and can be named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.geodesy import project
from kappaplace.data.place_images import DEFAULT_RADIUS, PlaceImages
from kappaplace.data.readers.layout import (
    Reader,
    existing_folder,
    labels,
    list_images,
    number,
    read_rows,
    unix_time,
)
from kappaplace.errors import KappaPlaceError

# Meaning → names that a column may have, best first; compared in lower case without blanks and dashes.
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
    "accuracy": ("accuracy", "gpsaccuracy", "hacc", "hdop"),
}
_PAIR = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*[;, ]\s*(-?\d+(?:\.\d+)?)\s*")


def guess_columns(header: list[str]) -> dict[str, str]:
    """Meaning → column of the file.

    >>> guess_columns(["File name", "LATITUDE", "lon", "remark"])
    {'path': 'File name', 'lat': 'LATITUDE', 'lon': 'lon'}
    """
    plain = {re.sub(r"[\s_\-.]", "", name.lower()): name for name in reversed(header)}
    found = {key: plain[n] for key, names in NAMES.items() for n in reversed(names) if n in plain}
    return {key: found[key] for key in NAMES if key in found}


def read(
    folder: str | Path,
    *,
    csv: str = "",
    columns: str = "",
    frame: str = "",
    radius: float = DEFAULT_RADIUS,
    ask: Callable[[str], bool] = lambda text: True,
) -> PlaceImages:
    """Read ``csv``; ``columns="path=file,lat=Y,lon=X"`` overrides the guess; every row needs its image."""
    root = existing_folder(folder)
    file = _csv_file(root, csv)
    rows = read_rows(file)
    if not rows:
        raise KappaPlaceError(f"{file} holds no row.")
    meaning = guess_columns(list(rows[0])) | _named(columns, rows[0], file)
    if "path" not in meaning:
        raise KappaPlaceError(
            f"{file} has no column of file names among {', '.join(rows[0])}: name it with columns=path=…."
        )
    kind = _coordinate_kind(meaning)
    used = {k: v for k, v in meaning.items() if k not in _OTHER_COORDINATES[kind]}
    paths = _found(root, [(row[used["path"]] or "").strip() for row in rows], file)
    first = sorted({path: row for row, path in reversed(list(enumerate(paths)))}.values())
    text = "Columns: " + ", ".join(f"{k} = {v!r}" for k, v in used.items()) + f"; coordinates: {kind}"
    if len(first) < len(rows):
        text += f"; {len(rows) - len(first)} rows repeat an image and are left out"
    if not ask(text):
        raise KappaPlaceError("The guess was declined: name the columns with columns=path=…,lat=…,lon=….")
    rows, paths = [rows[i] for i in first], [paths[i] for i in first]
    positions, own_frame = _positions(rows, used, kind, frame)
    cells = {key: [(row[name] or "").strip() for row in rows] for key, name in used.items()}
    accuracy = np.array([number(c) for c in cells["accuracy"]]) if "accuracy" in cells else None
    return PlaceImages.create(
        paths,
        positions,
        heading=[number(c) for c in cells["heading"]] if "heading" in cells else None,
        timestamp=[unix_time(c) for c in cells["timestamp"]] if "timestamp" in cells else None,
        place=labels(cells["place"]) if "place" in cells else None,
        condition=cells.get("condition"),
        is_query=[_is_query(c) for c in cells["query"]] if "query" in cells else None,
        accuracy=accuracy,
        root=root,
        frame=own_frame,
        name=root.name,
        radius=radius,
    )


_OTHER_COORDINATES = {
    "latitude and longitude": {"east", "north", "x", "y", "latlon"},
    "one column of latitude and longitude": {"east", "north", "x", "y", "lat", "lon"},
    "UTM": {"lat", "lon", "x", "y", "latlon"},
    "local x and y in metres": {"lat", "lon", "east", "north", "latlon"},
    "none, images stay unposed": set(),
}


def _csv_file(root: Path, csv: str) -> Path:
    if csv:
        file = Path(csv) if Path(csv).is_file() else root / csv
        if not file.is_file():
            raise KappaPlaceError(f"There is no file {csv}, neither here nor in {root}.")
        return file
    found = sorted(root.glob("*.csv"))
    if len(found) != 1:
        names = ", ".join(f.name for f in found) or "none"
        raise KappaPlaceError(f"{root} must hold one CSV file but holds {names}: choose with csv=….")
    return found[0]


def _named(columns: str, row: dict[str, str], file: Path) -> dict[str, str]:
    named = dict(part.split("=", 1) for part in columns.split(",") if "=" in part)
    for meaning, column in named.items():
        if meaning not in NAMES or column not in row:
            raise KappaPlaceError(
                f"columns={meaning}={column}: meanings are {', '.join(NAMES)}; {file} has {', '.join(row)}."
            )
    return named


def _coordinate_kind(meaning: dict[str, str]) -> str:
    for pair, kind in (
        (("lat", "lon"), "latitude and longitude"),
        (("east", "north"), "UTM"),
        (("latlon", "latlon"), "one column of latitude and longitude"),
        (("x", "y"), "local x and y in metres"),
    ):
        if pair[0] in meaning and pair[1] in meaning:
            return kind
    return "none, images stay unposed"


def _positions(
    rows: list[dict[str, str]], used: dict[str, str], kind: str, frame: str
) -> tuple[NDArray[np.float64] | None, str]:
    def pair(a: str, b: str) -> NDArray[np.float64]:
        return np.array([[number(row[used[a]]), number(row[used[b]])] for row in rows])

    if kind == "latitude and longitude":
        return project(*pair("lat", "lon").T)
    if kind == "one column of latitude and longitude":
        matches = [_PAIR.fullmatch(row[used["latlon"]] or "") for row in rows]
        degrees = np.array([[float(m[1]), float(m[2])] if m else [np.nan, np.nan] for m in matches])
        return project(*degrees.T)
    if kind == "UTM":
        if not frame:
            raise KappaPlaceError(
                "UTM coordinates need their zone: give frame=EPSG:32610 (326 north, 327 south, zone)."
            )
        return pair("east", "north"), frame
    if kind == "local x and y in metres":
        return pair("x", "y"), frame or "local"
    return None, "local"


def _found(root: Path, names: list[str], file: Path) -> list[str]:
    """Names of the CSV as paths below the folder: as written, or by file name wherever the image lies."""
    images = list_images(root)
    present = set(images)
    by_name: dict[str, Any] = {}
    for image in images:
        by_name[image.rpartition("/")[2]] = None if image.rpartition("/")[2] in by_name else image
    paths = []
    for row, name in enumerate(names):
        name = name.replace("\\", "/").removeprefix("./")
        path = name if name in present else by_name.get(name.rpartition("/")[2])
        if path is None:
            raise KappaPlaceError(f"{file} row {row + 1}: there is no single image {name!r} below {root}.")
        paths.append(path)
    return paths


def _is_query(cell: str) -> bool:
    return cell.lower() in ("1", "true", "yes", "q", "query", "queries", "test")


READER = Reader(
    "csv",
    "a folder of images plus a CSV with lat/lon, UTM or x/y; columns are guessed and shown",
    read,
    {
        "csv": "the CSV file (default: the only one in the folder)",
        "columns": "what the guess gets wrong: path=file,lat=Y,lon=X,heading=…,place=…,condition=…,query=…",
        "frame": "frame of UTM coordinates, e.g. EPSG:32610",
        "radius": "metres within which a reference is a positive (25)",
    },
)
