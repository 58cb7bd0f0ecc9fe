"""Own checkpoints: round trip, damage, wrong dimension, killed writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import kappaplace.files
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import CARD, WEIGHTS, ModelCard, load_checkpoint, save_model
from kappaplace.models.loading import load_model
from kappaplace.models.place_model import PlaceModel


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
    for mine, theirs in zip(model.embed(pictures), again.embed(pictures), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_card_states_architecture_and_checksum(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    record = json.loads((tmp_path / CARD).read_text())
    assert record["architecture"] == {"backbone": "resnet_tiny", "dim": 32, "head": "mirrored"}
    assert len(record["sha256"]) == 64


def test_another_dimension_is_refused(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    with pytest.raises(KappaPlaceError, match="32-dimensional descriptors, 512 were asked for"):
        load_model(tmp_path, dim=512)


def test_a_changed_byte_is_noticed(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    content = bytearray((tmp_path / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (tmp_path / WEIGHTS).write_bytes(content)
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
    with pytest.raises(KappaPlaceError, match=r"kappaplace 9\.0, which is newer"):
        load_model(tmp_path)


def test_weights_of_another_shape_name_the_tensor(tiny: PlaceModel, tmp_path: Path) -> None:
    save_model(tiny, tmp_path)
    record = json.loads((tmp_path / CARD).read_text())
    record["architecture"]["dim"] = 64
    (tmp_path / CARD).write_text(json.dumps(record))
    with pytest.raises(KappaPlaceError, match="another dimension or backbone"):
        load_model(tmp_path)
    record["architecture"].update(dim=32, head="none")
    (tmp_path / CARD).write_text(json.dumps(record))
    with pytest.raises(KappaPlaceError, match="5 are unknown"):
        load_model(tmp_path)


def test_a_write_that_fails_keeps_the_old_model(
    tiny: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tiny, tmp_path)
    before = (tmp_path / WEIGHTS).read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kappaplace.files.os, "fsync", full)
    with torch.no_grad():
        tiny.head.last.bias.add_(1.0)
    with pytest.raises(KappaPlaceError, match="No space left on device"):
        save_model(tiny, tmp_path)
    assert (tmp_path / WEIGHTS).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [CARD, WEIGHTS]


def test_unwritable_folder_is_one_sentence(tiny: PlaceModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KappaPlaceError, match="Cannot write to the folder"):
        save_model(tiny, tmp_path / "file" / "below")


def test_an_unknown_source_points_to_the_list() -> None:
    with pytest.raises(KappaPlaceError, match="`kappaplace models` lists the names"):
        load_model("no-such-model")


def test_a_folder_without_a_card_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match=r"there is no card\.json"):
        load_model(tmp_path)
