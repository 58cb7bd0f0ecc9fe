"""``kappaplace train`` from tables on disk, as a user meets it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import kappaplace
from kappaplace.training.recipes import RECIPES
from kappaplace.training.run import Trained
from kappaplace_city import SyntheticCity, write_city
from tests.cli.test_main import run

TINY = [
    "model.backbone=resnet_tiny",
    "model.pretrained=false",
    "model.dim=16",
    "model.size=24",
    "classes.groups_per_axis=2",
    "classes.groups_per_heading=1",
    "classes.min_images=4",
    "optimizer.epochs=2",
    "optimizer.iterations=2",
    "optimizer.batch_size=8",
]


def options(*more: str) -> list[str]:
    return [word for option in (*TINY, *more) for word in ("-s", option)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A city on disk with a training and a validation table."""
    folder = tmp_path_factory.mktemp("city")
    city = SyntheticCity(0, (1, 1))
    views = {
        "train": city.views("train", spacing=30.0, per_class=5, seed=0),
        "val": city.views("val", spacing=20.0, queries=6, seed=0),
        "test": city.views("test", spacing=30.0, queries=1, seed=0),
    }
    write_city(city, folder, 24, views=views)
    with pytest.MonkeyPatch.context() as patch:
        for split in ("train", "val"):
            patch.setattr(sys, "argv", ["kappaplace"])
            words = ("data", "import", "at-names", folder / split, "--out", folder / f"{split}.parquet")
            assert run(patch, *words) == 0
    return folder


def test_without_a_recipe_all_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "train") == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(RECIPES)


def test_shown_settings_are_a_config_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "train", "kappa-jt", "-s", "optimizer.lr=0.5", "--show-settings") == 0
    shown = capsys.readouterr().out
    assert "lr = 0.5" in shown
    file = tmp_path / "jt.toml"
    file.write_text(shown, encoding="utf-8")
    assert run(monkeypatch, "train", "kappa-jt", "--config", file, "--show-settings") == 0
    assert capsys.readouterr().out == shown


def test_a_preset_is_a_start_that_options_override(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("train", "kappa-jt", "--preset", "tab:sf_final", "--show-settings")
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    assert "epochs = 138" in shown
    assert 'group_order = "first"' in shown
    file = tmp_path / "own.toml"
    file.write_text("[optimizer]\nepochs = 7\n", encoding="utf-8")
    assert run(monkeypatch, *words, "--config", file, "-s", "loss.vmf_dim=0") == 0
    shown = capsys.readouterr().out
    assert "epochs = 7" in shown
    assert "vmf_dim = 0" in shown
    assert 'group_order = "first"' in shown
    assert run(monkeypatch, "train", "btl", "--preset", "tab:sf_final") == 2
    error = capsys.readouterr().err
    assert "'tab:sf_final' has no recipe 'btl'. Choose from: retrieval" in error
    assert error.count("\n") == 1


def test_shown_settings_explain_every_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "train", "kappa-jt", "--show-settings") == 0
    lines = capsys.readouterr().out.splitlines()
    values = [number for number, line in enumerate(lines) if " = " in line and number]
    assert len(values) > 50
    assert all(lines[number - 1].startswith("# ") for number in values)
    assert "# Random seed." in lines


def test_processes_that_do_not_write_do_not_print(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("kappaplace.training.train", lambda *_, **__: Trained(tmp_path, [], None, main=False))
    words = ("train", "retrieval", "--data", tables / "train.parquet", "--out", tmp_path)
    assert run(monkeypatch, *words) == 0
    assert capsys.readouterr().out == ""


def test_from_tables_to_a_model_that_knows_kappa(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = ("--data", tables / "train.parquet", "--val", tables / "val.parquet", "--cpu")
    assert run(monkeypatch, "train", "retrieval", *data, "--out", tmp_path / "base", *options()) == 0
    start = ("--from", tmp_path / "base" / "model")
    assert run(monkeypatch, "train", "kappa-pt", *start, *data, "--out", tmp_path / "pt", *options()) == 0
    assert "Model saved to" in capsys.readouterr().out
    for file in (
        "settings.toml",
        "steps.csv",
        "epochs.csv",
        "training.png",
        "training.pt",
        "best-ECE@1/card.json",
    ):
        assert (tmp_path / "pt" / file).is_file(), file
    assert list((tmp_path / "pt" / "log").rglob("events.out.tfevents*"))
    base, model = (kappaplace.load_model(tmp_path / name / "model") for name in ("base", "pt"))
    picture = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    before, after = base.embed(picture), model.embed(picture)
    assert before.kappa is None
    assert after.kappa > 0
    np.testing.assert_array_equal(before.descriptor, after.descriptor)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("kappa-xt",), "Unknown recipe 'kappa-xt'"),
        (("retrieval",), "Pass --data TABLE and --out FOLDER"),
        (("retrieval", "-s", "optimizer.lr=fast"), "optimizer.lr must be a number, got 'fast'"),
        (
            ("retrieval", "-s", "optimizer.lr=1"),
            "Unknown option 'optimizer.lr'. Choose a section from: model",
        ),
        (("retrieval", "--config", "nowhere.toml"), "The settings nowhere.toml cannot be read"),
        (("retrieval", "--data", "nowhere.parquet", "--out", "x"), "nowhere.parquet"),
    ],
)
def test_bad_input_is_one_sentence(
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "train", *words) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not list(tmp_path.iterdir())


def test_unreadable_image_ends_the_run_with_its_name(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy = tmp_path / "city"
    shutil.copytree(tables / "train", copy)
    for image in copy.rglob("*.jpg"):
        image.write_bytes(b"no picture")
    table = kappaplace.PlaceImages.open(tables / "train.parquet", root=copy)
    table.save(tmp_path / "broken.parquet")
    words = ("train", "retrieval", "--data", tmp_path / "broken.parquet", "--cpu", "--out", tmp_path / "run")
    assert run(monkeypatch, *words, *options()) == 2
    assert "is not an image" in capsys.readouterr().err
