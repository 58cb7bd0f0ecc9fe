"""Write a city to disk in the public layout of CosPlace, with a table of its conditions."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.progress import track
from kappaplace_city.city import UTM_ZONE, SyntheticCity, checked_size, checked_workers
from kappaplace_city.views import CityViews
from kappaplace_city.weather import CONDITION_NAMES
from kappaplace_city.world import SPLITS

CONDITIONS_FILE = "conditions.csv"
_CHUNK = 256  # images rendered before they are written


def _fingerprints(views: CityViews, size: tuple[int, int]) -> list[str]:
    """Return a short hash of each image's content; an existing file is skipped only if its hash is equal."""
    city = views.city
    common = repr((city.seed, city.blocks, city.aliased, city.featureless, city.camera, size)).encode()
    table = np.column_stack([views.poses, views.conditions.levels(), views.image_seeds]).astype(np.float64)
    return [hashlib.sha256(common + row.tobytes()).hexdigest()[:10] for row in table]


def image_names(views: CityViews, size: int | tuple[int, int]) -> list[str]:
    """Return file names that contain the pose:

    @east@north@zone@letter@latitude@longitude@pano_id@tile_num@heading@pitch@roll@height@timestamp@note@.jpg
    """
    from pyproj import Transformer

    to_degrees = Transformer.from_crs("EPSG:32610", "EPSG:4326", always_xy=True)  # UTM zone 10, north
    longitude, latitude = to_degrees.transform(views.positions[:, 0], views.positions[:, 1])
    zone, letter = UTM_ZONE
    names = []
    for row, content in enumerate(_fingerprints(views, checked_size(size))):
        east, north = views.positions[row]
        place = f"{east:010.2f}@{north:010.2f}@{zone}@{letter}@{latitude[row]:.6f}@{longitude[row]:.6f}"
        view = f"{row:06d}{content}@0@{views.heading[row]:.2f}@0@0@{views.city.camera.height:g}"
        names.append(f"@{place}@{view}@@synthetic@.jpg")
    return names


def _folder_of(views: CityViews, row: int) -> str:
    if views.split == "train":
        return "train"
    return f"{views.split}/{'queries' if views.is_query[row] else 'database'}"


def _write_images(
    views: CityViews, paths: list[Path], size: int | tuple[int, int], quality: int, workers: int
) -> None:
    """Render and write missing images; a file appears only when it is complete."""

    def save(path: Path, image: np.ndarray) -> None:
        replace_file(
            path, lambda part: Image.fromarray(image).save(part, "JPEG", quality=quality), sync=False
        )

    missing = np.array([row for row, path in enumerate(paths) if not path.exists()], int)
    with ThreadPoolExecutor(workers) as pool, track(f"Rendering {views.split}", len(missing)) as bar:
        for start in range(0, len(missing), _CHUNK):
            rows = missing[start : start + _CHUNK]
            images = views.render(size, rows, workers)
            list(pool.map(save, [paths[row] for row in rows], images))
            bar.advance(len(rows))


def _check_contents(folder: Path, paths: list[Path]) -> None:
    """Fail if the folders contain images of another dataset."""
    expected = {path.name for path in paths}
    if any(
        path.name not in expected for parent in {p.parent for p in paths} for path in parent.glob("*.jpg")
    ):
        raise KappaPlaceError(f"{folder} contains images of another dataset. Choose an empty folder.")


def _write_table(folder: Path, table: list[list[str]]) -> None:
    def write(part: Path) -> None:
        with part.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            columns = ("file", "split", "is_query", *CONDITION_NAMES, "damage", "featureless", "aliased")
            writer.writerows([columns, *table])

    replace_file(folder / CONDITIONS_FILE, write)


def write_city(
    city: SyntheticCity,
    folder: str | Path,
    size: int | tuple[int, int] = 128,
    *,
    views: Mapping[str, CityViews] | None = None,
    quality: int = 90,
    workers: int | None = None,
) -> Path:
    """Write train/, val/ and test/ (each with database/ and queries/) and `conditions.csv`.

    A second run writes only missing images.

    Args:
        city: The city.
        folder: Folder of the dataset.
        size: Pixels of a square image, or (height, width).
        views: Photographs of each split. Default: `city.views(split)` of all three splits.
        quality: JPEG quality.
        workers: Number of threads. Default: all cores.

    Returns:
        The folder.

    Raises:
        KappaPlaceError: If the folder contains another dataset or cannot be written.
    """
    folder = Path(folder)
    checked_size(size)
    views = {split: city.views(split) for split in SPLITS} if views is None else views
    table: list[list[str]] = []
    make_folder(folder)
    for split, photos in views.items():
        if photos.split != split:
            raise KappaPlaceError(f"views[{split!r}] must be views of this split, got {photos.split!r}.")
        names = [f"{_folder_of(photos, row)}/{name}" for row, name in enumerate(image_names(photos, size))]
        paths = [folder / name for name in names]
        for parent in {path.parent for path in paths}:
            make_folder(parent)
        _check_contents(folder, paths)
        _write_images(photos, paths, size, quality, checked_workers(workers))
        levels = [photos.conditions.levels(), photos.conditions.damage, photos.featureless, photos.aliased]
        for name, is_query, values in zip(names, photos.is_query, np.column_stack(levels), strict=True):
            table.append([name, split, str(int(is_query)), *(f"{value:.4f}" for value in values)])
    _write_table(folder, table)
    return folder
