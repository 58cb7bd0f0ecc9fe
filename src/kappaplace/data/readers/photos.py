"""Your own photos: positions, directions and times from EXIF; a CSV file can place photos without GPS."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.geodesy import project
from kappaplace.data.images import open_image
from kappaplace.data.readers.csv_folder import Ask, open_sheet, sheet_table
from kappaplace.data.readers.layout import Reader, check_folder, images_or_error, unix_time
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.progress import track

MAX_ACCURACY = 100.0  # metres; a GPS position with a worse accuracy is ignored
_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_Columns = dict[str, NDArray[np.generic]]


class PhotoPose(NamedTuple):
    """EXIF data of one photo; NaN for missing values."""

    latitude: float = float("nan")
    longitude: float = float("nan")
    heading: float = float("nan")
    accuracy: float = float("nan")
    timestamp: float = float("nan")
    clock: float = float("nan")
    """Time of the camera's clock, without its zone: the same for all photos of a trip."""


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
    """Read all photos below a folder. The GPS accuracy in EXIF widens the radius of positives.

    Args:
        folder: The folder.
        queries: Subfolder whose photos are queries. Default: no queries.
        csv: CSV file that places photos without GPS and replaces EXIF data. Default: none.
        columns: Columns of the CSV file that replace guesses, as in the layout csv.
        frame: Frame of UTM coordinates in the CSV file, such as EPSG:32610.
        max_accuracy: Worst GPS accuracy in metres; less accurate photos have no position. Default: 100.
        radius: Distance in metres within which a reference is a positive, before the accuracy is added.
            Default: 25.
        ask: Function that confirms the guessed columns. Default: accept them.

    Returns:
        The table.
    """
    root = check_folder(folder)
    paths = images_or_error(root)
    lat, lon, heading, accuracy, timestamp, _ = _exif(root, paths).T
    vague = accuracy > max_accuracy
    lat, lon, accuracy = (np.where(vague, np.nan, values) for values in (lat, lon, accuracy))
    folders = np.array([path.rpartition("/")[0] for path in paths], dtype=np.dtypes.StringDType())
    data: _Columns = {"heading": heading, "timestamp": timestamp, "accuracy": accuracy}
    data |= {"condition": folders, "is_query": _roles(root, paths, queries)}
    if csv:
        sheet = open_sheet(root, csv, columns, ask)
        table = sheet_table(sheet, root, frame, radius)
        roles = np.array(sheet.column("query", str) or [""] * len(sheet.rows))[sheet.first_rows]
        positions, own_frame, data = _placed_by(table, roles != "", paths, (lat, lon), data)
    else:
        positions, own_frame = project(lat, lon)
    if not np.isfinite(np.asarray(data["accuracy"], np.float64)).any():
        del data["accuracy"]
    return PlaceImages.create(
        paths, positions, **data, root=root, frame=own_frame, name=root.name, radius=radius
    )


def _exif(root: Path, paths: list[str]) -> NDArray[np.float64]:
    poses = []
    with track("Reading EXIF", len(paths)) as bar:
        for path in paths:
            poses.append(read_pose(root / path))
            bar.advance()
    return np.array(poses, dtype=np.float64).reshape(-1, len(PhotoPose._fields))


def read_pose(file: Path) -> PhotoPose:
    """Return position, direction, accuracy and time of one photo."""
    try:
        with open_image(file) as image:
            exif = image.getexif()
            gps = dict(exif.get_ifd(_GPS_IFD))
            details = dict(exif.get_ifd(_EXIF_IFD))
    except KappaPlaceError:
        raise
    except Exception as error:  # damaged headers raise many types (struct, Syntax, Value, OS errors ...)
        raise KappaPlaceError(f"{file} cannot be read as an image ({error}). Remove or repair it.") from None
    lat, lon = _degrees(gps.get(2), gps.get(1)), _degrees(gps.get(4), gps.get(3))
    no_fix = lat == 0 and lon == 0  # cameras write 0, 0 without a GPS position
    if no_fix or not (np.isfinite(lat) and np.isfinite(lon)):
        lat = lon = float("nan")
    elif abs(lat) > 84 or abs(lon) > 180:
        raise KappaPlaceError(
            f"{file} has the EXIF position {lat:g}, {lon:g}, outside UTM (±84°, ±180°). Correct it."
        )
    taken, zone = _text(details.get(36867) or exif.get(306)), _text(details.get(36881))
    time = local = unix_time(taken)
    clock = _numbers(gps.get(7))
    if taken and re.fullmatch(r"[+-]\d{2}:\d{2}", zone):
        time = unix_time(taken + zone)
    elif gps.get(29) and clock:  # GPS time (UTC) is better than a clock without a time zone
        hours, minutes, seconds = [*clock, 0.0, 0.0][:3]
        time = unix_time(_text(gps[29])) + hours * 3600 + minutes * 60 + seconds
    facts = (_number(gps.get(17)), _number(gps.get(31)), time, local)
    return PhotoPose(lat, lon, *(value if np.isfinite(value) else float("nan") for value in facts))


