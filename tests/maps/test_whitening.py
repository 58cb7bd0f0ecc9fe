"""Whitened maps: the projection belongs to the map's model, in every verb."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.cli.main import app
from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import AddOptions, BuildOptions, FitOptions, PlaceMap
from kappaplace.maps.store.manifest import read_manifest
from kappaplace.maps.tune import fit
from kappaplace.models.aggregation import learn_whitening
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval import codes
from tests.maps.fakes import SOME_CALIBRATION, Counting, assert_same

DIM = 8


@pytest.fixture
def white(town: PlaceImages, tiny: PlaceModel, tmp_path: Path) -> PlaceMap:
    return PlaceMap.build(town, tmp_path / "white.map", tiny, BuildOptions(dim=DIM, segment_rows=16))


def names(place_map: PlaceMap, images: list[str]) -> list[list[str]]:
    return [[match.name for match in answer.matches] for answer in place_map.localize(images)]


def test_descriptors_are_those_of_the_model_whitened_on_this_map(town, town_map, white, tiny, queries):
    plain = town_map.store.descriptors[:]
    whitening = learn_whitening(plain, DIM)
    expected = whitening.of(plain)
    similar = white.store.descriptors[:] @ white.store.descriptors[:].T
    np.testing.assert_allclose(similar, expected @ expected.T, atol=2e-3)
    manifest = white.manifest
    assert (manifest.model.dim, manifest.whitening.rows) == (DIM, 33)
    assert manifest.model.fingerprint == white.model.fingerprint != tiny.fingerprint
    assert json.loads((white.folder / "manifest.json").read_text())["features"] == ["whitening"]
    assert white.verify() == []
    assert white.info()["whitened_from"] == 32
    assert "whitened_from" not in town_map.info()
    opened = PlaceMap.open(white.folder)  # by its own folder of the model
    np.testing.assert_allclose(
        opened.embed(queries).descriptor, white.store.whitening.of(tiny.embed(queries).descriptor), atol=1e-5
    )
    own = opened.localize(town.image_path(int(town.reference_rows[7])))
    assert own.matches[0].similarity == pytest.approx(1, abs=1e-4)
    assert names(opened, queries) == names(PlaceMap.open(white.folder, tiny), queries)
    with pytest.raises(KappaPlaceError, match=r"shape \(12, 8\), got \(12, 32\)"):
        opened.localize_embeddings(tiny.embed(queries), queries)
    other = PlaceModel.create("resnet_tiny", 16, preprocessing=Preprocessing(64, "exact")).eval()
    with pytest.raises(KappaPlaceError, match="was built with another model"):
        PlaceMap.open(white.folder, other).localize(queries[0])


def test_an_interrupted_build_whitens_at_the_end(town, tiny, white, tmp_path):
    half = town.select(town.reference_rows[:20])
    out = tmp_path / "again.map"
    PlaceMap.build(half, out, tiny, BuildOptions(segment_rows=16))
    done = PlaceMap.build(town, out, tiny, BuildOptions(dim=DIM, segment_rows=16))
    assert_same(done, white)
    version = done.manifest.version
    again = PlaceMap.build(town, out, tiny, BuildOptions(dim=DIM, segment_rows=16))
    assert (again.report.added, again.manifest.version) == (0, version)
    with pytest.raises(KappaPlaceError, match=r"is whitened to 8 dimensions, got 9. Omit --dim"):
        PlaceMap.build(town, out, tiny, BuildOptions(dim=9))
    with pytest.raises(KappaPlaceError, match="is whitened to 8 dimensions, got 9"):
        done.compact(dim=9)


def test_too_few_images_leave_a_map_without_whitening(town, tiny, tmp_path):
    few = town.select(town.reference_rows[:5])
    with pytest.raises(KappaPlaceError, match=r"needs more than 8 images, got 5. Pass a smaller --dim"):
        PlaceMap.build(few, tmp_path / "few.map", tiny, BuildOptions(dim=DIM))
    assert len(PlaceMap.build(few, tmp_path / "few.map", tiny)) == 5  # nothing is embedded again
    with pytest.raises(KappaPlaceError, match="at least 2, got 1"):
        BuildOptions(dim=1)


def test_images_that_are_added_are_whitened_alike(town, tiny, tmp_path):
    first, rest = town.select(town.reference_rows[:30]), town.select(town.reference_rows[30:])
    grown = PlaceMap.build(first, tmp_path / "grown.map", tiny, BuildOptions(dim=DIM))
    projection = grown.store.whitening.to_array()
    PlaceMap.open(grown.folder).add(rest)
    grown.refresh()
    np.testing.assert_array_equal(grown.store.whitening.to_array(), projection)
    images = town.image_paths(town.reference_rows)
    np.testing.assert_allclose(grown.store.descriptors[:], grown.embed(images).descriptor, atol=1e-5)
    assert not np.isnan(grown.store.distinctiveness).any()


@pytest.mark.parametrize("completes", [True, False])
def test_a_function_of_the_caller_need_not_whiten(town, tiny, white, tmp_path, completes):
    """It returns the descriptors of the model, or those of the map."""
    out = tmp_path / "own.map"
    embedder = Counting(tmp_path / "log")
    options = AddOptions(embedder=embedder)
    mine = PlaceMap.build(town, out, tiny, BuildOptions(dim=DIM, embedder=embedder))
    if not completes:
        whitening = mine.store.whitening
        options = AddOptions(
            embedder=lambda paths: embedder(paths)._replace(
                descriptor=whitening.of(embedder(paths).descriptor)
            )
        )
    more = town.select(town.query_rows)
    mine.add(PlaceImages.create(more.paths, more.positions, root=more.root, frame=more.frame), options)
    row = mine.store.find([str(more.paths[0])])
    expected = mine.store.whitening.of(embedder([more.image_path(0)]).descriptor)
    np.testing.assert_allclose(mine.store.descriptors[row], expected, atol=1e-6)


@pytest.mark.parametrize("storage", ["float16", "int8", "pq"])
def test_compact_whitens_a_map_without_its_images(town_map, white, queries, storage, monkeypatch):
    monkeypatch.setattr(codes, "FEWEST", 20)
    monkeypatch.setattr(codes, "VALUES", 16)
    town_map.compact(storage)
    calibrated = town_map.manifest
    town_map.compact(dim=DIM)
    assert town_map.manifest.storage == storage
    assert town_map.manifest.model.dim == DIM
    assert calibrated.model.source == town_map.manifest.model.source
    assert town_map.verify() == []
    ours, theirs = (each.store.descriptors[:] for each in (town_map, white))
    closeness = np.corrcoef((ours @ ours.T).ravel(), (theirs @ theirs.T).ravel())[0, 1]
    assert closeness > (0.5 if storage == "pq" else 0.999)
    assert town_map.localize(queries[0]).matches
    version = town_map.manifest.version
    town_map.compact(storage, DIM)  # whitened already: only compacted
    assert town_map.manifest.version > version
    assert town_map.manifest.whitening.rows == 33


def test_the_command_line_whitens_and_says_so(town_map, tiny, tmp_path):
    from kappaplace.maps.store.writer import writer_of

    with writer_of(town_map.folder) as writer:
        writer.commit(calibration=SOME_CALIBRATION)
    run = CliRunner().invoke(app, ["map", "compact", str(town_map.folder), "--dim", "8"])
    assert run.exit_code == 0, run.output
    assert "calibration was removed" in run.output
    shown = CliRunner().invoke(app, ["map", "info", str(town_map.folder)])
    assert "8 dimensions, whitened from 32" in shown.output
    bad = CliRunner().invoke(app, ["map", "compact", str(town_map.folder), "--dim", "500"])
    assert bad.exit_code != 0


def test_another_model_is_whitened_to_the_same_dimension(white, queries, monkeypatch):
    torch.manual_seed(5)
    other = PlaceModel.create("resnet_tiny", 24, preprocessing=Preprocessing(48, "exact")).eval()
    before = white.manifest.model
    white.reembed(other)
    assert (white.manifest.model.dim, white.manifest.whitening.rows) == (DIM, 25)
    assert white.manifest.model.fingerprint != before.fingerprint
    assert white.verify() == []
    assert PlaceMap.open(white.folder).localize(queries[0]).matches
    small = PlaceModel.create("resnet_tiny", 6, preprocessing=Preprocessing(48, "exact")).eval()
    white.reembed(small)  # it has fewer dimensions than the whitening
    assert (white.manifest.model.dim, white.manifest.whitening) == (6, None)
    assert PlaceMap.open(white.folder).localize(queries[0]).matches


def test_a_killed_reembedding_resumes_after_the_whitening(white, monkeypatch):
    from kappaplace.maps import change

    torch.manual_seed(5)
    other = PlaceModel.create("resnet_tiny", 24, preprocessing=Preprocessing(48, "exact")).eval()
    monkeypatch.setattr(change, "_take_over", lambda *_: (_ for _ in ()).throw(KappaPlaceError("killed")))
    with pytest.raises(KappaPlaceError, match="killed"):
        white.reembed(other)
    assert read_manifest(white.folder / "reembed").whitening is not None
    monkeypatch.undo()
    report = white.reembed(other)
    assert (report.added, report.already) == (0, len(white))
    assert white.manifest.model.dim == DIM


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_there_and_back(white, tiny, queries, tmp_path, suffix):
    file = white.export(tmp_path / f"town{suffix}")
    back = PlaceMap.import_(file, tmp_path / "back", tiny)
    assert_same(back, white)
    assert back.verify() == []
    assert names(PlaceMap.open(back.folder), queries) == names(white, queries)
    without = PlaceMap.import_(file, tmp_path / "without")
    assert names(PlaceMap.open(without.folder, tiny), queries) == names(white, queries)
    assert names(PlaceMap.open(without.folder), queries) == names(white, queries)  # passed once is enough
    other = PlaceModel.create("resnet_tiny", 32, preprocessing=Preprocessing(64, "exact")).eval()
    with pytest.raises(KappaPlaceError, match="are from another model"):
        PlaceMap.import_(file, tmp_path / "wrong", other)


def test_the_model_of_a_map_is_plain_in_another_map(town, white, tiny, queries, tmp_path):
    second = PlaceMap.build(town, tmp_path / "second.map", white.model)
    assert second.manifest.model.fingerprint == tiny.fingerprint
    assert PlaceMap.open(second.folder).localize(queries[0]).matches
    assert names(PlaceMap.open(white.folder, white.model), queries) == names(white, queries)


def test_a_damaged_whitening_is_named(white, queries):
    file = white.folder / white.manifest.whitening.file
    whole = file.read_bytes()
    file.write_bytes(whole[:-4] + b"\x00\x00\xc0\x7f")
    with pytest.raises(KappaPlaceError, match=r"whitening.*is damaged.*Restore the map from a copy"):
        PlaceMap.open(white.folder).localize(queries[0])
    assert any("whitening" in problem for problem in white.verify())
    with pytest.raises(KappaPlaceError, match="so nothing was changed"):
        white.compact()


class LongEncoder(nn.Module):
    """A descriptor of 80 numbers, and a map for patches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 20, 8, 8), nn.Linear(20, 80)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.relu(self.conv(images)).amax((2, 3)))


