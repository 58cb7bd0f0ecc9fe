"""Every Python block of README.md and docs/ runs, page by page, in a folder with what the page needs.

Tutorials have their own test, and so have the templates of CONTRIBUTING.md.
"""

from __future__ import annotations

import inspect
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kappaplace import PlaceImages, PlaceMap, PlaceModel, Preprocessing, save_model
from kappaplace.calibration import CalibrateOptions, save_calibration
from kappaplace.models import export_model
from kappaplace.retrieval import EngineOptions, open_engine
from kappaplace.training import settings_for
from tests.docs.markdown import ROOT, blocks
from tests.docs.photos import write_photos
from tests.models.test_foreign import RELEASE_HEADS, cosplace_state, release_file
from tests.slam.synthetic import calibration, world
from tests.training.tiny import OPTIONS

Names = dict[str, Any]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, their tables, a small model, its ONNX file and a map."""
    folder = tmp_path_factory.mktemp("pages")
    write_photos(folder, size=64, spacing=20.0, queries=24)
    table = PlaceImages.open(_table(folder))
    model = PlaceModel.create("resnet_tiny", dim=16, preprocessing=Preprocessing(32, "exact")).eval()
    save_model(model, folder / "runs/pt/model")
    town = PlaceMap.build(table, folder / "served.map", str(folder / "runs/pt/model"))
    town.self_calibrate(CalibrateOptions(max_risk=None))
    for number, name in enumerate(("a.jpg", "b.jpg", "photo.jpg")):
        shutil.copy(table.image_path(number), folder / name)
    return folder


def _table(folder: Path) -> Path:
    """Photos as references, the drive's as queries."""
    files = sorted((folder / "photos").iterdir()) + sorted((folder / "drive").iterdir())
    positions = np.stack([np.arange(len(files)) * 10.0, np.zeros(len(files))], 1)
    table = PlaceImages.create(
        [str(file.relative_to(folder)) for file in files],
        positions,
        is_query=[file.parent.name == "drive" for file in files],
        root=folder,
    )
    for name in ("test.parquet", "train.parquet", "walk/test.parquet"):
        (folder / name).parent.mkdir(exist_ok=True)
        table.save(folder / name)
    return folder / "test.parquet"