def _placed_by(
    table: PlaceImages,
    has_role: NDArray[np.bool_],
    paths: list[str],
    degrees: tuple[NDArray[np.float64], NDArray[np.float64]],
    data: _Columns,
) -> tuple[NDArray[np.float64], str, _Columns]:
    """Replace data from EXIF and folders by the CSV file's table for the photos that it names.

    ``has_role`` marks the rows of the table with a role in the CSV file; otherwise the folder decides.
    """
    row_of = {path: row for row, path in enumerate(table.paths.tolist())}
    rows = np.array([row_of.get(path, -1) for path in paths])
    named = rows >= 0
    placed = named & table.posed[rows]
    positions, frame = project(*(np.where(placed, np.nan, part) for part in degrees))
    if placed.any() and np.isfinite(positions).any() and table.frame != frame:
        raise KappaPlaceError(
            f"The CSV file places photos in the frame {table.frame} but other photos have GPS in {frame}. "
            "Use latitude and longitude in the CSV file, or put the photos into separate datasets."
        )
    positions[placed] = table.positions[rows[placed]]

    def replaced(name: str, values: NDArray[np.generic], mask: NDArray[np.bool_]) -> NDArray[np.generic]:
        return np.where(named & mask, values, data[name])

    heading, timestamp, condition = table.heading[rows], table.timestamp[rows], table.condition[rows]
    accuracy = np.full(len(paths), np.nan) if table.accuracy is None else table.accuracy[rows]
    return (
        positions,
        table.frame if placed.any() else frame,
        {
            "heading": replaced("heading", heading, np.isfinite(heading)),
            "timestamp": replaced("timestamp", timestamp, np.isfinite(timestamp)),
            # The accuracy of a GPS fix does not apply to a position from the CSV file.
            "accuracy": replaced("accuracy", accuracy, placed | np.isfinite(accuracy)),
            "place": np.where(named, table.place[rows], -1),
            "condition": replaced("condition", condition, condition != ""),
            "is_query": replaced("is_query", table.is_query[rows], has_role[rows]),
        },
    )


def _roles(root: Path, paths: list[str], queries: str) -> NDArray[np.bool_]:
    """Mark the photos below the query folder, however its path is written (./walk2, walk2/, a full path)."""
    if not queries:
        return np.zeros(len(paths), dtype=bool)
    if not (root / queries).is_dir():
        raise KappaPlaceError(f"{root} has no subfolder {queries!r} for the queries. Check its name.")
    below = Path(os.path.relpath(root / queries, root))  # by name first: the subfolder may be a link
    if ".." in below.parts and (root / queries).resolve().is_relative_to(root.resolve()):
        below = (root / queries).resolve().relative_to(root.resolve())
    head = "" if below == Path() else below.as_posix() + "/"
    roles = np.array([path.startswith(head) for path in paths])
    if not roles.any():
        raise KappaPlaceError(f"{root / queries} contains no photo of {root}. Choose another subfolder.")
    return roles


def _text(value: str | bytes | None) -> str:
    return str(value or "").strip("\0 ")


def _number(value: SupportsFloat | str | None) -> float:
    try:
        return float("nan" if value is None else value)
    except (TypeError, ValueError, ArithmeticError):
        return float("nan")


def _numbers(value: object) -> list[float]:
    """Return the one to three numbers of a value; nothing for longer values, which damaged files contain."""
    parts = value if isinstance(value, tuple | list) else () if value is None else (value,)
    return [_number(part) for part in parts] if len(parts) <= 3 else []


def _degrees(value: object, side: str | bytes | None) -> float:
    """Return degrees, minutes, seconds and N/S/E/W as signed degrees."""
    parts = _numbers(value)
    degrees = sum(part / 60**power for power, part in enumerate(parts)) if parts else float("nan")
    return -degrees if _text(side).upper() in ("S", "W") else degrees


READER = Reader(
    "photos",
    "a folder of photos with GPS and direction in EXIF (JPEG, PNG, WebP; extra heic for HEIC files)",
    read,
)
