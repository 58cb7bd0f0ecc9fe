"""A folder resumes only its own run (same model, same layer); what a run inherits from its starting model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.training.loop import FILE, Loop
from kappaplace.training.places import assign_classes
from kappaplace.training.recipes import settings_for
from kappaplace.training.run import train
from tests.training.small_run import OPTIONS, SIZE, small_data, small_encoder, small_run

CENTROIDS = ("anchors.source=places", "optimizer.lr=1e-2", "stop.metrics=[]")


def test_another_starting_model_is_rejected(tmp_path: Path) -> None:
    small_run("kappa-pt", str(tmp_path), *CENTROIDS, start=True)
    other = small_encoder()
    settings = settings_for("kappa-pt", "", [*OPTIONS, *CENTROIDS])
    data, validation = small_data()
    changed = type(other)(other.architecture, other.preprocessing)
    with pytest.raises(KappaPlaceError, match="started from another model"):
        train(settings, data, tmp_path, validation, model=changed, device="cpu")


def test_features_of_another_layer_are_not_reused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    settings = settings_for("kappa-pt", "", [*OPTIONS, *CENTROIDS])
    data, _ = small_data()
    stores = []
    for layer in ("0", "1"):
        model = FrozenEncoder(encoder, layer=layer, preprocessing=Preprocessing(SIZE, "exact"))
        train(settings, data, tmp_path, model=model, device="cpu")
        stores.append(np.load(tmp_path / "features" / "reduced.npy"))
        (tmp_path / FILE).unlink()
    assert not np.array_equal(*stores)


def test_prototypes_of_a_release_belong_to_its_first_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One matrix per group for groups 0 … n−1, whatever the sizes of the others."""
    monkeypatch.setattr("kappaplace.training.prototypes.FAR_ABOVE_CHANCE", -1.0)  # these ones are random
    data, _ = small_data()
    classes = assign_classes(data.positions, data.heading, 10, 30, 2, 1, 4)
    assert classes.group_sizes[0] < classes.group_sizes.max() or classes.n_groups > 1
    matrix = {"weight": torch.randn(int(classes.group_sizes[0]), 16)}
    torch.save({"classifiers_state_dict": [matrix]}, tmp_path / "release.pth")
    options = [
        "anchors.source=classifier",
        f"anchors.prototypes={tmp_path / 'release.pth'}",
        "classes.groups=1",
    ]
    options += ["optimizer.batch_size=8"]
    trained = small_run("kappa-pt", str(tmp_path / "run"), *options, start=True)
    assert np.isfinite(trained.epochs[-1]["loss"])


def test_joint_training_starts_from_the_classifier_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run("retrieval", str(tmp_path / "base"))
    seen: dict[str, torch.Tensor] = {}
    fit = Loop.fit

    def watched(self: Loop) -> list[dict[str, object]]:
        seen.update({name: value.clone() for name, value in self.work.objective.state_dict().items()})
        return fit(self)

    monkeypatch.setattr(Loop, "fit", watched)
    small_run("kappa-jt", str(tmp_path / "jt"), f"model.start={tmp_path / 'base' / 'model'}")
    from safetensors.torch import load_file

    prototypes_on_disk = load_file(tmp_path / "base" / "model" / "prototypes.safetensors")["prototypes"]
    assert torch.equal(torch.cat([seen[name] for name in sorted(seen)]), prototypes_on_disk)


def test_kappa_without_a_weight_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match="above zero to train κ"):
        small_run("kappa-jt", str(tmp_path), "loss.weight=0")
