"""GSV-Cities: ``Dataframes/CITY.csv`` with one row an image, images in ``Images/CITY/``; for training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.data.geodesy import project
from kappaplace.data.readers.layout import Reader, existing_folder
from kappaplace.data.readers.text import integer, number, parsed, read_rows, unix_time
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError

_WHOLE = ("place_id", "year", "month", "northdeg")
_PARSE: dict[str, Any] = dict.fromkeys(_WHOLE, integer) | {"city_id": str, "lat": number, "lon": number}
_PARSE |= {"panoid": str}
_PLACES_PER_CITY = 100_000  # place numbers of a city start at its rank times this


def read(folder: str | Path, *, cities: str = "", min_images: int = 1) -> PlaceImages:
    """All cities, or those named; places with fewer than ``min_images`` images are left out."""
    root = existing_folder(folder)
    frames = root / "Dataframes"
    names = cities.split(",") if cities else sorted(file.stem for file in frames.glob("*.csv"))
    if not names:
        raise KappaPlaceError(f"{frames} holds no CSV file: GSV-Cities keeps one a city there.")
    rows: list[dict[str, Any]] = []
    for rank, name in enumerate(names):
        for row in _city(frames / f"{name}.csv"):
            rows.append(row | {"place": rank * _PLACES_PER_CITY + row["place_id"]})
    place = np.array([row["place"] for row in rows], dtype=np.int64)
    _, inverse, counts = np.unique(place, return_inverse=True, return_counts=True)
    keep = np.flatnonzero(counts[inverse] >= min_images)
    rows = [rows[i] for i in keep]
    positions, frame = project([row["lat"] for row in rows], [row["lon"] for row in rows])
    return PlaceImages.create(
        [_path(row) for row in rows],
        positions,
        heading=[row["northdeg"] for row in rows],
        timestamp=[unix_time(f"{row['year']:04d}{row['month']:02d}") for row in rows],
        place=place[keep],
        condition=[row["city_id"] for row in rows],
        root=root,
        frame=frame,
        name="gsv-cities",
    )


def _city(file: Path) -> list[dict[str, Any]]:
    """The rows of one city, each cell as what it is."""
    rows = read_rows(file, _PARSE)
    if not rows:
        raise KappaPlaceError(f"{file} holds no row.")
    columns = [parsed(rows, name, parse, file) for name, parse in _PARSE.items()]
    return [dict(zip(_PARSE, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _path(row: dict[str, Any]) -> str:
    """The file name repeats the row; numbers are written as Python writes them."""
    city = row["city_id"]
    date = f"{row['year']:04d}_{row['month']:02d}_{row['northdeg']:03d}"
    return f"Images/{city}/{city}_{row['place_id']:07d}_{date}_{row['lat']}_{row['lon']}_{row['panoid']}.jpg"


READER = Reader(
    "gsv-cities",
    "GSV-Cities: Dataframes/CITY.csv and Images/CITY/*.jpg (training data, references only)",
    read,
    {"cities": "names separated by commas (all)", "min_images": "least number of images a place (1)"},
)
