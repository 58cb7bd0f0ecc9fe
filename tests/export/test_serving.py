"""Exported files instead of their model: loading, maps, the cache of an evaluation, workers."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from kappaplace import KappaPlaceError, PlaceMap, load_model
from kappaplace.models.checkpoint import trainable
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.models.export import ExportOptions, export_model
from kappaplace.models.exported import KEY


@pytest.fixture
def folder(tmp_path, photos):
    target = tmp_path / "photos"
    target.mkdir()
    for i, pixels in enumerate(photos):
        Image.fromarray(pixels).save(target / f"{i:02}.png")
    return target


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_maps_of_the_original_open_with_the_file_and_the_other_way_round(
    kind, model, exported, folder, tmp_path
):
    file = exported[kind].file
    place_map = PlaceMap.build(folder, tmp_path / "a.map", model)
    query = folder / "07.png"
    expected = place_map.localize(query, k=3)
    actual = PlaceMap.open(tmp_path / "a.map", str(file)).localize(query, k=3)
    assert [match.name for match in actual.matches] == [match.name for match in expected.matches]
    assert actual.kappa == pytest.approx(expected.kappa, rel=1e-3)
    PlaceMap.build(folder, tmp_path / "b.map", str(file))
    with pytest.raises(KappaPlaceError, match=r"does not contain its model\. Pass it with --model"):
        PlaceMap.open(tmp_path / "b.map").localize(query, k=1)
    again = PlaceMap.open(tmp_path / "b.map", file)
    assert again.manifest.model.kappa
    assert again.localize(query, k=1).matches[0].name == expected.matches[0].name
    assert PlaceMap.open(tmp_path / "b.map", model).localize(query, k=1).matches[0].name == "07.png"


def test_matches_are_compared_cell_by_cell_as_with_the_original(model, exported, folder, tmp_path):
    place_map = PlaceMap.build(folder, tmp_path / "a.map", model)
    opened = PlaceMap.open(tmp_path / "a.map", str(exported["onnx"].file))
    expected, actual = (each.localize(folder / "03.png", k=3, rerank=3) for each in (place_map, opened))
    assert actual.signals["patches"] == pytest.approx(expected.signals["patches"], abs=0.05)


def test_without_patches_comparing_is_told(model, folder, tmp_path):
    file = export_model(model, tmp_path / "m.onnx", options=ExportOptions(patches=False)).file
    assert load_model(file).record.outputs == ("descriptor", "kappa")
    place_map = PlaceMap.build(folder, tmp_path / "a.map", str(file))
    with pytest.raises(KappaPlaceError, match="provides patch maps"):
        place_map.localize(folder / "03.png", rerank=3)
    assert EmbeddingStore.of(load_model(file)).patch_maps is None


def test_maps_do_not_mix_int8_with_the_original(model, int8, folder, tmp_path):
    PlaceMap.build(folder, tmp_path / "a.map", model)
    with pytest.raises(KappaPlaceError, match="built with another model"):
        PlaceMap.open(tmp_path / "a.map", str(int8.file)).localize(folder / "03.png")


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_travels_to_workers(kind, exported, pictures):
    opened = load_model(exported[kind].file)
    twin = pickle.loads(pickle.dumps(opened))
    np.testing.assert_array_equal(
        twin.embed(pictures, progress=False).descriptor, opened.embed(pictures, progress=False).descriptor
    )


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_damaged_files_are_told(kind, exported, tmp_path):
    file = exported[kind].file
    content = file.read_bytes()
    broken = tmp_path / file.name
    broken.write_bytes(content[: len(content) // 2])
    with pytest.raises(KappaPlaceError):
        load_model(broken)


def test_onnx_of_somebody_else_is_refused(exported, tmp_path):
    onnx = pytest.importorskip("onnx")
    other = onnx.load(exported["onnx"].file)
    del other.metadata_props[:]
    onnx.save(other, tmp_path / "other.onnx")
    with pytest.raises(KappaPlaceError, match="Write it with `kappaplace export`"):
        load_model(tmp_path / "other.onnx")


def test_torchscript_of_earlier_versions_is_told(tmp_path):
    traced = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    torch.jit.save(traced, str(tmp_path / "ours.pt"), _extra_files={KEY: "{}"})
    torch.jit.save(traced, str(tmp_path / "other.pt"))
    with pytest.raises(KappaPlaceError, match="TorchScript export of an earlier version"):
        load_model(tmp_path / "ours.pt")
    with pytest.raises(KappaPlaceError):
        load_model(tmp_path / "other.pt")


def test_a_later_format_asks_for_an_upgrade(exported, tmp_path):
    onnx = pytest.importorskip("onnx")
    later = onnx.load(exported["onnx"].file)
    (entry,) = (each for each in later.metadata_props if each.key == KEY)
    entry.value = entry.value.replace('"format": 1', '"format": 9')
    onnx.save(later, tmp_path / "later.onnx")
    with pytest.raises(KappaPlaceError, match=r"newer version\. Upgrade"):
        load_model(tmp_path / "later.onnx")


def test_onnx_stays_on_the_cpu(exported, pictures):
    opened = load_model(exported["onnx"].file)
    with pytest.raises(KappaPlaceError, match="runs on the CPU, not on meta"):
        opened.to("meta")
    assert opened.embed(pictures, progress=False).descriptor.shape == (6, 32)


def test_an_exported_file_cannot_be_trained(exported):
    with pytest.raises(KappaPlaceError, match="cannot be trained or fitted"):
        trainable(load_model(exported["onnx"].file))


def test_another_dimension_is_refused(exported):
    with pytest.raises(KappaPlaceError, match="32-dimensional"):
        load_model(exported["onnx"].file, dim=64)
