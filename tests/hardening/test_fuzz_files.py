"""Whatever byte of a file is wrong: it is refused in one sentence, or read, and nothing else ever happens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kappaplace.calibration.sources import load_calibration, save_calibration
from kappaplace.data.images import Preprocessing
from kappaplace.data.near import Neighborhood
from kappaplace.data.readers.trajectory import read_poses
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import evaluate_sets, read_result, write_result
from kappaplace.evaluation.arrays import read_embeddings, read_positives, read_similarities
from kappaplace.evaluation.inputs import from_similarities
from kappaplace.evaluation.run import Choices
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.maps.exchange import export_map, import_map
from kappaplace.maps.tune.label_sheet import Row, Sampling, Sheet, read_labels, sample_id, write_labels
from kappaplace.models.checkpoint import load_model, save_model
from kappaplace.models.export import export_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.slam.drive_files import write_tum
from kappaplace.training.loop import load_state, save_state
from kappaplace.training.recipes import settings_for
from kappaplace.training.settings import read_toml
from kappaplace.types import Embeddings
from tests.hardening.damage import damaged_bytes, damaged_json
from tests.models.test_foreign import cosplace_state
from tests.slam.synthetic import calibration

FEW, MANY = 10, 100
"""Damaged copies of each file in a quick run and in a whole one; the seeds are fixed."""
COUNT, DIM = 24, 8


@dataclass(frozen=True)
class Kind:
    """A file that is read: its name in the fixture's folder, and what reads it."""

    file: str
    read: Callable[[Path], Any]


def _use_map(file: Path) -> None:
    """Open the map that a file belongs to and ask it everything."""
    folder = next(parent for parent in file.parents if parent.suffix == ".map")
    opened = PlaceMap.open(folder)
    opened.info()
    opened.verify()
    query = np.eye(COUNT, DIM, dtype=np.float32)[:2]
    opened.localize_embeddings(Embeddings(query, np.array([5.0, 6.0], np.float32)), ["a", "b"])


def _import(file: Path) -> None:
    out = file.parent / "imported.map"
    try:
        import_map(file, out)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _numbers(file: Path) -> None:
    read_similarities(file)


def _positives(file: Path) -> None:
    read_positives(file, COUNT)


def _toml(file: Path) -> None:
    settings_for("kappa-pt", str(file), [])
    read_toml(file)


def _judge_by(file: Path) -> None:
    made = load_calibration(file)
    features = np.zeros((2, len(made.scores)))
    made.probability(features)
    made.inside_probability(features)
    made.uncertainty(features)


