"""Write a city to disk in the public layout of CosPlace, with the known levels beside the images."""

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
    """A short name for what each image shows: a finished file is skipped only if it shows the same."""
    city = views.city
    common = repr((city.seed, city.blocks, city.aliased, city.featureless, city.camera, size)).encode()
    table = np.column_stack([views.poses, views.conditions.levels(), views.image_seeds]).astype(np.float64)
    return [hashlib.sha256(common + row.tobytes()).hexdigest()[:10] for row in table]


def image_names(views: CityViews, size: int | tuple[int, int]) -> list[str]:
    """File names with the pose in them.

    @east@north@zone@letter@latitude@longitude@pano_id@tile_num@heading@pitch@roll@height@timestamp@note@.jpg
    """
    from pyproj import Transformer

    to_degrees = Transformer.from_crs("EPSG:32610", "EPSG:4326", always_xy=True)  # UTM zone 10, north
    longitude, latitude = to_degrees.transform(views.positions[:, 0], views.positions[:, 1])
    zone, letter = UTM_ZONE
    names = []
    for row, content in enumerate(_fingerprints(views, checked_size(size))):
        east, north = views.positions[row]
        fields = (
            f"{east:010.2f}",
            f"{north:010.2f}",
            f"{zone}",
            letter,
            f"{latitude[row]:.6f}",
            f"{longitude[row]:.6f}",
            f"{row:06d}{content}",
            "0",
            f"{views.heading[row]:.2f}",
            "0",
            "0",
            f"{views.city.camera.height:g}",
            "",
            "synthetic",
        )
        names.append("@" + "@".join(fields) + "@.jpg")
    return names


def _folder_of(views: CityViews, row: int) -> str:
    if views.split == "train":
        return "train"
    return f"{views.split}/{'queries' if views.is_query[row] else 'database'}"


def _write_images(
    views: CityViews, paths: list[Path], size: int | tuple[int, int], quality: int, workers: int
) -> None:
    """Render and write the missing ones; each file appears only once it is whole."""

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


def _refuse_strangers(folder: Path, paths: list[Path]) -> None:
    expected = {path.name for path in paths}
    for kept in {path.parent for path in paths}:
        stranger = next((path for path in kept.glob("*.jpg") if path.name not in expected), None)
        if stranger is not None:
            raise KappaPlaceError(
                f"Folder {folder} already holds images of another data set; choose an empty folder."
            )


def _write_table(folder: Path, table: list[list[str]]) -> None:
    def write(part: Path) -> None:
        with part.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(
                ["file", "split", "is_query", *CONDITION_NAMES, "damage", "featureless", "aliased"]
            )
            writer.writerows(table)

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
    """Write train/, val/ and test/ (each database/ and queries/) and `conditions.csv`; returns the folder.

    views: which photographs, per split; `city.views(split)` of all three splits if left out.
    A second run writes only what is missing.
    """
    folder = Path(folder)
    checked_size(size)
    chosen = {split: city.views(split) for split in SPLITS} if views is None else dict(views)
    table: list[list[str]] = []
    make_folder(folder)
    for split, of_split in chosen.items():
        if of_split.split != split:
            raise KappaPlaceError(f"Views given for '{split}' were taken in '{of_split.split}'.")
        names = [
            f"{_folder_of(of_split, row)}/{name}" for row, name in enumerate(image_names(of_split, size))
        ]
        paths = [folder / name for name in names]
        for parent in {path.parent for path in paths}:
            make_folder(parent)
        _refuse_strangers(folder, paths)
        _write_images(of_split, paths, size, quality, checked_workers(workers))
        conditions = of_split.conditions
        known = np.column_stack(
            [conditions.levels(), conditions.damage, of_split.featureless, of_split.aliased]
        )
        for row, name in enumerate(names):
            numbers = [f"{value:.4f}" for value in known[row]]
            table.append([name, split, str(int(of_split.is_query[row])), *numbers])
    _write_table(folder, table)
    return folder