@pytest.mark.parametrize("kind", ["place model", "encoder"])
def test_kappa_and_calibration_of_a_whitened_map(town, tiny, queries, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(fit, "LEAST_STEPS", 3)
    torch.manual_seed(0)
    frozen = FrozenEncoder(LongEncoder(), layer="conv", preprocessing=Preprocessing(64, "exact")).eval()
    model = tiny if kind == "place model" else frozen
    white = PlaceMap.build(town, tmp_path / "white.map", model, BuildOptions(dim=DIM))
    descriptors = np.array(white.store.descriptors[:])
    unfitted = white.manifest.model
    white.fit(FitOptions(views=1, epochs=2, batch_size=16), CalibrateOptions())
    np.testing.assert_array_equal(white.store.descriptors[:], descriptors)
    record = white.manifest.model
    assert record.base == unfitted.fingerprint != record.fingerprint
    assert white.manifest.calibration is not None
    source = model if kind == "encoder" else None
    for opened in (PlaceMap.open(white.folder, source), PlaceMap.open(white.folder, model)):
        answers = opened.localize(queries)
        assert opened.model.fingerprint == record.fingerprint
        assert all(answer.kappa > 0 for answer in answers)
        assert any(answer.probability is not None for answer in answers)
    assert PlaceMap.build(town, white.folder, model, BuildOptions(dim=DIM)).report.added == 0
    refitted = opened.fit(FitOptions(views=1, epochs=3, batch_size=16), calibrate=False)
    assert refitted.new
    assert opened.manifest.model.base == unfitted.fingerprint


def test_a_copy_of_the_folder_answers_the_same(white, queries, tmp_path):
    copy = shutil.copytree(white.folder, tmp_path / "copy.map")
    ours, theirs = (each.localize(queries) for each in (white, PlaceMap.open(copy)))
    assert [[m.similarity for m in a.matches] for a in ours] == [
        [m.similarity for m in a.matches] for a in theirs
    ]
