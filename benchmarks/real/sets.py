"""The real image sets and how they are split; docs/real_images.md states the protocol.

``DATA`` is a folder with one folder a set, as `kappaplace data import --layout gt-json` reads them, and
``tmbud`` with its table of buildings.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kappaplace.data.images import Preprocessing
from kappaplace.data.loader import ImageLoader
from kappaplace.data.readers.gt_json import read
from kappaplace.data.table import PlaceImages
from kappaplace_city import SyntheticCity

TRAIN, VALIDATION = 0.6, 0.7  # shares of a route: training ends, validation ends
ROUTES = ("st_lucia", "nordland_winter_summer")
UNSEEN = ("sped", "gp_dayleft_dayright", "gp_nightright_dayleft", "essex3in1", "berlin_kudamm")
SEALED = ("essex3in1", "berlin_kudamm")
"""Opened once, when everything else was decided."""
FAMILY = {name: "gardens_point" if name.startswith("gp_") else name for name in (*ROUTES, *UNSEEN)}
ALONE = ("sped", "essex3in1")  # sets whose images are all of different places
FRAMES_PER_CELL = {"st_lucia": 6, "nordland_winter_summer": 3}
NEAR = "frames:10"
CELL = 10.0  # metres: the side of a class; routes are laid out so that a cell holds the frames above
FAR = 100_000.0  # metres between sets, so that no cell holds two of them


def read_set(data: Path, name: str) -> PlaceImages:
    """A whole set."""
    return read(data / name, neighborhood="self" if name in ALONE else NEAR)


def part_of_route(table: PlaceImages, start: float, stop: float) -> PlaceImages:
    """Queries and references of a stretch of the route, by where on the map they belong."""
    count = len(table.reference_rows)
    low, high = int(start * count), int(stop * count)
    positives = table.positives()
    centre = np.array([np.median(positives.of(i)) for i in range(positives.queries)])
    inside = table.query_rows[(centre >= low) & (centre < high)]
    return table.select(np.concatenate([inside, table.reference_rows[low:high]]))


def judged_sets(data: Path, names: tuple[str, ...]) -> dict[str, PlaceImages]:
    """What everything is judged on: the last stretch of each route, and whole unseen sets."""
    tables = {name: read_set(data, name) for name in names}
    return {
        name: part_of_route(table, VALIDATION, 1.0) if name in ROUTES else table
        for name, table in tables.items()
    }


def validation_sets(data: Path) -> dict[str, PlaceImages]:
    """What choices are made on."""
    return {name: part_of_route(read_set(data, name), TRAIN, VALIDATION) for name in ROUTES}


@dataclass(frozen=True)
class Training:
    """Images in memory with positions from which classes follow."""

    images: torch.Tensor
    positions: np.ndarray
    heading: np.ndarray


def training_images(data: Path, size: int, city: Path | None, routes: tuple[str, ...] = ROUTES) -> Training:
    """Stretches of routes, buildings, and the synthetic city, far apart from each other."""
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
        # In one row, as the other sets are: groups of classes then alternate along one axis only.
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
    """Photos and the number of the building on each; day and night of a building are one place."""
    with open(data / "tmbud" / "tmbud.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    folder = data / "tmbud" / "images"
    known = [row for row in rows if (folder / row["file"]).is_file()]
    names = sorted({row["Building Name"] for row in known})
    return (
        [str(folder / row["file"]) for row in known],
        np.array([names.index(row["Building Name"]) for row in known]),
    )


def load_images(paths: list[str], size: int) -> torch.Tensor:
    """uint8 N×3×size×size."""
    out = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    for batch in ImageLoader(paths, Preprocessing(size, "exact"), 64):
        out[torch.as_tensor(batch.rows)] = batch.images
    return out


def render_city(file: Path, count: int, size: int, workers: int) -> None:
    """Training views of a synthetic district, kept in a file: rendering is dear."""
    from concurrent.futures import ProcessPoolExecutor

    views = SyntheticCity(0, (4, 4), aliased=0.12, featureless=0.12).views(
        "train", spacing=20.0, strength=0.6, seed=0
    )
    # Whole cells rather than single views: a place needs several images.
    cell = np.floor(views.positions / CELL).astype(np.int64)
    _, label = np.unique(cell, axis=0, return_inverse=True)
    chosen = np.argsort(label.ravel(), kind="stable")[:count]
    parts = np.array_split(chosen, workers)
    with ProcessPoolExecutor(workers) as pool:
        images = list(pool.map(_render, [views.select(part) for part in parts], [size] * len(parts)))
    some = views.select(chosen)
    np.savez(
        file,
        images=np.concatenate(images).transpose(0, 3, 1, 2),
        positions=some.positions,
        heading=some.heading,
    )


def _render(views: object, size: int) -> np.ndarray:
    torch.set_num_threads(1)
    return views.render(size)  # type: ignore[attr-defined]
