"""Photos as a phone takes them, of a synthetic district: JPEG with GPS in their EXIF, or with a time only."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.geodesy import unproject
from kappaplace_city import SyntheticCity

FRAME = "EPSG:32610"
START = 1_760_000_000
"""Time of the first photo without GPS."""


def write_photos(folder: Path, *, size: int = 128, spacing: float = 10.0, queries: int = 100) -> None:
    """``photos/`` on a walk, ``drive/`` somewhere between them later, and one of those as ``query.jpg``.

    ``holiday/`` has photos of the same district, and some of another one, with a time but without GPS.
    """
    city = SyntheticCity(0, (1, 1))
    views = city.views("val", spacing=spacing, queries=queries, query_strength=0.15, seed=0)
    latitude, longitude = unproject(views.positions, FRAME)
    for name in ("photos", "drive"):
        (folder / name).mkdir(parents=True)
    for row, picture in enumerate(views.render(size)):
        image = Image.fromarray(np.asarray(picture))
        name = "drive" if views.is_query[row] else "photos"
        exif = exif_of(float(latitude[row]), float(longitude[row]), float(views.heading[row]))
        image.save(folder / name / f"{row:04d}.jpg", exif=exif, quality=95)
    next(iter(sorted((folder / "drive").iterdir()))).rename(folder / "query.jpg")
    (folder / "holiday").mkdir()
    for day, (other, split, count) in enumerate(((city, "val", 30), (SyntheticCity(5, (1, 1)), "test", 6))):
        trip = other.views(split, spacing=30.0, queries=count, query_strength=0.15, seed=1)
        for row, picture in enumerate(trip.render(size)):
            if trip.is_query[row]:
                exif = exif_of(time=START + 86_400 * day + 300 * row)
                image = Image.fromarray(np.asarray(picture))
                image.save(folder / "holiday" / f"IMG_{day + 1}{row:03d}.jpg", exif=exif, quality=95)


def write_walk(file: Path, *, size: int = 128, step: float = 3.0, fps: float = 2.0) -> None:
    """A video of a walk along a street of the district of `write_photos`, half a second per frame."""
    cv2 = pytest.importorskip("cv2")
    city = SyntheticCity(0, (1, 1))
    views = city.views("val", spacing=step, queries=2, seed=0)
    street = views.positions[:, 1].round(1)
    lines, counts = np.unique(street[~views.is_query], return_counts=True)
    rows = np.flatnonzero((street == lines[counts.argmax()]) & ~views.is_query)
    heading = views.heading[rows]
    usual = np.unique(heading.round(), return_counts=True)
    rows = rows[np.abs(heading - usual[0][usual[1].argmax()]) < 1.0]
    rows = rows[np.argsort(views.positions[rows, 0])]
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter_fourcc(*"mp4v"), fps, (size, size))
    for picture in views.select(rows).render(size):
        writer.write(np.ascontiguousarray(np.asarray(picture)[:, :, ::-1]))
    writer.release()


def exif_of(
    latitude: float | None = None, longitude: float = 0.0, heading: float = 0.0, time: float | None = None
) -> Image.Exif:
    """EXIF of a photo: with GPS if it has a latitude, and with the clock of the camera in seconds."""
    data = Image.Exif()
    data[271] = "camera"
    if time is not None:
        taken = datetime.fromtimestamp(time, timezone.utc)
        data.get_ifd(0x8769)[36867] = taken.strftime("%Y:%m:%d %H:%M:%S")
    if latitude is not None:
        gps = data.get_ifd(0x8825)
        gps[1], gps[2] = "N" if latitude >= 0 else "S", _degrees(latitude)
        gps[3], gps[4] = "E" if longitude >= 0 else "W", _degrees(longitude)
        gps[16], gps[17] = "T", heading % 360.0
    return data


def _degrees(value: float) -> tuple[float, float, float]:
    whole, rest = divmod(abs(value), 1.0)
    minutes, seconds = divmod(rest * 60.0, 1.0)
    return whole, minutes, seconds * 60.0