KINDS = {
    "manifest": Kind("town.map/manifest.json", _use_map),
    "descriptors": Kind("town.map/segments/000000/descriptors.npy", _use_map),
    "names": Kind("town.map/segments/000000/names.bin", _use_map),
    "starts of names": Kind("town.map/segments/000000/names.starts.npy", _use_map),
    "poses": Kind("town.map/segments/000000/poses.npy", _use_map),
    "exported map, npz": Kind("exported.npz", _import),
    "exported map, parquet": Kind("exported.parquet", _import),
    "table, parquet": Kind("table.parquet", PlaceImages.open),
    "table, csv": Kind("table.csv", PlaceImages.open),
    "card": Kind("model/card.json", lambda file: load_model(file.parent)),
    "weights": Kind("model/weights", lambda file: load_model(file.parent)),
    "foreign weights": Kind("foreign.pth", load_model),
    "training state": Kind("training.pt", lambda file: load_state(file.parent)),
    "settings": Kind("settings.toml", _toml),
    "results": Kind("result/results.json", lambda file: read_result(file.parent)),
    "rows of results": Kind("result/matches.parquet", lambda file: read_result(file.parent)),
    "calibration": Kind("closures.json", _judge_by),
    "trajectory": Kind("odometry.tum", read_poses),
    "labels": Kind("labels.csv", read_labels),
    "similarities": Kind("similar.npz", _numbers),
    "descriptors, npy": Kind("plain.npy", read_embeddings),
    "positives": Kind("positives.json", _positives),
}
EXPORTED = {"onnx": Kind("model.onnx", load_model)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good file of every kind."""
    folder, rng = tmp_path_factory.mktemp("whole"), np.random.default_rng(0)
    torch.manual_seed(0)
    names = [f"größe/{i:02d}.jpg" for i in range(COUNT)]
    where = rng.uniform(0, 300, (COUNT, 2))
    table = PlaceImages.create(names, where, is_query=np.arange(COUNT) % 3 == 0, root=folder, name="t")
    table.save(folder / "table.parquet")
    table.save(folder / "table.csv")
    model = PlaceModel.create("resnet_tiny", dim=DIM, preprocessing=Preprocessing(32, "exact")).eval()
    save_model(model, folder / "model")
    weights = next((folder / "model").glob("*.safetensors"))
    weights.rename(folder / "model" / "weights")
    card = json.loads((folder / "model" / "card.json").read_text())
    (folder / "model" / "card.json").write_text(json.dumps(card | {"weights": "weights"}))
    torch.save(cosplace_state(PlaceModel.create("resnet18", dim=DIM, head="none")), folder / "foreign.pth")
    save_state(folder, {"model": model.state_dict(), "finished": False, "step": 3})
    (folder / "settings.toml").write_text(settings_for("kappa-pt", "", []).to_toml())
    save_calibration(calibration(), folder / "closures.json")
    write_tum(folder / "odometry.tum", np.column_stack([where, np.zeros(COUNT)]), np.arange(float(COUNT)))
    sampling = Sampling("model", "town", str(folder), 0, 3, 3, 3, "no", sample_id("model", 0, names[:3]))
    write_labels(
        Sheet(tuple(Row(i + 1, names[i], "b.jpg", "yes") for i in range(3)), sampling), folder / "labels.csv"
    )
    _town(folder, names, where, model)
    _judged(folder, rng)
    return folder


def _town(folder: Path, names: list[str], where: np.ndarray, model: PlaceModel) -> None:
    made = np.random.default_rng(1).normal(size=(COUNT, DIM)).astype(np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    for name in names:
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(name.encode())
    table = PlaceImages.create(names, where, root=folder)

    def embedder(paths: Any) -> Embeddings:
        rows = [names.index(str(Path(path).relative_to(folder))) for path in paths]
        return Embeddings(made[rows], np.full(len(rows), 9.0, np.float32))

    town = PlaceMap.build(table, folder / "town.map", model, options=BuildOptions(embedder=embedder))
    export_map(town.store, folder / "exported.npz")
    export_map(town.store, folder / "exported.parquet")


def _judged(folder: Path, rng: np.random.Generator) -> None:
    cosines = rng.uniform(-1, 1, (COUNT, COUNT))
    np.savez(folder / "similar.npz", A=cosines, B=cosines)
    np.save(folder / "plain.npy", cosines.astype(np.float32))
    (folder / "positives.json").write_text(json.dumps([[i] for i in range(COUNT)]))
    positives = read_positives(folder / "positives.json", COUNT)
    sets = [from_similarities(cosines, positives, k=5, name="set", neighborhood=Neighborhood("self", 0))]
    write_result(evaluate_sets("A", sets, Choices(resamples=0, k=5)), folder / "result")


@pytest.mark.parametrize("times", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "foreign weights" else name for name in KINDS],
)
def test_damage_is_told_in_one_sentence(name: str, times: int, whole: Path, tmp_path: Path) -> None:
    top = KINDS[name].file.partition("/")[0]
    if (whole / top).is_dir():
        shutil.copytree(whole / top, tmp_path / top)
    else:
        shutil.copy(whole / top, tmp_path / top)
    told(KINDS[name], tmp_path, times)


@pytest.mark.slow  # making an ONNX file takes a while
@pytest.mark.parametrize("name", EXPORTED)
def test_damage_of_exported_models(name: str, tiny: PlaceModel, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    export_model(tiny, tmp_path / EXPORTED[name].file, name)  # type: ignore[arg-type]
    told(EXPORTED[name], tmp_path, MANY // 2)


def told(kind: Kind, folder: Path, times: int) -> None:
    """Damage a file in many ways and read each: only one sentence may be raised."""
    copy = folder / kind.file
    good = copy.read_bytes()
    kind.read(copy)  # a test of a file that nobody can read would say nothing
    copies = list(damaged_bytes(good, times))
    if copy.suffix == ".json":
        copies += damaged_json(good.decode(), 2 * times)
    sentences: list[str] = []
    for damaged in copies:
        copy.write_bytes(damaged)
        try:
            kind.read(copy)
        except KappaPlaceError as error:  # anything else fails the test
            sentences.append(str(error))
    assert sentences
    assert not [each for each in sentences if "\n" in each or len(each) >= 1000]
