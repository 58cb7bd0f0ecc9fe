"""Models to the hub and back, through the real client and a hub on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import ModelCard, load_model, save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.sharing import checked_name, pull_model, push_model
from tests.cli.test_main import run
from tests.fake_hub import FakeHub, fake_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_ENDPOINT", "")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def folder(tiny: PlaceModel, tmp_path: Path) -> Path:
    card = ModelCard(data="a town", license="MIT", metrics={"R@1": 0.5})
    return save_model(tiny, tmp_path / "model", card)


def test_there_and_back(hub: FakeHub, folder: Path, tmp_path: Path, tiny: PlaceModel) -> None:
    address = push_model(folder, "me/town")
    assert address == f"{hub.address}/me/town"
    assert hub.private == {"models/me/town": True}
    files = hub.repositories["models/me/town"]
    assert "license: mit" in files["README.md"].decode()
    again = load_model(pull_model("me/town", tmp_path / "again"))
    images = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(tiny(images).descriptor, again(images).descriptor, rtol=0, atol=0)
    assert sorted(f.name for f in (tmp_path / "again").iterdir()) == sorted(files)


def test_a_second_push_takes_the_old_weights_away(hub: FakeHub, folder: Path, tiny: PlaceModel) -> None:
    push_model(folder, "me/town", public=True)
    assert hub.private == {"models/me/town": False}
    hub.repositories["models/me/town"]["notes.txt"] = b"not ours"
    with torch.no_grad():
        next(tiny.parameters()).add_(1.0)
    push_model(save_model(tiny, folder), "me/town")
    files = hub.repositories["models/me/town"]
    assert len([name for name in files if name.endswith(".safetensors")]) == 1
    assert "notes.txt" in files


def test_only_what_the_card_names_is_downloaded(hub: FakeHub, folder: Path, tmp_path: Path) -> None:
    push_model(folder, "me/town")
    hub.repositories["models/me/town"] |= {"pytorch_model.bin": b"pickle", "setup.py": b"code", "a.pkl": b"x"}
    pull_model("me/town", tmp_path / "again")
    assert {Path(name).suffix for name in hub.asked} == {".json", ".safetensors", ".md"}


@pytest.mark.parametrize("weights", ["../../evil.safetensors", "model.pkl", "/etc/model-0.safetensors"])
def test_a_card_that_reaches_out_is_refused(weights: str, hub: FakeHub, folder: Path, tmp_path: Path) -> None:
    push_model(folder, "me/town")
    files = hub.repositories["models/me/town"]
    files["card.json"] = json.dumps(json.loads(files["card.json"]) | {"weights": weights}).encode()
    files[weights] = b"x"
    with pytest.raises(KappaPlaceError, match="not downloaded"):
        pull_model("me/town", tmp_path / "again")
    assert set(hub.asked) == {"card.json"}
    assert not (tmp_path / "again").exists()


def test_wrong_bytes_do_not_arrive(hub: FakeHub, folder: Path, tmp_path: Path) -> None:
    push_model(folder, "me/town")
    files = hub.repositories["models/me/town"]
    (weights,) = (name for name in files if name.endswith(".safetensors"))
    files[weights] = files[weights][:-1] + b"\x7f"
    with pytest.raises(KappaPlaceError, match="checksum differs"):
        pull_model("me/town", tmp_path / "again")
    assert not [f for f in tmp_path.iterdir() if "again" in f.name]


def test_what_goes_wrong_is_one_sentence(hub: FakeHub, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match="has no model repository me/none"):
        pull_model("me/none", tmp_path / "again")
    with pytest.raises(KappaPlaceError, match="OWNER/NAME"):
        pull_model("a/b/c", tmp_path / "again")
    push_model(folder, "me/town")
    with pytest.raises(KappaPlaceError, match="no such revision"):
        pull_model("me/town", tmp_path / "again", revision="nothing")
    with pytest.raises(KappaPlaceError, match="already exists"):
        pull_model("me/town", folder)
    del hub.repositories["models/me/town"]["card.json"]
    with pytest.raises(KappaPlaceError, match=r"has no card.json"):
        pull_model("me/town", tmp_path / "again")
    hub.refuses = 403
    with pytest.raises(KappaPlaceError, match="HF_TOKEN"):
        push_model(folder, "me/town")


def test_no_network(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(KappaPlaceError, match="hub request"):
        pull_model("me/town", tmp_path / "again")


def test_without_the_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(KappaPlaceError, match='the extra "hub"'):
        push_model(folder, "me/town")


@pytest.mark.parametrize(
    "name",
    [
        "../a.json",
        "/a.json",
        "a/../b.json",
        "a\\b.json",
        ".a.json",
        "a.pkl",
        "a.py",
        "a//b.json",
        "",
        "C:/a.json",
    ],
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(KappaPlaceError, match="is not a file name"):
        checked_name(name)


def test_commands(
    hub: FakeHub,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "models", "push", folder, "me/town", "--json") == 0
    assert json.loads(capsys.readouterr().out)["repository"] == "me/town"
    assert run(monkeypatch, "models", "pull", "me/town", "--out", tmp_path / "again") == 0
    assert "Downloaded to" in capsys.readouterr().out
    assert run(monkeypatch, "models", "pull", "me/town", "--out", tmp_path / "again") == 2