def _unit(count: int) -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(count, 16)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Encoder(nn.Module):
    """Somebody else's network: a backbone and a descriptor."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 5, 4), nn.ReLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.backbone(images).mean((2, 3)))


def with_map(folder: Path, _: pytest.MonkeyPatch) -> Names:
    shutil.copytree(folder / "served.map", folder / "town.map")
    return {"frame": "query.jpg"}


def for_calibration(*_: object) -> Names:
    rng = np.random.default_rng(0)
    features = rng.random((2000, 2))
    right = rng.random(2000) < 1 / (1 + np.exp(40 * (features[:, 0] - 0.6)))
    outside = ~right & (rng.random(2000) < 0.5)
    kappa = rng.random(2000) * 100
    return {
        "features": features, "right": right, "no_positive": outside, "kappa": kappa,
        "new_features": features[:9],
    }  # fmt: skip


def for_engines(folder: Path, _: pytest.MonkeyPatch) -> Names:
    (folder / "town.map").mkdir()
    descriptors = _unit(200)
    positions = np.random.default_rng(1).random((200, 2)) * 100
    return {
        "descriptors": descriptors, "positions": positions, "queries": descriptors[:3], "x": 50.0, "y": 50.0,
        "kappa": np.ones(200, np.float32), "names": [f"{row}.jpg" for row in range(200)],
    }  # fmt: skip


def without_server(*args: Any, **keywords: Any) -> SimpleNamespace:
    """In place of `open_engine`, where the page names a database server: the call must fit."""
    bound = inspect.signature(open_engine).bind(*args, **keywords).arguments
    assert isinstance(bound["options"], EngineOptions)
    assert bound["kind"] in ("milvus", "postgres")
    return SimpleNamespace(fetch=lambda rows: [f"{row}.jpg" for row in rows])


def for_export(folder: Path, _: pytest.MonkeyPatch) -> Names:
    pytest.importorskip("onnxscript", reason="needs the extra 'export'")
    model = PlaceModel.create("resnet_tiny", dim=16, preprocessing=Preprocessing(32, "exact")).eval()
    export_model(model, folder / "lite0.onnx")
    return {}


def for_images(folder: Path, _: pytest.MonkeyPatch) -> Names:
    rng = np.random.default_rng(0)
    return {
        "paths": sorted((folder / "photos").iterdir())[:3], "positions": rng.random((4000, 2)) * 30,
        "heading": rng.random(4000) * 360, "device": "cpu", "generator": torch.Generator(),
        "x01": torch.rand(2, 3, 32, 32),
    }  # fmt: skip


def for_install(folder: Path, patch: pytest.MonkeyPatch) -> Names:
    shutil.copy(ROOT / "hubconf.py", folder)
    patch.setattr(sys, "path", [*sys.path])  # hubconf.py adds its folder
    return {}


def for_models(folder: Path, patch: pytest.MonkeyPatch) -> Names:
    """Weights files as published, and nothing out of the network."""
    for backbone, name in (("resnet18", "ResNet50_512_cosplace.pth"), ("resnet50", "weights.pth")):
        model = PlaceModel.create(backbone, dim=512, head="none")
        torch.save(cosplace_state(model), folder / name)
    head, _ = RELEASE_HEADS["vmf_agg"]
    release_file(PlaceModel.create("resnet18", dim=32), head, folder / "best_model.pth")
    for_export(folder, patch)
    shutil.copy(folder / "lite0.onnx", folder / "place.onnx")
    patch.setattr("kappaplace.models.published.fetch", lambda _: folder / "ResNet50_512_cosplace.pth")
    patch.setattr("kappaplace.models.backbones.load_imagenet", lambda *_: None)
    patch.setattr(torch.hub, "load", lambda *_: Encoder())
    return {"kappaplace": __import__("kappaplace")}


def for_serve(folder: Path, patch: pytest.MonkeyPatch) -> Names:
    """`kappaplace serve` on the port of the page."""
    command = [sys.executable, "-m", "kappaplace", "serve", "served.map", "--port", PORT]
    service = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while time.monotonic() < end and service.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz").close()
            return {"service": service}
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    service.kill()
    raise AssertionError("the service never got ready")


def for_slam(folder: Path, _: pytest.MonkeyPatch) -> Names:
    pytest.importorskip("gtsam")
    save_calibration(calibration(), folder / "closures.json")
    drive = world(7)[0]
    model = PlaceModel.create("resnet_tiny", dim=16, preprocessing=Preprocessing(32, "exact")).eval()
    images = [np.full((32, 32, 3), row, np.uint8) for row in range(8)]
    return {
        "model": model, "drive": list(zip(images, drive.odometry, strict=False)), "map_poses": drive.odometry,
        "near": np.eye(len(drive.odometry), dtype=bool), "step": drive.odometry[1],
        "indices": np.array([1, 2]), "probabilities": np.array([0.5, 0.2]),
    }  # fmt: skip


def for_training(_: Path, patch: pytest.MonkeyPatch) -> Names:
    def small(name: str, options: list[str]) -> Any:
        few = [each for each in OPTIONS if each.startswith(("optimizer", "run"))]
        few += ["classes.cell=100", "classes.min_images=4"]
        return settings_for(name, options=[*options, *few])

    patch.setattr("kappaplace.training.recipes.settings_for", small)
    return {"encoder": Encoder()}


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


PORT = _free_port()
BEFORE: dict[str, list[Callable[[Path, pytest.MonkeyPatch], Names]]] = {
    "README.md": [with_map],
    "docs/calibration.md": [with_map, for_calibration],
    "docs/data.md": [for_images],
    "docs/deployment.md": [for_serve, for_export],
    "docs/evaluation.md": [],
    "docs/install.md": [for_install],
    "docs/large_maps.md": [for_engines],
    "docs/maps.md": [],
    "docs/paper.md": [],
    "docs/performance.md": [],
    "docs/slam.md": [for_slam],
    "docs/training.md": [for_models, for_training],
}
"""What a page takes for granted: files in its folder, and names."""
SMALLER = {
    '"cuda"': '"cpu"',
    "127.0.0.1:8000": f"127.0.0.1:{PORT}",
    "blocks=(3, 3)": "blocks=(1, 1)",
    "queries=400)": "queries=20)",
    "area=(550700.0, 4180050.0, 100.0)": "area=(200.0, 0.0, 500.0)",
    "town.fit()": "from kappaplace.maps import FitOptions\ntown.fit(FitOptions(images=60, epochs=15))",
}
"""What is exchanged before a block runs: it would take long, or a GPU."""


@pytest.mark.parametrize("page", BEFORE)
def test_every_block_runs(page: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    names: Names = {"__name__": "page"}
    for prepare in BEFORE[page]:
        names |= prepare(tmp_path, monkeypatch)
    try:
        for number, block in enumerate(blocks(page)):
            for long, short in SMALLER.items():
                block = block.replace(long, short)
            if page == "docs/large_maps.md" and number:
                names["open_engine"] = without_server
            exec(compile(block, f"{page}, block {number + 1}", "exec"), names)
    finally:
        if (service := names.get("service")) is not None:
            service.kill()
            service.wait()


def test_no_page_is_forgotten() -> None:
    pages = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {ROOT / "docs/quickstart.md"})]
    assert {page.relative_to(ROOT).as_posix() for page in pages if blocks(page)} == set(BEFORE)
