"""The pretrained model of the package: found by default, light, float32 when loaded, first in lists."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import kappaplace
from kappaplace.cli.main import main
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.models import checkpoint, shipped
from kappaplace.models.checkpoint import ModelCard, _round, load_checkpoint, load_model, save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.shipped import DEFAULT, MOST_BYTES, PAGE, installed, shipped_folder, size_bytes

REAL = shipped.FOLDER / DEFAULT


@pytest.fixture
def nothing_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation without the files of the model."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    return tmp_path / "shipped"


@pytest.fixture
def stand_in(nothing_shipped: Path, tiny: PlaceModel) -> Path:
    """An installation with a small untrained model instead."""
    card = ModelCard("nothing", "Apache-2.0", {"R@1 nowhere": 0.25})
    folder = save_model(tiny, nothing_shipped / DEFAULT, card, half=True)
    (folder / PAGE).write_text("# Stand-in\n\nIt must not be used.\n")
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["kappaplace", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_shipped_folder_is_whole_and_light() -> None:
    assert size_bytes(REAL) <= MOST_BYTES
    model = load_model()
    assert isinstance(model, PlaceModel)
    assert (model.architecture.backbone, model.dim) == ("efficientnet_lite0", 512)
    assert model.architecture.head in ("folded", "folded-tied", "layers", "layers-mlp")
    card = checkpoint.read_card(REAL)
    assert card["licence"] == "Apache-2.0"
    assert card["metrics"]
    page = shipped.model_page(DEFAULT)
    assert "Do not use it" in page
    assert "{" not in page  # no placeholder of the template is left


def test_the_shipped_calibration_belongs_to_the_shipped_model() -> None:
    from kappaplace.calibration.calibration import PATCH_SIGNALS, QUERY_SIGNALS
    from kappaplace.calibration.sources import calibration_with

    model = load_model()
    result = calibration_with(model.fingerprint, model.preprocessing)
    assert result is not None
    assert set(result.scores) <= {*QUERY_SIGNALS, *PATCH_SIGNALS}  # what every map computes
    assert result.rerank == 10  # patch scores need patch matching


def test_lite0_in_half_precision_keeps_within_the_limit(tmp_path: Path) -> None:
    model = PlaceModel.create("efficientnet_lite0", 512, "folded").eval()
    folder = save_model(model, tmp_path, half=True)
    assert size_bytes(folder) <= MOST_BYTES
    again = load_checkpoint(folder)[0]
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    pixels = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        exact, close = model(pixels), again(pixels)
    assert float((exact.descriptor * close.descriptor).sum()) > 0.999
    torch.testing.assert_close(exact.kappa, close.kappa, rtol=1e-2, atol=1e-3)


def test_half_leaves_small_tensors_and_large_numbers_alone(tmp_path: Path) -> None:
    model = PlaceModel.create("resnet_tiny", dim=32)
    with torch.no_grad():
        model.head.last.bias.fill_(300.1)  # float16 would round this to 300.0
    save_model(model, tmp_path, half=True)
    (file,) = tmp_path.glob("model-*.safetensors")
    stored = load_file(file)
    assert {v.dtype for v in stored.values() if v.numel() > checkpoint.SMALL} == {torch.float16}
    assert float(load_model(tmp_path).head.last.bias[0].detach()) == pytest.approx(300.1, rel=1e-7)
    wild = torch.full((checkpoint.SMALL + 1,), 1e6)
    assert _round(wild) is wild
    counters = torch.zeros(checkpoint.SMALL + 1, dtype=torch.int64)
    assert _round(counters) is counters


def test_half_is_stable_and_checked(tiny: PlaceModel, tmp_path: Path) -> None:
    """Rounded weights do not change when saved again; a changed byte is detected."""
    save_model(tiny, tmp_path / "a", half=True)
    save_model(load_model(tmp_path / "a"), tmp_path / "b", half=True)
    (one,), (other,) = ((tmp_path / part).glob("model-*.safetensors") for part in "ab")
    assert one.name == other.name
    content = bytearray(one.read_bytes())
    content[-1] ^= 1
    one.write_bytes(content)
    with pytest.raises(KappaPlaceError, match="checksum differs"):
        load_model(tmp_path / "a")


def test_the_default_model_is_the_shipped_one(stand_in: Path, pictures: np.ndarray) -> None:
    by_default, by_name, by_folder = kappaplace.load_model(), load_model(DEFAULT), load_model(stand_in)
    expected = by_folder.embed(pictures).descriptor
    for model in (by_default, by_name):
        np.testing.assert_array_equal(model.embed(pictures).descriptor, expected)
    with pytest.raises(KappaPlaceError, match="32-dimensional descriptors, expected 512"):
        load_model(dim=512)


def test_our_name_is_not_taken_by_a_folder_that_is_called_so(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(PlaceModel.create("resnet_tiny", dim=16), tmp_path / DEFAULT)
    assert load_model().dim == load_model(DEFAULT).dim == 32
    assert load_model(f"./{DEFAULT}").dim == load_model(Path(DEFAULT)).dim == 16


@pytest.mark.parametrize("source", [None, DEFAULT])
def test_missing_files_are_one_sentence(source: str | None, nothing_shipped: Path) -> None:
    assert installed() == []
    with pytest.raises(KappaPlaceError, match="'kappaplace-lite0' is not part of this installation"):
        load_model(source)


def test_the_list_starts_with_it(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "models", "--json") == 0
    first = json.loads(capsys.readouterr().out)["models"][0]
    assert (first["name"], first["licence"], first["kind"]) == (DEFAULT, "Apache-2.0", "shipped")
    assert first["size_mb"] == round(size_bytes(stand_in) / 1e6, 1)
    assert run(monkeypatch, "models") == 0
    out = capsys.readouterr().out
    assert out.index(DEFAULT) < out.index("cosplace-vgg16-512") < out.index("resnet101")


def test_its_card_is_shown(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "models", DEFAULT) == 0
    assert "It must not be used." in capsys.readouterr().out
    assert run(monkeypatch, "models", DEFAULT, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["metrics"] == {"R@1 nowhere": 0.25}
    assert answer["card"].startswith("# Stand-in")


def test_other_names_are_told_in_lines(
    nothing_shipped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "models", "megaloc") == 0
    assert "8448" in capsys.readouterr().out
    assert run(monkeypatch, "models", "resnet50") == 0
    assert "2048" in capsys.readouterr().out
    assert run(monkeypatch, "models", "no-such") == 2
    assert "`kappaplace models list` shows the names" in capsys.readouterr().err
    assert run(monkeypatch, "models", DEFAULT) == 2
    assert "is not part of this installation" in capsys.readouterr().err
    assert run(monkeypatch, "models") == 0
    assert DEFAULT not in capsys.readouterr().out


def test_commands_use_it_where_no_model_is_named(
    stand_in: Path,
    tmp_path: Path,
    pictures: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from PIL import Image

    from kappaplace.data.table import PlaceImages

    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "images").mkdir()
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / "images" / f"{number}.png")
    assert run(monkeypatch, "map", "build", tmp_path / "images", "--out", tmp_path / "m", "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"] == DEFAULT
    assert len(PlaceMap.open(tmp_path / "m").localize(tmp_path / "images" / "0.png").matches) == 6
    positions = np.array([[0.0, 0.0], [50.0, 0.0], [90.0, 0.0], [0.0, 1.0], [50.0, 1.0], [90.0, 1.0]])
    table = PlaceImages.create(
        [f"{number}.png" for number in range(6)],
        positions,
        is_query=np.arange(6) >= 3,
        root=tmp_path / "images",
    )
    table.save(tmp_path / "walk.parquet")
    words = ("evaluate", tmp_path / "walk.parquet", "--k", 3, "--resamples", 0, "--no-report", "--json")
    assert run(monkeypatch, *words, "--out", tmp_path / "e") == 0
    assert json.loads(capsys.readouterr().out)["name"] == DEFAULT


def test_the_wheel_carries_every_file(tmp_path: Path) -> None:
    """The package data in pyproject.toml match the folder that `pack.py` writes."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    root = Path(__file__).parents[2]
    data = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    (pattern,) = data["kappaplace.models.shipped"]
    assert os.path.dirname(shipped.__file__) == str(root / "src" / "kappaplace" / "models" / "shipped")
    for name in ("card.json", "model-0.safetensors", PAGE, shipped.CALIBRATION):
        file = tmp_path / DEFAULT / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
        assert file in set(tmp_path.glob(pattern))


def test_a_folder_is_named_where_it_lies(stand_in: Path) -> None:
    assert shipped_folder() == stand_in
    assert shipped.is_shipped(DEFAULT)
    assert not shipped.is_shipped("cosplace-resnet50-512")
