"""Fitting κ on a map's own images, which changes nothing else in the map."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.cli.map import app
from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.maps.options import FitOptions
from kappaplace.maps.tune import fit
from kappaplace.maps.tune.fit import estimate_fit, split_references
from kappaplace.models.checkpoint import save_model
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.place_model import PlaceModel
from kappaplace.reports.map_tune import write_fit_report
from tests.maps.fakes import Counting, assert_same
from tests.maps.test_killed import killed_until_done, sound

QUICK = FitOptions(views=2, epochs=3, batch_size=16)


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "LEAST_STEPS", 3)


@pytest.fixture
def bare() -> PlaceModel:
    """An encoder without κ."""
    torch.manual_seed(0)
    return PlaceModel.create("resnet_tiny", 32, "none", preprocessing=Preprocessing(32, "exact")).eval()


@pytest.fixture
def bare_map(town: PlaceImages, bare: PlaceModel, tmp_path: Path) -> PlaceMap:
    return PlaceMap.build(town, tmp_path / "town.map", bare, options=BuildOptions(segment_rows=20))


def own_encoder() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 24, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def test_only_kappa_changes(town, bare, bare_map, tmp_path):
    bare_map.remove([town.references.paths[5]])
    before = PlaceMap.open(bare_map.folder)
    shutil.copytree(bare_map.folder, tmp_path / "before.map")
    said: list[str] = []
    done = bare_map.fit(QUICK, calibrate=False, say=said.append)
    assert done.new
    assert "measured on 8 images of this map" in said[0]
    after = PlaceMap.open(bare_map.folder)
    assert_same(after, PlaceMap.open(tmp_path / "before.map"), "kappa")
    assert after.verify() == []
    old, new = before.manifest.model, after.manifest.model
    assert new.base == old.fingerprint != new.fingerprint
    assert (old.kappa, new.kappa) == (False, True)
    assert not (after.folder / "fit").exists()
    kappa = after.store.whole("kappa")
    images = [after.store.image_path(row) for row in range(len(after))]
    np.testing.assert_allclose(kappa, after.embed(images).kappa, rtol=0.02)
    assert np.ptp(kappa) > 0
    assert before.refresh()  # a reader that reads the map again
    np.testing.assert_array_equal(before.store.whole("kappa"), kappa)
    # The previous model still works.
    query = town.image_path(0)
    answers = [PlaceMap.open(after.folder, model).localize(query) for model in (None, bare)]
    assert answers[0].kappa == answers[1].kappa > 0
    assert PlaceMap.build(town, after.folder, bare, options=BuildOptions(segment_rows=20)).report.added == 1
    assert np.isfinite(PlaceMap.open(after.folder).store.whole("kappa")).all()


def test_a_map_smaller_than_a_batch_is_fitted(bare_map):
    options = FitOptions(views=1, epochs=1)
    assert options.batch_size > len(bare_map)
    done = bare_map.fit(options, calibrate=False)
    assert done.new
    assert done.record.images < len(bare_map)
    assert np.isfinite(bare_map.store.whole("kappa")).all()


def test_a_head_that_reads_several_layers_stays_one(town, tmp_path):
    torch.manual_seed(0)
    layered = PlaceModel.create("resnet_tiny", 32, "layers", preprocessing=Preprocessing(32, "exact")).eval()
    town_map = PlaceMap.build(town, tmp_path / "layers.map", layered)
    before = town_map.store.gather("kappa", np.arange(len(town_map)))
    town_map.fit(QUICK, calibrate=False)
    assert town_map.model.architecture.head == "layers"
    assert not np.allclose(town_map.store.gather("kappa", np.arange(len(town_map))), before)


def test_the_same_fit_is_not_made_twice(bare_map):
    first = bare_map.fit(QUICK, calibrate=False)
    version = bare_map.manifest.version
    second = bare_map.fit(QUICK, calibrate=False)
    assert (first.new, second.new) == (True, False)
    assert second.record == first.record
    assert bare_map.manifest.version == version
    other = bare_map.fit(FitOptions(views=1, epochs=3, batch_size=16, seed=1), calibrate=False)
    assert other.new
    assert other.record.learned.before == pytest.approx(first.record.learned.with_level, abs=0.6)
    again = bare_map.fit(
        QUICK, calibrate=False
    )  # each fit starts with an untrained head, so the result is the same
    assert again.record.learned.with_level == pytest.approx(first.record.learned.with_level, abs=1e-6)
    assert len(list(bare_map.folder.glob("model-*"))) == 1  # old models are deleted


def test_kappa_falls_with_damage_it_never_saw(bare_map, monkeypatch):
    monkeypatch.setattr(fit, "LEAST_STEPS", 12)
    options = FitOptions(views=4, epochs=30, batch_size=16)
    record = bare_map.fit(options, calibrate=False).record
    losses, learned = [row["loss"] for row in record.epochs], record.learned
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert learned.with_cosine > 0.1
    assert learned.by_kind["night"] < -0.4
    assert learned.clean[1] > 1.5 * learned.kinds["night"][-1][1]  # even this untrained encoder detects night


@pytest.mark.parametrize("layer", [None, "1"])
def test_an_encoder_of_your_own(town, tmp_path, layer):
    model = FrozenEncoder(own_encoder(), layer=layer, preprocessing=Preprocessing(32, "exact"))
    made = PlaceMap.build(town, tmp_path / "own.map", model)
    done = made.fit(QUICK, CalibrateOptions(outside_rate=0.2))
    assert done.calibration is not None
    assert not done.calibration.rule.guaranteed
    # Another process has only the encoder, and gets κ from the map.
    again = FrozenEncoder(own_encoder(), layer=layer, preprocessing=Preprocessing(32, "exact"))
    opened = PlaceMap.open(made.folder, again)
    assert opened.localize(town.image_path(0)).kappa == made.localize(town.image_path(0)).kappa
    with pytest.raises(KappaPlaceError, match="without its encoder"):
        PlaceMap.open(made.folder).localize(town.image_path(0))


def test_images_keep_the_size_they_were_embedded_at(bare, tmp_path):
    folder, rng = tmp_path / "wide", np.random.default_rng(0)
    folder.mkdir()
    sizes = [(40, 64), (48, 40)]
    names = [f"{i:02d}.png" for i in range(24)]
    for i, name in enumerate(names):
        Image.fromarray(rng.integers(0, 256, (*sizes[i % 2], 3), dtype=np.uint8)).save(folder / name)
    table = PlaceImages.create(names, rng.uniform(0, 500, (24, 2)), root=folder)
    made = PlaceMap.build(
        table, tmp_path / "w.map", bare, options=BuildOptions(preprocessing=Preprocessing(32, "shorter"))
    )
    made.fit(QUICK, calibrate=False)
    assert made.model.preprocessing == Preprocessing(32, "shorter")
    images = [made.store.image_path(row) for row in range(24)]
    np.testing.assert_allclose(made.store.whole("kappa"), made.embed(images).kappa, rtol=0.02)


def test_what_cannot_be_fitted(town, bare, bare_map, tmp_path):
    few = PlaceMap.build(town.select(town.reference_rows[:10]), tmp_path / "few.map", bare)
    with pytest.raises(KappaPlaceError, match="at least 16 references, got 10"):
        few.fit()
    with pytest.raises(KappaPlaceError, match="views must be 1 or more"):
        FitOptions(views=0)
    copy = tmp_path / "images"
    shutil.copytree(town.root, copy)
    moved = PlaceImages.open(Path(town.root).parent / "val.parquet", copy)
    made = PlaceMap.build(moved, tmp_path / "moved.map", bare)
    version = made.manifest.version
    first = copy / str(moved.references.paths[0])
    Image.new("RGB", (32, 32), "red").save(first)
    with pytest.raises(KappaPlaceError, match=r"has changed since.*duplicates replace"):
        made.fit()
    first.unlink()
    with pytest.raises(KappaPlaceError, match=r"1 of \d+ no longer exist"):
        made.fit()
    assert PlaceMap.open(made.folder).manifest.version == version
    opened = PlaceMap.open(bare_map.folder)
    bare_map.fit(QUICK, calibrate=False)
    with pytest.raises(KappaPlaceError, match="Another process changed the model"):
        opened.fit()


def test_descriptors_of_something_else_are_refused(town, bare, tmp_path):
    made = PlaceMap.build(
        town, tmp_path / "m", bare, options=BuildOptions(embedder=Counting(tmp_path / "log"))
    )
    version = made.manifest.version
    with pytest.raises(KappaPlaceError, match=r"The descriptor of .* differs .*map reembed"):
        made.fit(QUICK)
    assert PlaceMap.open(made.folder).manifest.version == version


def test_a_map_without_positions_gets_kappa_but_no_calibration(town, bare, tmp_path):
    blind = PlaceMap.build(PlaceImages.create(town.references.paths, root=town.root), tmp_path / "b", bare)
    done = blind.fit(QUICK)
    assert done.calibration is None
    assert "needs positions or frame numbers" in done.notes[0]
    assert np.isfinite(blind.store.whole("kappa")).all()
    page, _ = write_fit_report(blind, tmp_path / "out" / "fit.html")
    assert "Self-calibration" not in page.read_text()


def test_the_command_and_its_report(town, bare, bare_map, tmp_path):
    def run(*words: str) -> str:
        result = CliRunner().invoke(app, ["fit", str(bare_map.folder), *words], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    expected = json.loads(run("--estimate", "--json", "--views", "2"))
    count, judges = len(bare_map), len(split_references(len(bare_map), 1000, 0).check)
    assert expected["passes"] == (count - judges) * 3 + judges + judges * 29 + count
    assert expected["seconds"] > 0
    assert "measured" in run("--estimate")
    assert not (bare_map.folder / "fit.html").exists()
    report = tmp_path / "pages" / "fit.html"
    quick = ("--views", "2", "--epochs", "8", "--batch-size", "16", "--report", str(report))
    facts = json.loads(run(*quick, "--json"))
    assert facts["new"]
    assert facts["calibrated"]
    assert not facts["guaranteed"]
    assert Image.open(facts["picture"]).width > 500
    text = report.read_text()
    assert "held-out images" in text
    assert "no risk" in text or "No guarantee" in text
    assert text.count("data:image/svg+xml") == 2 + 4  # the icon, and the figures
    assert text.count("data:image/") == 6 + 8  # and eight places
    assert "[−" in text  # intervals
    said = run(*quick)
    assert "already fitted on these images with these options" in said
    assert "No guarantee" in said
    missing = CliRunner().invoke(app, ["fit", str(tmp_path / "nowhere")])
    assert isinstance(missing.exception, KappaPlaceError)


def test_estimate_of_a_map(bare_map):
    with_, without = (estimate_fit(bare_map, QUICK, calibrate=c) for c in (True, False))
    assert with_.passes - without.passes == len(bare_map)
    assert with_.sentence.startswith("About ")


@pytest.mark.slow
def test_a_fit_survives_kills(bare_map, bare, tmp_path):
    save_model(bare, tmp_path / "bare")  # another process loads it
    calm = tmp_path / "calm.map"
    shutil.copytree(bare_map.folder, calm)
    calm_map = PlaceMap.open(calm, bare)
    calm_map.fit(QUICK, CalibrateOptions())

    def work() -> None:
        PlaceMap.open(bare_map.folder, tmp_path / "bare").fit(QUICK, CalibrateOptions())

    def check() -> None:
        sound(bare_map.folder)
        opened = PlaceMap.open(bare_map.folder)
        kappa = opened.store.whole("kappa")
        if opened.manifest.model.kappa:  # model and κ change together
            assert np.isfinite(kappa).all()
            assert opened.manifest.calibration is None or opened.calibration is not None
        else:
            assert np.isnan(kappa).all()

    kills = killed_until_done(work, check, 4.0)
    assert kills >= 3
    done = PlaceMap.open(bare_map.folder)
    assert done.manifest.calibration is not None
    assert not (done.folder / "fit").exists()
    assert done.manifest.model.fingerprint == calm_map.manifest.model.fingerprint
    assert_same(done, calm_map)
