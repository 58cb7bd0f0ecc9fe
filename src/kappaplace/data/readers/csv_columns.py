"""What the columns of a CSV of your own mean: guessed by name, overruled by ``columns=…``."""

from __future__ import annotations

import re
from pathlib import Path

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
