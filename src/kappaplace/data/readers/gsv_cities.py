"""GSV-Cities: ``Dataframes/CITY.csv`` with one row an image, images in ``Images/CITY/``; for training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.data.geodesy import project
from kappaplace.data.place_images import PlaceImages
from kappaplace.data.readers.layout import Reader, existing_folder, number, read_rows, unix_time
from kappaplace.errors import KappaPlaceError

_COLUMNS = ("place_id", "year", "month", "northdeg", "city_id", "lat", "lon", "panoid")
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
        for row in read_rows(frames / f"{name}.csv", _COLUMNS):
            rows.append(row | {"place": rank * _PLACES_PER_CITY + int(row["place_id"])})
    place = np.array([row["place"] for row in rows], dtype=np.int64)
    _, inverse, counts = np.unique(place, return_inverse=True, return_counts=True)
    keep = np.flatnonzero(counts[inverse] >= min_images)
    rows = [rows[i] for i in keep]
    positions, frame = project([number(r["lat"]) for r in rows], [number(r["lon"]) for r in rows])
    return PlaceImages.create(
        [_path(row) for row in rows],
        positions,
        heading=[number(row["northdeg"]) for row in rows],
        timestamp=[unix_time(f"{int(row['year']):04d}{int(row['month']):02d}") for row in rows],
        place=place[keep],
        condition=[row["city_id"] for row in rows],
        root=root,
        frame=frame,
        name="gsv-cities",
    )


def _path(row: dict[str, Any]) -> str:
    """The file name repeats the row; numbers are written as Python writes them."""
    city = row["city_id"]
    date = f"{int(row['year']):04d}_{int(row['month']):02d}_{int(row['northdeg']):03d}"
    where = f"{float(row['lat'])}_{float(row['lon'])}_{row['panoid']}"
    return f"Images/{city}/{city}_{int(row['place_id']):07d}_{date}_{where}.jpg"


READER = Reader(
    "gsv-cities",
    "GSV-Cities: Dataframes/CITY.csv and Images/CITY/*.jpg (training data, references only)",
    read,
    {"cities": "names separated by commas (all)", "min_images": "least number of images a place (1)"},
)
