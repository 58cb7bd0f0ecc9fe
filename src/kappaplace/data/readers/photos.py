"""Your own photos: positions, directions and times out of EXIF; a CSV may place photos without GPS."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from kappaplace.data.geodesy import project
from kappaplace.data.place_images import DEFAULT_RADIUS, PlaceImages
from kappaplace.data.readers.layout import Reader, existing_folder, images_or_error, unix_time
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
    max_accuracy: float = MAX_ACCURACY,
    radius: float = DEFAULT_RADIUS,
) -> PlaceImages:
    """All photos below ``folder``; those below its subfolder ``queries`` are queries.

    The stated GPS accuracy widens the radius of positives; a photo whose accuracy is worse than
    ``max_accuracy`` is kept as unposed.
    """
    root = existing_folder(folder)
    paths = images_or_error(root)
    if queries and not (root / queries).is_dir():
        raise KappaPlaceError(f"{root} has no subfolder {queries!r} for the queries.")
    if any(path.lower().endswith((".heic", ".heif")) for path in paths):
        _enable_heic()
    poses = []
    with track("Reading EXIF", len(paths)) as bar:
        for path in paths:
            poses.append(read_pose(root / path))
            bar.advance()
    columns = np.array(poses, dtype=np.float64).reshape(-1, len(PhotoPose._fields))
    lat, lon, heading, accuracy, timestamp = columns.T
    vague = accuracy > max_accuracy
    lat, lon, accuracy = (np.where(vague, np.nan, c) for c in (lat, lon, accuracy))
    if csv:
        return _placed_by_csv(root, paths, csv, queries, radius, (lat, lon, heading, accuracy, timestamp))
    positions, frame = project(lat, lon)
    return PlaceImages.create(
        paths,
        positions,
        heading=heading,
        timestamp=timestamp,
        condition=[path.rpartition("/")[0] for path in paths],
        is_query=_roles(paths, queries),
        accuracy=accuracy if np.isfinite(accuracy).any() else None,
        root=root,
        frame=frame,
        name=root.name,
        radius=radius,
    )


def read_pose(file: Path) -> PhotoPose:
    """Position, direction, accuracy and time of one photo."""
    try:
        with Image.open(file) as image:
            exif = image.getexif()
            gps = dict(exif.get_ifd(_GPS_IFD))
            details = dict(exif.get_ifd(_EXIF_IFD))
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise KappaPlaceError(f"{file} cannot be read as an image ({error}): remove or repair it.") from None
    lat, lon = _degrees(gps.get(2), gps.get(1)), _degrees(gps.get(4), gps.get(3))
    if not (np.isfinite(lat) and np.isfinite(lon)) or (
        lat == 0 and lon == 0
    ):  # cameras write 0, 0 for no fix
        lat = lon = float("nan")
    return PhotoPose(lat, lon, _number(gps.get(17)), _number(gps.get(31)), _time(exif, details, gps))


def _placed_by_csv(
    root: Path, paths: list[str], csv: str, queries: str, radius: float, exif: tuple[Any, ...]
) -> PlaceImages:
    """EXIF first, then the rows of the CSV for the photos it names; both in one frame."""
    from kappaplace.data.readers.csv_folder import read as read_csv

    given = read_csv(root, csv=csv)
    lat, lon, heading, accuracy, timestamp = exif
    row_of = {path: row for row, path in enumerate(given.paths.tolist())}
    rows = np.array([row_of.get(path, -1) for path in paths])
    placed = (rows >= 0) & given.posed[rows]
    positions, frame = project(np.where(placed, np.nan, lat), np.where(placed, np.nan, lon))
    if placed.any() and np.isfinite(positions).any() and given.frame != frame:
        raise KappaPlaceError(
            f"{csv} places photos in the frame {given.frame} but others have GPS in {frame}: "
            "give latitude and longitude in the CSV, or keep the two sets apart."
        )
    positions[placed] = given.positions[rows[placed]]
    known = placed & np.isfinite(given.heading[rows])
    heading[known] = given.heading[rows[known]]
    accuracy[placed] = np.nan
    return PlaceImages.create(
        paths,
        positions,
        heading=heading,
        timestamp=timestamp,
        condition=[path.rpartition("/")[0] for path in paths],
        is_query=_roles(paths, queries),
        accuracy=accuracy if np.isfinite(accuracy).any() else None,
        root=root,
        frame=given.frame if placed.any() else frame,
        name=root.name,
        radius=radius,
    )


def _roles(paths: list[str], queries: str) -> list[bool]:
    return [bool(queries) and path.startswith(queries.rstrip("/") + "/") for path in paths]


def _enable_heic() -> None:
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise KappaPlaceError(
            "HEIC photos need one more package: pip install 'kappaplace[heic]', or convert them to JPEG."
        ) from None
    register_heif_opener()


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
    "a folder of photos with GPS and direction in EXIF (JPEG, PNG, WebP, HEIC)",
    read,
    {
        "queries": "subfolder whose photos are queries (none)",
        "csv": "CSV that places photos without GPS: path and lat/lon, UTM or x/y",
        "max_accuracy": "metres; photos with a worse stated accuracy count as unposed (100)",
        "radius": "metres within which a reference is a positive, before the accuracy is added (25)",
    },
    extra="heic",
)
