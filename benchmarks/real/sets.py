"""Real image datasets and their splits; README.md beside this file describes the protocol.

``DATA`` contains one folder per dataset for `kappaplace data import --layout gt-json`, and ``tmbud`` with its
table of buildings.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kappaplace.data.images import Preprocessing
from kappaplace.data.loader import ImageLoader
from kappaplace.data.readers.query_ref import read_gt_json
from kappaplace.data.table import PlaceImages
from kappaplace_city import SyntheticCity

TRAIN, VALIDATION = 0.6, 0.7  # fractions of a route: end of training, end of validation
ROUTES = ("st_lucia", "nordland_winter_summer")
UNSEEN = ("sped", "gp_dayleft_dayright", "gp_nightright_dayleft", "essex3in1", "berlin_kudamm")
SEALED = ("essex3in1", "berlin_kudamm")
"""Evaluated only once, after all other decisions."""
FAMILY = {name: "gardens_point" if name.startswith("gp_") else name for name in (*ROUTES, *UNSEEN)}
ALONE = ("sped", "essex3in1")  # datasets with one image per place
FRAMES_PER_CELL = {"st_lucia": 6, "nordland_winter_summer": 3}
NEAR = "frames:10"
CELL = 10.0  # side of a class in metres; routes are scaled so that a cell contains the frames above
FAR = 100_000.0  # metres between datasets, so that no cell contains two of them


def read_set(data: Path, name: str) -> PlaceImages:
    """Read a dataset."""
    return read_gt_json(data / name, neighborhood="self" if name in ALONE else NEAR)


def part_of_route(table: PlaceImages, start: float, stop: float) -> PlaceImages:
    """Return queries and references of a stretch of the route, by their position on the map."""
    count = len(table.reference_rows)
    low, high = int(start * count), int(stop * count)
    positives = table.positives()
    center = np.array([np.median(positives.of(i)) for i in range(positives.queries)])
    inside = table.query_rows[(center >= low) & (center < high)]
    return table.select(np.concatenate([inside, table.reference_rows[low:high]]))


def test_sets(data: Path, names: tuple[str, ...]) -> dict[str, PlaceImages]:
    """Return the test data: the last stretch of each route, and all unseen datasets."""
    tables = {name: read_set(data, name) for name in names}
    return {
        name: part_of_route(table, VALIDATION, 1.0) if name in ROUTES else table
        for name, table in tables.items()
    }


def validation_sets(data: Path) -> dict[str, PlaceImages]:
    """Return the validation data."""
    return {name: part_of_route(read_set(data, name), TRAIN, VALIDATION) for name in ROUTES}


@dataclass(frozen=True)
class Training:
    """Images in memory with the positions that define their classes."""

    images: torch.Tensor
    positions: np.ndarray
    heading: np.ndarray


def training_images(data: Path, size: int, city: Path | None, routes: tuple[str, ...] = ROUTES) -> Training:
    """Load stretches of routes, buildings, and the synthetic city, far apart from each other."""
    paths: list[str] = []
    positions: list[np.ndarray] = []
    for number, name in enumerate(routes):
        table = part_of_route(read_set(data, name), 0.0, TRAIN)
        rows = np.concatenate([table.query_rows, table.reference_rows])
        frame = np.concatenate([_frame_of_queries(table), np.arange(len(table.reference_rows))])
        paths += table.image_paths(rows)
        x = frame * CELL / FRAMES_PER_CELL[name] + 0.5
        positions.append(np.stack([x, np.full(len(x), number * FAR)], axis=1))
    files, building = tmbud(data)
    paths += files
    positions.append(np.stack([building * CELL + CELL / 2, np.full(len(files), 2 * FAR)], axis=1))
    images = load_images(paths, size)
    where, heading = np.concatenate(positions), np.zeros(len(paths))
    if city is not None:
        stored = np.load(city)
        views = torch.from_numpy(stored["images"])
        views = torch.nn.functional.interpolate(views.float(), size, mode="bilinear", antialias=True)
        images = torch.cat([images, views.round().clamp(0, 255).to(torch.uint8)])
        # In one row, like the other datasets, so that groups of classes alternate along one axis only.
        cell = np.floor(stored["positions"] / CELL).astype(np.int64)
        label = np.unique(cell, axis=0, return_inverse=True)[1].ravel()
        x = label * CELL + CELL / 2
        where = np.concatenate([where, np.stack([x, np.full(len(x), 3 * FAR)], axis=1)])
        heading = np.concatenate([heading, stored["heading"]])
    return Training(images, where, heading)


def _frame_of_queries(table: PlaceImages) -> np.ndarray:
    positives = table.positives()
    return np.array([np.median(positives.of(i)) for i in range(positives.queries)])


def tmbud(data: Path) -> tuple[list[str], np.ndarray]:
    """Return photos and their building numbers; day and night of a building are the same place."""
    with open(data / "tmbud" / "tmbud.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    folder = data / "tmbud" / "images"
    present = [row for row in rows if (folder / row["file"]).is_file()]
    names = sorted({row["Building Name"] for row in present})
    return (
        [str(folder / row["file"]) for row in present],
        np.array([names.index(row["Building Name"]) for row in present]),
    )


def load_images(paths: list[str], size: int) -> torch.Tensor:
    """Load images as uint8, N×3×size×size."""
    out = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    for batch in ImageLoader(paths, Preprocessing(size, "exact"), 64):
        out[torch.as_tensor(batch.rows)] = batch.images
    return out


def render_city(file: Path, count: int, size: int, workers: int) -> None:
    """Render training views of a synthetic district to a file."""
    from concurrent.futures import ProcessPoolExecutor

    views = SyntheticCity(0, (4, 4), aliased=0.12, featureless=0.12).views(
        "train", spacing=20.0, strength=0.6, seed=0
    )
    # Whole cells, because a place needs several images.
    cell = np.floor(views.positions / CELL).astype(np.int64)
    _, label = np.unique(cell, axis=0, return_inverse=True)
    selection = np.argsort(label.ravel(), kind="stable")[:count]
    parts = np.array_split(selection, workers)
    with ProcessPoolExecutor(workers) as pool:
        images = list(pool.map(_render, [views.select(part) for part in parts], [size] * len(parts)))
    some = views.select(selection)
    np.savez(
        file,
        images=np.concatenate(images).transpose(0, 3, 1, 2),
        positions=some.positions,
        heading=some.heading,
    )


def _render(views: object, size: int) -> np.ndarray:
    torch.set_num_threads(1)
    return views.render(size)  # type: ignore[attr-defined]
