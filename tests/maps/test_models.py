"""Which model a map loads on its own word, and which one the user must name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.files import sealed
from kappaplace.maps import PlaceMap, embed
from kappaplace.models.checkpoint import save_model


def name_model(folder: Path, source: str) -> None:
    """Let the manifest name a model, as somebody else could."""
    file = folder / "manifest.json"
    values = json.loads(file.read_text())
    values["model"]["source"] = source
    file.write_text(json.dumps(sealed(values)))


@pytest.mark.parametrize("source", ["./evil.onnx", "./model-0123456789ab", "../model", "{model}", "./link"])
def test_a_map_loads_no_file_that_its_manifest_names(town_map, queries, tmp_path, monkeypatch, source):
    folder = town_map.folder
    model = tmp_path / "model"
    shutil.copytree(folder / town_map.manifest.model.inside, model)
    (folder / "evil.onnx").write_bytes(b"a graph that a runtime computes")
    (folder / "model-0123456789ab").write_bytes(b"not a folder")
    (folder / "link").symlink_to(model)
    name_model(folder, source.format(model=model))
    paths = []
    monkeypatch.setattr(embed, "load_model", lambda path, **_: paths.append(path))
    opened = PlaceMap.open(folder)
    with pytest.raises(KappaPlaceError, match=r"needs the model .* Pass it with --model"):
        opened.localize(queries[0])
    assert paths == []


def test_a_link_in_place_of_the_model_folder_is_not_followed(town_map, queries, tmp_path):
    inside = town_map.folder / town_map.manifest.model.inside
    shutil.move(inside, tmp_path / "elsewhere")
    inside.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KappaPlaceError, match="Pass it with --model"):
        PlaceMap.open(town_map.folder).localize(queries[0])


def test_a_map_of_an_earlier_version_gets_a_copy_of_the_model_that_is_passed_once(
    town_map, queries, tmp_path
):
    model = tmp_path / "model"
    shutil.move(town_map.folder / town_map.manifest.model.inside, model)
    name_model(town_map.folder, str(model))
    expected = [match.name for match in PlaceMap.open(town_map.folder, model).localize(queries[0]).matches]
    shutil.rmtree(model)
    again = PlaceMap.open(town_map.folder)
    assert again.manifest.model.inside
    assert [match.name for match in again.localize(queries[0]).matches] == expected
    assert again.verify() == []


def test_build_copies_a_model_from_a_folder(town, tiny, queries, tmp_path):
    model = save_model(tiny, tmp_path / "model")
    built = PlaceMap.build(town, tmp_path / "town.map", model)
    shutil.rmtree(model)
    assert built.manifest.model.source == f"./model-{tiny.fingerprint[:12]}"
    assert PlaceMap.open(built.folder).localize(queries[0]).matches


def test_the_fingerprint_is_computed_from_the_weights(town_map, tiny, queries):
    """A model folder with another model under the right name is not used."""
    inside = town_map.folder / town_map.manifest.model.inside
    other = type(tiny).create("resnet_tiny", dim=32, preprocessing=tiny.preprocessing).eval()
    shutil.rmtree(inside)
    save_model(other, inside)
    with pytest.raises(KappaPlaceError, match="was built with another model"):
        PlaceMap.open(town_map.folder).localize(queries[0])
