"""Checkpoints: round trip, damaged files, wrong dimension, killed writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import kappaplace.files
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models import checkpoint
from kappaplace.models.checkpoint import CARD, ModelCard, load_checkpoint, load_model, save_model
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.place_model import PlaceModel


def weights_of(folder: Path) -> Path:
    (file,) = folder.glob("model-*.safetensors")
    return file


@pytest.mark.parametrize("head", ["mirrored", "folded-tied", "stun", "none"])
def test_round_trip_is_exact(head: str, tmp_path: Path, pictures: np.ndarray) -> None:
    preprocessing = Preprocessing((48, 64), "exact", mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    model = PlaceModel.create("resnet_tiny", dim=16, head=head, preprocessing=preprocessing)
    card = ModelCard("six random pictures", "CC0-1.0", {"R@1": 0.5}, "for tests")
    save_model(model, tmp_path / "modèle", card)
    again, card_again = load_checkpoint(tmp_path / "modèle")
    assert card_again == card
    assert again.preprocessing == preprocessing
    assert not again.training
    for own, reference in zip(model.embed(pictures), again.embed(pictures), strict=True):
        np.testing.assert_array_equal(own, reference)


def test_card_states_architecture_and_checksum(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    record = json.loads((tmp_path / CARD).read_text())
    assert record["architecture"] == {"backbone": "resnet_tiny", "dim": 32, "head": "mirrored"}
    assert len(record["sha256"]) == 64


def test_another_dimension_is_refused(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    with pytest.raises(KappaPlaceError, match="32-dimensional descriptors, expected 512"):
        load_model(tmp_path, dim=512)


def test_a_changed_byte_is_noticed(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    content = bytearray(weights_of(tmp_path).read_bytes())
    content[-1] ^= 1
    weights_of(tmp_path).write_bytes(content)
    with pytest.raises(KappaPlaceError, match="checksum differs"):
        load_model(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": "x"}'])
def test_a_damaged_card_is_one_sentence(tiny: PlaceModel, tmp_path: Path, text: str) -> None:
    save_model(tiny, tmp_path)
    (tmp_path / CARD).write_text(text)
    with pytest.raises(KappaPlaceError, match="model card"):
        load_model(tmp_path)


def test_a_newer_format_asks_for_an_upgrade(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    record = json.loads((tmp_path / CARD).read_text()) | {"format": 99, "kappaplace": "9.0"}
    (tmp_path / CARD).write_text(json.dumps(record))
    with pytest.raises(KappaPlaceError, match=r"kappaplace 9\.0, a newer version"):
        load_model(tmp_path)


def test_weights_of_another_shape_name_the_tensor(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    record = json.loads((tmp_path / CARD).read_text())
    record["architecture"]["dim"] = 64
    (tmp_path / CARD).write_text(json.dumps(record))
    with pytest.raises(KappaPlaceError, match="Check its dimension and backbone"):
        load_model(tmp_path)
    record["architecture"].update(dim=32, head="none")
    (tmp_path / CARD).write_text(json.dumps(record))
    with pytest.raises(KappaPlaceError, match="5 are unexpected"):
        load_model(tmp_path)


@pytest.mark.parametrize("write", [1, 2])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_keeps_the_old_model(
    write: int, error: BaseException, tiny: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If writing the weights or the card fails, the old model can still be loaded."""
    save_model(tiny, tmp_path)
    before = tiny.head.last.bias.clone()
    calls = []

    def fail(*args: object) -> None:
        calls.append(args)
        if len(calls) == write:
            raise error

    monkeypatch.setattr(kappaplace.files.os, "fsync", fail)
    with torch.no_grad():
        tiny.head.last.bias.add_(1.0)
    with pytest.raises((KappaPlaceError, KeyboardInterrupt)):
        save_model(tiny, tmp_path)
    assert torch.equal(load_model(tmp_path).head.last.bias, before)
    assert not list(tmp_path.glob(".*part"))


def test_a_full_disk_below_safetensors_is_one_sentence(
    tiny: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise checkpoint.SafetensorError("I/O error: File too large")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(KappaPlaceError, match="File too large"):
        save_model(tiny, tmp_path)


def test_saving_again_leaves_one_weights_file(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    with torch.no_grad():
        tiny.head.last.bias.add_(1.0)
    save_model(tiny, tmp_path)
    assert torch.equal(load_model(tmp_path).head.last.bias, tiny.head.last.bias)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": None},
        {"architecture": []},
        {"architecture": {"backbone": "resnet_tiny", "dim": "32", "head": "mirrored"}},
        {"architecture": {"backbone": "resnet_tiny", "dim": 32, "head": "mirrored", "colour": 1}},
        {"architecture": {"backbone": "resnet_tiny", "dim": 32, "head": "odd"}},
        {"preprocessing": {"mean": None}},
        {"preprocessing": {"mean": "abc"}},
        {"preprocessing": 7},
        {"weights": "../elsewhere.safetensors"},
        {"weights": None},
    ],
)
def test_a_card_of_nonsense_is_one_sentence(change: dict, tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    record = json.loads((tmp_path / CARD).read_text()) | change
    (tmp_path / CARD).write_text(json.dumps(record))
    with pytest.raises(KappaPlaceError):
        load_model(tmp_path)


def head_for(encoder: nn.Module) -> FrozenEncoder:
    model = FrozenEncoder(encoder, layer="0", preprocessing=Preprocessing(32, "exact"))
    model.head.start_at(70.0)
    return model


@pytest.mark.parametrize("folded", [False, True])
def test_a_frozen_encoders_head_round_trips(folded: bool, tmp_path: Path, pictures: np.ndarray) -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = head_for(encoder).fold() if folded else head_for(encoder)
    save_model(model, tmp_path)
    again = load_model(tmp_path, encoder=encoder)
    np.testing.assert_array_equal(again.embed(pictures).kappa, model.embed(pictures).kappa)
    assert type(again.head) is type(model.head)


def test_a_head_is_refused_by_another_encoder(tmp_path: Path) -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    save_model(head_for(encoder), tmp_path)
    with pytest.raises(KappaPlaceError, match="without its encoder"):
        load_model(tmp_path)
    with torch.no_grad():
        encoder[0].weight.mul_(2)
    with pytest.raises(KappaPlaceError, match="trained for another encoder"):
        load_model(tmp_path, encoder=encoder)


def test_unwritable_folder_is_one_sentence(tiny: PlaceModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KappaPlaceError, match="Cannot write to the folder"):
        save_model(tiny, tmp_path / "file" / "below")


def test_a_backbone_is_stated_for_foreign_files_only(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    with pytest.raises(KappaPlaceError, match="only for weights files of other projects"):
        load_model(tmp_path, backbone="resnet18")


def test_a_named_model_of_another_dimension_is_refused_before_the_download() -> None:
    with pytest.raises(KappaPlaceError, match="8448-dimensional descriptors, expected 512"):
        load_model("megaloc", dim=512)


def test_an_unknown_source_points_to_the_list() -> None:
    with pytest.raises(KappaPlaceError, match="List the names with `kappaplace models`"):
        load_model("no-such-model")


def test_a_folder_without_a_card_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match=r"there is no card\.json"):
        load_model(tmp_path)
