"""Patches in the map: it answers the same without its images, wherever it is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import AddOptions, BuildOptions, PlaceMap
from kappaplace.maps.store.manifest import read_manifest
from kappaplace.models.place_model import PlaceModel

from .test_verify_matches import LAX


@pytest.fixture
def photos(town: PlaceImages, tmp_path: Path) -> PlaceImages:
    """A copy of the town's photos, which a test can delete."""
    root = shutil.copytree(town.root, tmp_path / "photos")
    return replace(town, root=root)


@pytest.fixture
def taken(town: PlaceImages) -> list[str]:
    return town.image_paths(town.query_rows)


def answers(place_map: PlaceMap, queries: list[str], rerank: int | None = 5) -> list[str]:
    """Everything that an answer contains, apart from how long it took."""
    found = place_map.localize(queries, k=6, rerank=rerank)
    return [json.dumps(replace(one, seconds={}).to_dict(), sort_keys=True) for one in found]


def moved(place_map: PlaceMap, photos: PlaceImages, to: Path) -> PlaceMap:
    """Move the map, and delete the photos that it was built from."""
    shutil.move(place_map.folder, to)
    shutil.rmtree(photos.root)
    return PlaceMap.open(to, place_map.model)


@pytest.mark.parametrize("patches", [None, "full"])
def test_a_map_answers_the_same_without_its_photos(photos, model, taken, again, tmp_path, patches):
    town = PlaceMap.build(
        photos, tmp_path / "town.map", model, BuildOptions(patches=patches, segment_rows=16)
    )
    town.calibrate(again, replace(LAX, rerank=5))
    before = answers(town, taken, rerank=None)
    assert "patches" in json.loads(before[0])["signals"]
    away = moved(town, photos, tmp_path / "elsewhere" / "town.map")
    assert answers(away, taken, rerank=None) == before
    assert away.verify() == []
    assert away.rerank_count(None) == 10  # calibration compares patches by default, too


def test_a_map_without_patches_says_what_is_missing(photos, model, taken, tmp_path):
    town = PlaceMap.build(photos, tmp_path / "town.map", model, BuildOptions(patches="none"))
    away = moved(town, photos, tmp_path / "away.map")
    with pytest.raises(KappaPlaceError, match=r"no patches of '0.*does not exist. Run .*--patches compact"):
        away.localize(taken[0], rerank=3)
    assert away.rerank_count(None) == 0


def test_codes_are_small_and_nearly_exact(photos, model, taken, tmp_path):
    exact, coded = (
        PlaceMap.build(photos, tmp_path / name, model, BuildOptions(patches=name))
        for name in ("full", "compact")
    )
    segment = coded.store.segments[0]
    assert segment.array("patches").dtype == np.uint8
    assert segment.array("patches").shape[1] <= 4096
    one, other = (place_map.localize(taken, k=6, rerank=6) for place_map in (exact, coded))
    distance = [abs(a.signals["patches"] - b.signals["patches"]) for a, b in zip(one, other, strict=True)]
    assert np.mean(distance) < 0.05
    assert coded.info()["patches"] == "compact"
    assert coded.store.manifest.patch_codebook is not None


def test_patches_of_an_old_map_keep_descriptors_and_calibration(photos, model, taken, again, tmp_path):
    town = PlaceMap.build(photos, tmp_path / "town.map", model, BuildOptions(patches="none", segment_rows=16))
    town.remove(sorted(town.store.names())[:3])
    town.calibrate(again, replace(LAX, rerank=5))
    before, by_images = town.store.descriptors[:], town.localize(taken, rerank=5)
    report = town.reembed(patches="full")
    assert (report.added, report.already) == (len(town), 0)
    np.testing.assert_array_equal(town.store.descriptors[:], before)
    by_maps = town.localize(taken, rerank=5)
    for one, other in zip(by_images, by_maps, strict=True):
        assert one.probability == pytest.approx(other.probability, abs=1e-4)
    assert town.reembed(patches="compact").added == len(town)  # other patches replace them
    assert town.reembed(patches="compact").already == len(town)
    assert town.calibration is not None
    assert answers(moved(town, photos, tmp_path / "away.map"), taken, rerank=None)
    with pytest.raises(KappaPlaceError, match="neither a model nor patches"):
        town.reembed()


def test_an_interrupted_reembedding_of_patches_resumes(photos, model, tmp_path):
    town = PlaceMap.build(photos, tmp_path / "town.map", model, BuildOptions(patches="none", segment_rows=16))
    calls: list[int] = []

    def breaks(paths):
        calls.append(len(paths))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return model.embed(paths, patches=True, progress=False)

    with pytest.raises(KeyboardInterrupt):
        town.reembed(patches="compact", options=AddOptions(embedder=breaks, on_error="stop"))
    town.refresh()
    stored = int(town.store.has_patches(slice(None)).sum())
    assert 0 < stored < len(town)
    report = town.reembed(patches="compact")
    assert (report.already, report.added) == (stored, len(town) - stored)
    assert town.store.has_patches(slice(None)).all()
    assert town.verify() == []


