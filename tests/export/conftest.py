"""One small model, exported once per session in every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kappaplace.data.images import Preprocessing
from kappaplace.models.place_model import PlaceModel

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

from kappaplace.models.export import SUFFIXES, Exported, ExportOptions, export_model


@pytest.fixture(scope="session")
def model() -> PlaceModel:
    """A model with the head that reads every stage, the most sensitive to differences."""
    torch.manual_seed(0)
    network = PlaceModel.create("resnet_tiny", 32, "layers", preprocessing=Preprocessing(64, "exact"))
    for module in network.modules():  # statistics of a trained layer
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2.0)
    return network.eval()


@pytest.fixture(scope="session")
def exported(model: PlaceModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    folder = tmp_path_factory.mktemp("exported")
    return {
        kind: export_model(model, folder / f"tiny{suffix}", kind, ExportOptions(name="tiny"))  # type: ignore[arg-type]
        for kind, suffix in SUFFIXES.items()
    }


@pytest.fixture(scope="session")
def photos() -> list[np.ndarray]:
    """Images with large and small structures, so that κ differs between them."""
    rng = np.random.default_rng(1)
    images = []
    for cells in (2, 4, 8, 16) * 5:
        coarse = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        images.append(np.kron(coarse, np.ones((64 // cells, 64 // cells, 1), np.uint8)))
    return images


@pytest.fixture(scope="session")
def int8(model: PlaceModel, photos: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    file: Path = tmp_path_factory.mktemp("int8") / "tiny.onnx"
    return export_model(model, file, options=ExportOptions(int8_images=photos))
