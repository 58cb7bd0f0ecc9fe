"""The templates of CONTRIBUTING.md, put to use as a contributor would: they are what they say they are."""

from __future__ import annotations

import doctest
import importlib.util
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data import readers as layouts
from kappaplace.data.readers import read_layout
from kappaplace.errors import KappaPlaceError
from kappaplace.metrics import auroc
from kappaplace.models import backbones
from kappaplace.models.place_model import PlaceModel
from kappaplace.training import recipes
from kappaplace.training.run import train
from kappaplace.uncertainty import SCORES, available
from tests.docs.markdown import ROOT, named_blocks
from tests.models.test_backbones import check_record
from tests.training.tiny import build_city, tiny_settings
from tests.uncertainty.helpers import world

TEMPLATES = named_blocks("CONTRIBUTING.md")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loads a template as the module it would be."""

    def load(path: str) -> types.ModuleType:
        name = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        file = tmp_path / Path(path).name
        file.write_text(TEMPLATES[path], encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, file)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
        return made

    return load


def test_every_template_has_its_own_place() -> None:
    files = [path for path in TEMPLATES if path.startswith("src/")]
    assert len(files) == 5
    for path in files:
        assert (ROOT / path).parent.is_dir()
        assert not (ROOT / path).exists()
        assert '"""' in TEMPLATES[path].splitlines()[0]


def test_files_named_in_the_table_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:models|uncertainty|metrics|data|training)/[\w/]+\.py)`", text):
        assert (ROOT / "src/kappaplace" / name).is_file(), name


def test_backbone(module, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module("src/kappaplace/models/plain_cnn.py")
    spec = eval(TEMPLATES["a line of _SPECS"], vars(backbones) | vars(made))
    monkeypatch.setitem(backbones.BACKBONES, spec.name, spec)
    check_record("plain_cnn")
    model = PlaceModel.create("plain_cnn", dim=8).eval()
    found = model.embed([np.zeros((40, 60, 3), np.uint8)])
    assert found.descriptor.shape == (1, 8)
    assert found.kappa.shape == (1,)


def test_score(module, monkeypatch: pytest.MonkeyPatch) -> None:
    score = module("src/kappaplace/uncertainty/runner_up.py").RUNNER_UP
    evidence = world()
    expected = [row[1] - row[0] for row in evidence.matches.similarities]
    np.testing.assert_allclose(score.query(evidence), expected, atol=1e-6)
    assert "at least 2 matches" in score.reason(world(k=1))
    monkeypatch.setitem(SCORES, score.name, score)
    assert score in available(SCORES.values(), evidence)[0]


def test_metric(module) -> None:
    made = module("src/kappaplace/metrics/surest.py")
    assert doctest.testmod(made).failed == 0
    assert doctest.testmod(made).attempted == 1
    rng = np.random.default_rng(0)
    success = rng.random(200) < 0.5
    scores = rng.random(200) - 0.5 * success
    assert auroc(scores, success) > 0.7
    assert made.accuracy_of_surest(scores, success) == made.accuracy_of_surest(np.exp(scores), success)
    assert made.accuracy_of_surest(scores, success) > success.mean()
    with pytest.raises(KappaPlaceError, match="finite"):
        made.accuracy_of_surest(np.array([np.nan]), np.array([True]))


def test_layout(module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reader = module("src/kappaplace/data/readers/metre_names.py").READER
    monkeypatch.setitem(layouts.READERS, reader.name, reader)
    for name in ("database/0_0.jpg", "database/90_0_b.jpg", "asked/3_4_x.jpg"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "set" / name)
    table = read_layout("metre-names", tmp_path / "set", queries="asked")
    assert table.positives().of(0).tolist() == [0]
    assert table.queries.positions.tolist() == [[3.0, 4.0]]
    (tmp_path / "set/database/here.jpg").write_bytes(b"")
    with pytest.raises(KappaPlaceError, match="does not start with EAST_NORTH"):
        read_layout("metre-names", tmp_path / "set", queries="asked")


def test_loss(module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = module("src/kappaplace/training/soft_pairs.py")
    recipe = eval(TEMPLATES["a line of RECIPES"], vars(recipes) | vars(made))
    monkeypatch.setitem(recipes.RECIPES, recipe.name, recipe)
    city = build_city()
    run = train(tiny_settings(recipe.name), city.data, tmp_path, city.validation, device="cpu")
    assert run.epochs[2]["loss"] < run.epochs[1]["loss"]
    assert run.model.head is None
    assert (tmp_path / "model" / "card.json").is_file()
