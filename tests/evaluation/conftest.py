"""A walk of 72 small images as a table, and the model that embeds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.near import Neighborhood
from kappaplace.data.table import PlaceImages
from kappaplace.models.checkpoint import save_model
from kappaplace_city import SyntheticCity


def city_table(folder: Path, split: str = "val", queries: int = 24, name: str = "city") -> PlaceImages:
    """Views of a synthetic quarter as files and a table."""
    views = SyntheticCity(0, (1, 1)).views(split, spacing=20.0, queries=queries, query_strength=0.5, seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [f"{i:03d}.png" for i in range(len(views.positions))]
    for path, image in zip(paths, views.render(32), strict=True):
        Image.fromarray(np.asarray(image)).save(folder / path)
    return PlaceImages.create(paths, views.positions, is_query=views.is_query, root=folder, name=name)


@pytest.fixture(scope="session")
def city_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables of the same kind: val.parquet and test.parquet."""
    folder = tmp_path_factory.mktemp("city")
    for split in ("val", "test"):
        city_table(folder / split, split, name=split).save(folder / f"{split}.parquet")
    return folder


@pytest.fixture
def table(city_folder: Path) -> PlaceImages:
    return PlaceImages.open(city_folder / "val.parquet")


@pytest.fixture
def route(table: PlaceImages, city_folder: Path) -> PlaceImages:
    """Enough queries for a block bootstrap: the references of the walk are also the queries."""
    rows = np.resize(table.reference_rows, 48)
    paths = np.concatenate([table.paths[rows], table.paths[table.reference_rows]])
    is_query_row = np.arange(len(paths)) < 48
    positions = np.concatenate([table.positions[rows], table.positions[table.reference_rows]])
    return PlaceImages.create(
        paths,
        positions,
        is_query=is_query_row,
        root=table.root,
        name="route",
        neighborhood=Neighborhood("frames", 2),
    )


@pytest.fixture
def saved_model(tiny, tmp_path: Path) -> Path:
    save_model(tiny, tmp_path / "model")
    return tmp_path / "model"
