"""GSV-Cities: ``Dataframes/CITY.csv`` with one row per image, images in ``Images/CITY/``; for training."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from kappaplace.data.geodesy import project
from kappaplace.data.readers.layout import Reader, check_folder
from kappaplace.data.readers.text import integer, number, parse_column, read_rows, unix_time
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError

_INTEGERS = ("place_id", "year", "month", "northdeg")
_NUMBERS = ("lat", "lon")
_TEXTS = ("city_id", "panoid")
_PLACES_PER_CITY = 100_000  # place numbers of a city start at its rank times this


class _Photo(NamedTuple):
    city: str
    panorama: str
    place: int
    year: int
    month: int
    heading: int
    lat: float
    lon: float

    @property
    def path(self) -> str:
        """Path of the image; its name repeats the row, with numbers as Python prints them."""
        date = f"{self.year:04d}_{self.month:02d}_{self.heading:03d}"
        name = f"{self.city}_{self.place:07d}_{date}_{self.lat}_{self.lon}_{self.panorama}.jpg"
        return f"Images/{self.city}/{name}"


def read(folder: str | Path, *, cities: str = "", min_images: int = 1) -> PlaceImages:
    """Read all cities, or some of them.

    Args:
        folder: Folder of the dataset.
        cities: Names separated by commas. Default: all cities.
        min_images: Smallest number of images per place; other places are omitted.

    Returns:
        The table.
    """
    root = check_folder(folder)
    frames = root / "Dataframes"
    names = cities.split(",") if cities else sorted(file.stem for file in frames.glob("*.csv"))
    if not names:
        raise KappaPlaceError(f"{frames} contains no CSV file. GSV-Cities has one per city there.")
    photos, places = [], []
    for rank, name in enumerate(names):
        for photo in _read_city(frames / f"{name}.csv"):
            photos.append(photo)
            places.append(rank * _PLACES_PER_CITY + photo.place)
    place = np.array(places, dtype=np.int64)
    _, inverse, counts = np.unique(place, return_inverse=True, return_counts=True)
    keep = np.flatnonzero(counts[inverse] >= min_images)
    photos = [photos[i] for i in keep]
    positions, frame = project([photo.lat for photo in photos], [photo.lon for photo in photos])
    return PlaceImages.create(
        [photo.path for photo in photos],
        positions,
        heading=[photo.heading for photo in photos],
        timestamp=[unix_time(f"{photo.year:04d}{photo.month:02d}") for photo in photos],
        place=place[keep],
        condition=[photo.city for photo in photos],
        root=root,
        frame=frame,
        name="gsv-cities",
    )


def _read_city(file: Path) -> list[_Photo]:
    rows = read_rows(file, (*_INTEGERS, "city_id", *_NUMBERS, "panoid"))
    if not rows:
        raise KappaPlaceError(f"{file} contains no rows. Download it again.")
    city, panorama = (parse_column(rows, name, str, file) for name in _TEXTS)
    place, year, month, heading = (parse_column(rows, name, integer, file) for name in _INTEGERS)
    lat, lon = (parse_column(rows, name, number, file) for name in _NUMBERS)
    return list(map(_Photo, city, panorama, place, year, month, heading, lat, lon))


READER = Reader(
    "gsv-cities",
    "GSV-Cities: Dataframes/CITY.csv and Images/CITY/*.jpg (training data, references only)",
    read,
    {
        "cities": "names separated by commas (default: all)",
        "min_images": "smallest number of images per place (default: 1)",
    },
)