def test_patches_need_the_images_of_the_descriptors(photos, model, tmp_path):
    town = PlaceMap.build(photos, tmp_path / "town.map", model, BuildOptions(patches="none"))
    first = Path(photos.image_paths(photos.reference_rows)[0])
    shutil.copy(photos.image_paths(photos.query_rows)[0], first)
    with pytest.raises(KappaPlaceError, match="has changed since it was embedded"):
        town.reembed(patches="compact")
    first.unlink()
    with pytest.raises(KappaPlaceError, match="does not exist, so its patches cannot be stored"):
        town.reembed(patches="compact")


def test_a_mixed_map_uses_what_each_reference_has(photos, model, taken, tmp_path):
    """Half of the map is added by a function that returns no patches: their images are read."""
    names = photos.references
    half = len(names) // 2
    town = PlaceMap.build(
        names.select(np.arange(half)), tmp_path / "town.map", model, BuildOptions(patches="full")
    )
    plain = AddOptions(embedder=lambda paths: model.embed(paths, progress=False))
    town.add(names.select(np.arange(half, len(names))), plain)
    has = town.store.has_patches(slice(None))
    assert has.tolist() == [True] * half + [False] * (len(names) - half)
    exact = PlaceMap.build(photos, tmp_path / "exact.map", model, BuildOptions(patches="none"))
    for one, other in zip(town.localize(taken, rerank=8), exact.localize(taken, rerank=8), strict=True):
        assert one.signals["patches"] == pytest.approx(other.signals["patches"], abs=1e-6)
    town.compact()
    assert [segment.has_patches for segment in town.store.segments] == [True, False]
    with pytest.raises(KappaPlaceError, match="no patches of"):
        moved(town, photos, tmp_path / "away.map").localize(taken, rerank=len(names))


def test_patches_follow_their_references(photos, model, taken, tmp_path):
    """Append, replace, remove and compact: every reference keeps the patches of its own image."""
    references = photos.references
    town = PlaceMap.build(references.select(np.arange(20)), tmp_path / "town.map", model)
    town.add(references.select(np.arange(20, len(references))))
    town.remove(list(town.store.names())[3:9])
    town.compact()
    book = town.store.patch_codebook
    assert book is not None
    for row, name in enumerate(town.store.names()):
        maps = model.embed(str(photos.root / name), patches=True).patches
        codes = book.encode(torch.from_numpy(maps))
        same = town.store.gather("patches", [row])[0] == codes[0]
        assert same.mean() > 0.95  # another batch size may round a number differently


@pytest.mark.parametrize("ending", ["parquet", "npz"])
def test_patches_are_exported_and_imported(photos, model, taken, tmp_path, ending):
    town = PlaceMap.build(photos, tmp_path / "town.map", model, BuildOptions(segment_rows=16))
    before = [one.signals for one in town.localize(taken, rerank=5)]
    town.export(tmp_path / f"town.{ending}")
    shutil.rmtree(photos.root)
    other = PlaceMap.import_(tmp_path / f"town.{ending}", tmp_path / "other.map", model)
    assert [one.signals for one in other.localize(taken, rerank=5)] == before
    assert other.verify() == []


def test_damaged_codes_are_reported(photos, model, taken, tmp_path):
    town = PlaceMap.build(photos, tmp_path / "town.map", model)
    (segment,) = town.manifest.segments
    file = town.folder / "segments" / segment.name / "patches.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 255
    file.write_bytes(data)
    assert any("patches.npy has a wrong checksum" in message for message in town.verify())
    with pytest.raises(KappaPlaceError, match=r"patches\.npy"):
        PlaceMap.open(town.folder, model).localize(taken, rerank=20)


def test_patches_are_checked_before_anything_is_embedded(photos, tmp_path, model):
    with pytest.raises(KappaPlaceError, match="Unknown patches 'some'"):
        BuildOptions(patches="some")  # type: ignore[arg-type]
    blind = PlaceModel.create("vgg16", 16, "none", preprocessing=Preprocessing(32, "exact")).eval()
    with pytest.raises(KappaPlaceError, match="has no patch maps, so the map cannot store patches"):
        PlaceMap.build(photos, tmp_path / "m.map", blind, BuildOptions(patches="compact"))
    assert not (tmp_path / "m.map").exists()
    free = Preprocessing(None, "none")
    with pytest.raises(KappaPlaceError, match="preprocessing without a fixed size"):
        PlaceMap.build(photos, tmp_path / "m.map", model, BuildOptions(patches="full", preprocessing=free))


def test_a_build_resumes_with_the_codebook_it_began_with(photos, model, tmp_path):
    whole = PlaceMap.build(photos, tmp_path / "whole.map", model)
    calls: list[int] = []

    def breaks(paths):
        calls.append(len(paths))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return model.embed(paths, patches=True, progress=False)

    options = BuildOptions(embedder=breaks, patches="compact", segment_rows=8)
    with pytest.raises(KeyboardInterrupt):
        PlaceMap.build(photos, tmp_path / "town.map", model, options)
    begun = read_manifest(tmp_path / "town.map").patch_codebook
    town = PlaceMap.build(photos, tmp_path / "town.map", model, BuildOptions(segment_rows=8))
    assert town.manifest.patch_codebook == begun is not None
    assert town.store.has_patches(slice(None)).all()
    assert len(town) == len(whole)
