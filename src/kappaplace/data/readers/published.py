"""Readers of published datasets: AmsterTime, GSV-Cities and Pittsburgh (also Tokyo 24/7)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from kappaplace.checks import choice
from kappaplace.data.geodesy import project
from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.readers.layout import (
    Reader,
    check_folder,
    integer,
    list_images,
    number,
    parse_column,
    read_rows,
    select_file,
    unix_time,
)
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import reason


def read_amstertime(folder: str | Path, *, split: str = "", queries: str = "old") -> PlaceImages:
    """Read ``verification[_SPLIT].csv``, or pair the two folders by name; each query has one positive.

    Args:
        folder: Folder of the dataset.
        split: test for the published test lists. Default: all pairs.
        queries: Folder of the queries, old or new; the published lists use both. Default: old, the archival
            photos, as in evaluations of global descriptors.

    Returns:
        The table.
    """
    root = check_folder(folder)
    choice(queries, ("old", "new"), "folder of queries")
    pairs = _pairs(root, split)
    new, old = ([pair[side] for pair in pairs] for side in (0, 1))
    n = len(new)
    return PlaceImages.create(
        new + old if queries == "old" else old + new,
        place=np.tile(np.arange(n), 2),
        condition=["new" if queries == "old" else "old"] * n + [queries] * n,
        is_query=np.arange(2 * n) >= n,
        root=root,
        name="amstertime" + (f"-{split}" if split else ""),
        neighborhood=Neighborhood("self"),
        given_positives=Positives(np.arange(n + 1), np.arange(n, dtype=np.int32), n),
    )


def _pairs(root: Path, split: str) -> list[tuple[str, str]]:
    """Return (new, old) of every place, in the order of the list."""
    file = root / f"verification{'_' + split if split else ''}.csv"
    if file.is_file():
        rows = read_rows(file, ("image1", "image2", "y"))
        return [(row["image1"], row["image2"]) for row in rows if row["y"].strip() == "1"]
    if split:
        raise KappaPlaceError(f"{file} is missing. Omit split=… to read all pairs.")
    if not (root / "new").is_dir() or not (root / "old").is_dir():
        raise KappaPlaceError(
            f"{root} contains neither verification.csv nor the folders new/ and old/. Check the path."
        )
    old = {Path(name).stem: f"old/{name}" for name in list_images(root / "old")}
    new = {Path(name).stem: f"new/{name}" for name in list_images(root / "new")}
    unpaired = sorted(set(old) ^ set(new))
    if unpaired or not old:
        problem = f"{unpaired[0]} has no partner" if unpaired else "they are empty"
        raise KappaPlaceError(f"The images of new/ and old/ in {root} must form pairs: {problem}.")
    return [(new[stem], old[stem]) for stem in sorted(old)]


AMSTERTIME = Reader(
    "amstertime-csv",
    "AmsterTime: new/*.png and old/*.jpg in pairs, with or without its CSV lists",
    read_amstertime,
)


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


def read_gsv_cities(folder: str | Path, *, cities: str = "", min_images: int = 1) -> PlaceImages:
    """Read all cities, or some of them.

    Args:
        folder: Folder of the dataset.
        cities: Names separated by commas. Default: all cities.
        min_images: Smallest number of images per place; other places are omitted. Default: 1.

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


GSV_CITIES = Reader(
    "gsv-cities",
    "GSV-Cities: Dataframes/CITY.csv and Images/CITY/*.jpg (training data, references only)",
    read_gsv_cities,
)


_ZONES = {"pitts": "EPSG:32617", "tokyo": "EPSG:32654"}  # the files omit the zone of their coordinates
_FIELDS = ("dbImageFns", "utmDb", "qImageFns", "utmQ", "posDistThr")


def read_pittsburgh(
    folder: str | Path, *, mat: str = "", split: str = "", query_folder: str = "queries_real", frame: str = ""
) -> PlaceImages:
    """Read a ``dbStruct`` file; the images do not have to exist.

    Args:
        folder: Folder of the dataset.
        mat: The .mat file. Default: the only one in the folder or in datasets/.
        split: Part of the file name that selects the file, such as pitts30k_test.
        query_folder: Folder of the query images. Default: queries_real.
        frame: Frame of the coordinates. Default: UTM of Pittsburgh or Tokyo, by the file name.

    Returns:
        The table.
    """
    root = check_folder(folder)
    candidates = [f for parent in (root, root / "datasets") for f in parent.glob("*.mat") if split in f.stem]
    file = select_file(root, mat, candidates, "matching .mat file", "mat")
    fields = _load(file)
    references, queries = (_names(fields, field, file) for field in ("dbImageFns", "qImageFns"))
    prefix = f"{query_folder}/" if query_folder and not queries[0].startswith(query_folder) else ""
    positions = np.concatenate(
        [
            _positions(fields, "utmDb", len(references), file),
            _positions(fields, "utmQ", len(queries), file),
        ]
    )
    zone = next((zone for key, zone in _ZONES.items() if key in file.stem.lower()), "local")
    return PlaceImages.create(
        references + [prefix + name for name in queries],
        positions,
        is_query=np.arange(len(positions)) >= len(references),
        root=root,
        frame=frame or zone,
        name=file.stem,
        radius=float(np.asarray(fields["posDistThr"])),
    )


def _load(file: Path) -> dict[str, npt.ArrayLike]:
    from scipy.io import loadmat

    try:
        struct = loadmat(file, squeeze_me=True, struct_as_record=False)["dbStruct"]
        return {name: getattr(struct, name) for name in _FIELDS}
    except (KeyError, AttributeError) as error:
        raise KappaPlaceError(f"{file} has no complete dbStruct ({error}). Download it again.") from None
    except Exception as error:  # for damaged bytes, SciPy raises many types (zlib, MatRead, Type errors ...)
        raise KappaPlaceError(f"{file} cannot be read ({reason(error)}). Download it again.") from error


def _names(fields: dict[str, npt.ArrayLike], field: str, file: Path) -> list[str]:
    names = [str(name) for name in np.atleast_1d(fields[field])]
    if not names:
        raise KappaPlaceError(f"{file} lists no images in {field}. It needs queries and references.")
    return names


def _positions(fields: dict[str, npt.ArrayLike], field: str, count: int, file: Path) -> NDArray[np.float64]:
    """Return coordinates N×2; the file contains 2×N, or two numbers for one image."""
    array = np.asarray(fields[field], dtype=np.float64)
    if array.shape != (2, count) and not (count == 1 and array.shape == (2,)):
        shape = "×".join(map(str, array.shape)) or "one number"
        raise KappaPlaceError(f"{file}: {field} must be 2×{count} for {count} images, got {shape}.")
    return array.reshape(2, count).T


PITTSBURGH = Reader(
    "pitts-mat",
    "Pittsburgh dbStruct: a .mat file with names and UTM coordinates, queries in queries_real/",
    read_pittsburgh,
)
