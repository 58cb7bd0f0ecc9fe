"""Your own photos: positions, directions and times out of EXIF; a CSV may place photos without GPS."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.geodesy import project
from kappaplace.data.images import open_image
from kappaplace.data.readers.csv_folder import Ask, open_sheet, sheet_table
from kappaplace.data.readers.layout import Reader, existing_folder, images_or_error
from kappaplace.data.readers.text import unix_time
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.progress import track

MAX_ACCURACY = 100.0  # metres; a worse fix says nothing about the place and counts as none
_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825


class PhotoPose(NamedTuple):
    """What EXIF says of one photo; NaN where it says nothing."""

    latitude: float = float("nan")
    longitude: float = float("nan")
    heading: float = float("nan")
    accuracy: float = float("nan")
    timestamp: float = float("nan")


def read(
    folder: str | Path,
    *,
    queries: str = "",
    csv: str = "",
    columns: str = "",
    frame: str = "",
    max_accuracy: float = MAX_ACCURACY,
    radius: float = DEFAULT_RADIUS,
    ask: Ask = lambda text: True,
) -> PlaceImages:
    """All photos below ``folder``; those below its subfolder ``queries`` are queries.

    The stated GPS accuracy widens the radius of positives; a photo whose accuracy is worse than
    ``max_accuracy`` is kept as unposed. What ``csv`` says of a photo comes before its EXIF; ``columns`` and
    ``frame`` are those of the layout csv.
    """
    root = existing_folder(folder)
    paths = images_or_error(root)
    known: dict[str, Any] = {
        "condition": np.array([path.rpartition("/")[0] for path in paths], dtype=np.dtypes.StringDType()),
        "is_query": _roles(root, paths, queries),
    }
    lat, lon, known["heading"], accuracy, known["timestamp"] = _exif(root, paths).T
    vague = accuracy > max_accuracy
    lat, lon, known["accuracy"] = (np.where(vague, np.nan, c) for c in (lat, lon, accuracy))
    if csv:
        sheet = open_sheet(root, csv, columns, ask)
        given = sheet_table(sheet, root, frame, radius)
        words = np.array(sheet.parsed("query", str) or [""] * len(sheet.rows))[sheet.first_rows]
        positions, own_frame, known = _placed_by(given, words != "", paths, (lat, lon), known)
    else:
        positions, own_frame = project(lat, lon)
    if not np.isfinite(known["accuracy"]).any():
        known["accuracy"] = None
    return PlaceImages.create(
        paths, positions, **known, root=root, frame=own_frame, name=root.name, radius=radius
    )


def _exif(root: Path, paths: list[str]) -> NDArray[np.float64]:
    poses = []
    with track("Reading EXIF", len(paths)) as bar:
        for path in paths:
            poses.append(read_pose(root / path))
            bar.advance()
    return np.array(poses, dtype=np.float64).reshape(-1, len(PhotoPose._fields))


def read_pose(file: Path) -> PhotoPose:
    """Position, direction, accuracy and time of one photo."""
    try:
        with open_image(file) as image:
            exif = image.getexif()
            gps = dict(exif.get_ifd(_GPS_IFD))
            details = dict(exif.get_ifd(_EXIF_IFD))
    except KappaPlaceError:
        raise
    except Exception as error:  # damaged headers raise many types (struct, Syntax, Value, OS errors ...)
        raise KappaPlaceError(f"{file} cannot be read as an image ({error}): remove or repair it.") from None
    lat, lon = _degrees(gps.get(2), gps.get(1)), _degrees(gps.get(4), gps.get(3))
    nowhere = lat == 0 and lon == 0  # cameras write 0, 0 for no fix
    if nowhere or not (np.isfinite(lat) and np.isfinite(lon)):
        lat = lon = float("nan")
    return PhotoPose(lat, lon, _number(gps.get(17)), _number(gps.get(31)), _time(exif, details, gps))


def _placed_by(
    given: PlaceImages,
    with_role: NDArray[np.bool_],
    paths: list[str],
    degrees: tuple[NDArray[Any], NDArray[Any]],
    known: dict[str, Any],
) -> tuple[NDArray[np.float64], str, dict[str, Any]]:
    """EXIF and folders, overruled by what the CSV's table says of the photos it names; all in one frame.

    ``with_role`` marks the rows of the table whose role the CSV states; an empty cell leaves it to folders.
    """
    row_of = {path: row for row, path in enumerate(given.paths.tolist())}
    rows = np.array([row_of.get(path, -1) for path in paths])
    named = rows >= 0
    placed = named & given.posed[rows]
    positions, frame = project(*(np.where(placed, np.nan, part) for part in degrees))
    if placed.any() and np.isfinite(positions).any() and given.frame != frame:
        raise KappaPlaceError(
            f"The CSV places photos in the frame {given.frame} but others have GPS in {frame}: "
            "give latitude and longitude in the CSV, or keep the two sets apart."
        )
    positions[placed] = given.positions[rows[placed]]
    said = dict(known)
    for column in ("heading", "timestamp"):
        stated = getattr(given, column)[rows]
        said[column] = np.where(named & np.isfinite(stated), stated, known[column])
    accuracy = np.full(len(paths), np.nan) if given.accuracy is None else given.accuracy[rows]
    # The accuracy of a GPS fix says nothing of a position that the CSV gives.
    said["accuracy"] = np.where(placed | (named & np.isfinite(accuracy)), accuracy, known["accuracy"])
    said["place"] = np.where(named, given.place[rows], -1)
    condition = given.condition[rows]
    said["condition"] = np.where(named & (condition != ""), condition, known["condition"])
    said["is_query"] = np.where(named & with_role[rows], given.is_query[rows], known["is_query"])
    return positions, given.frame if placed.any() else frame, said


def _roles(root: Path, paths: list[str], queries: str) -> NDArray[np.bool_]:
    """Which photos lie below the folder of queries, however it is written (./walk2, walk2/, a full path)."""
    if not queries:
        return np.zeros(len(paths), dtype=bool)
    if not (root / queries).is_dir():
        raise KappaPlaceError(f"{root} has no subfolder {queries!r} for the queries.")
    below = Path(os.path.relpath(root / queries, root))  # by name first: the subfolder may be a link
    if ".." in below.parts and (root / queries).resolve().is_relative_to(root.resolve()):
        below = (root / queries).resolve().relative_to(root.resolve())
    head = "" if below == Path() else below.as_posix() + "/"
    roles = np.array([path.startswith(head) for path in paths])
    if not roles.any():
        raise KappaPlaceError(f"{root / queries} holds no photo of {root}, so there would be no query.")
    return roles


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return float("nan")


def _degrees(value: Any, side: Any) -> float:
    """Degrees, minutes, seconds and N/S/E/W → signed degrees."""
    try:
        parts = [_number(v) for v in value]
    except TypeError:
        return float("nan")
    degrees = sum(part / 60**power for power, part in enumerate(parts))
    return -degrees if str(side or "").strip("\0 ").upper() in ("S", "W") else degrees


def _time(exif: Any, details: dict[int, Any], gps: dict[int, Any]) -> float:
    """The camera's clock with its zone if it states one; else GPS time (UTC); else the clock as it is."""
    taken = str(details.get(36867) or exif.get(306) or "").strip("\0 ")
    zone = str(details.get(36881) or "").strip("\0 ")
    if taken and re.fullmatch(r"[+-]\d{2}:\d{2}", zone):
        return unix_time(taken + zone)
    if gps.get(29) and gps.get(7):
        hours, minutes, seconds = ([_number(v) for v in gps[7]] + [0.0, 0.0, 0.0])[:3]
        return unix_time(str(gps[29]).strip("\0 ")) + hours * 3600 + minutes * 60 + seconds
    return unix_time(taken)


READER = Reader(
    "photos",
    "a folder of photos with GPS and direction in EXIF (JPEG, PNG, WebP; extra heic for HEIC files)",
    read,
    {
        "queries": "subfolder whose photos are queries (none)",
        "csv": "CSV that places photos without GPS: path and lat/lon, UTM or x/y, and what else it says",
        "columns": "what the guess of the CSV's columns gets wrong, as in the layout csv",
        "frame": "frame of UTM coordinates in the CSV, e.g. EPSG:32610",
        "max_accuracy": "metres; photos with a worse stated accuracy count as unposed (100)",
        "radius": "metres within which a reference is a positive, before the accuracy is added (25)",
    },
)
