"""A tiny town: 48 references and a few queries as files, and a model to embed them."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.models.place_model import PlaceModel
from kappaplace_city import SyntheticCity


def town_table(folder: Path, split: str = "val", queries: int = 12) -> PlaceImages:
    """Views of a synthetic district as files and a table with headings."""
    views = SyntheticCity(0, (1, 1)).views(split, spacing=20.0, queries=queries, query_strength=0.3, seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [f"{i:03d}.png" for i in range(len(views.positions))]
    for path, image in zip(paths, views.render(32), strict=True):
        Image.fromarray(np.asarray(image)).save(folder / path)
    return PlaceImages.create(
        paths,
        views.positions,
        heading=views.heading,
        is_query=views.is_query,
        root=folder,
        frame="EPSG:32610",
        name=split,
    )


@pytest.fixture(scope="session")
def town_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("town")
    town_table(folder / "val").save(folder / "val.parquet")
    return folder


@pytest.fixture
def town(town_folder: Path) -> PlaceImages:
    return PlaceImages.open(town_folder / "val.parquet")


@pytest.fixture
def town_map(town: PlaceImages, tiny, tmp_path: Path) -> PlaceMap:
    return PlaceMap.build(town, tmp_path / "town.map", tiny, options=BuildOptions(segment_rows=16))


@pytest.fixture
def queries(town: PlaceImages) -> list[str]:
    return town.image_paths(town.query_rows)


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    """Patch maps of 6×6 cells, because maps of 2×2 cells would mostly tie."""
    torch.manual_seed(3)
    return PlaceModel.create("resnet_tiny", 32, preprocessing=Preprocessing(96, "exact")).eval()


@pytest.fixture
def again(town: PlaceImages, tmp_path: Path) -> PlaceImages:
    """Copies of the town's images, because images of the map itself raise an error."""
    root = copytree(town.root, tmp_path / "elsewhere")
    return PlaceImages.create(town.paths, town.positions, root=root, frame=town.frame, name="labelled")
