"""Photos as a phone takes them, of a synthetic district: JPEG with GPS in their EXIF."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from kappaplace.data.geodesy import unproject
from kappaplace_city import SyntheticCity

FRAME = "EPSG:32610"


def write_photos(folder: Path, *, size: int = 128, spacing: float = 10.0, queries: int = 100) -> None:
    """``photos/`` on a walk, ``drive/`` somewhere between them later, and one of those as ``query.jpg``."""
    city = SyntheticCity(0, (1, 1))
    views = city.views("val", spacing=spacing, queries=queries, query_strength=0.15, seed=0)
    latitude, longitude = unproject(views.positions, FRAME)
    for name in ("photos", "drive"):
        (folder / name).mkdir(parents=True)
    for row, picture in enumerate(views.render(size)):
        image = Image.fromarray(np.asarray(picture))
        name = "drive" if views.is_query[row] else "photos"
        exif = _gps(float(latitude[row]), float(longitude[row]), float(views.heading[row]))
        image.save(folder / name / f"{row:04d}.jpg", exif=exif, quality=95)
    next(iter(sorted((folder / "drive").iterdir()))).rename(folder / "query.jpg")


def _gps(latitude: float, longitude: float, heading: float) -> Image.Exif:
    data = Image.Exif()
    data[271] = "camera"
    gps = data.get_ifd(0x8825)
    gps[1], gps[2] = "N" if latitude >= 0 else "S", _degrees(latitude)
    gps[3], gps[4] = "E" if longitude >= 0 else "W", _degrees(longitude)
    gps[16], gps[17] = "T", heading % 360.0
    return data


def _degrees(value: float) -> tuple[float, float, float]:
    whole, rest = divmod(abs(value), 1.0)
    minutes, seconds = divmod(rest * 60.0, 1.0)
    return whole, minutes, seconds * 60.0
