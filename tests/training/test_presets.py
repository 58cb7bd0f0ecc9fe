"""Presets that do what the code of the paper and of its baselines does, and the options that they set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.files import packaged_toml
from kappaplace.models.checkpoint import load_checkpoint, load_model, save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.training.loop import load_state
from kappaplace.training.recipes import RECIPES, settings_for
from kappaplace.training.run import Trained, train
from kappaplace.training.settings import Settings, flat
from kappaplace.training.start import starting_model
from kappaplace.training.validation import Validator
from tests.training.tiny import OPTIONS, City

PRESETS = packaged_toml("kappaplace.training", "paper.toml")
NUMBERS = packaged_toml("kappaplace.evaluation", "paper.toml")
RUNS = [(name, recipe) for name, part in PRESETS.items() for recipe in part.get("recipes", ["kappa-pt"])]


def test_every_table_of_the_paper_has_a_preset() -> None:
    labels = {table["label"] for table in NUMBERS["tables"]} | {cost["table"] for cost in NUMBERS["costs"]}
    assert set(PRESETS) == labels | {"paper"}
    for name, part in PRESETS.items():
        known = set(part.get("recipes", RECIPES)) | {"*", "recipes"}
        assert set(part) <= known, f"the preset {name} changes recipes that it does not list"


@pytest.mark.parametrize(("name", "recipe"), RUNS)
def test_a_preset_changes_what_it_states(name: str, recipe: str) -> None:
    """Every value is valid and differs from the default, so the file lists differences only."""
    plain, preset = flat(settings_for(recipe)), flat(settings_for(recipe, peers=name))
    for part in (PRESETS["paper"], PRESETS[name]):
        for key in ("*", recipe):
            for section, options in part.get(key, {}).items():
                for option, value in options.items():
                    assert preset[f"{section}.{option}"] == value
                    assert plain[f"{section}.{option}"] != value, f"{recipe}: {section}.{option}"
    assert preset["run.seed"] == plain["run.seed"]


def test_options_override_a_preset_and_unknown_presets_are_reported() -> None:
    settings = settings_for("kappa-jt", options=["optimizer.epochs=2"], peers="tab:sf_final")
    assert (settings.optimizer.epochs, settings.loss.vmf_dim) == (2, 256)
    with pytest.raises(KappaPlaceError, match=r"Unknown preset 'tab:x'\. Choose from: paper, tab:sf_final"):
        settings_for("kappa-jt", peers="tab:x")
    with pytest.raises(KappaPlaceError, match="'tab:l2_cosplace_app' has no recipe 'stun'"):
        settings_for("stun", peers="tab:l2_cosplace_app")


def tiny(recipe: str, *options: str, peers: str = "") -> Settings:
    return settings_for(recipe, options=[*OPTIONS, *options], peers=peers)


@pytest.mark.parametrize("recipe", ["retrieval", "kappa-pt", "kappa-jt", "stun", "gnll", "linear-head"])
def test_every_recipe_runs_with_the_preset(recipe: str, city: City, retrieval: Path, tmp_path: Path) -> None:
    start = [f"model.start={retrieval / 'model'}"] if RECIPES[recipe].needs_start else []
    settings = tiny(recipe, *start, "loss.vmf_dim=16", peers="paper")
    trained = train(settings, city.data, tmp_path, city.validation, device="cpu")
    assert len(trained.epochs) == 3
    assert load_model(trained.folder / "model").architecture == trained.model.architecture
    assert not trained.model.preprocessing.reduced_jpeg


def stun_run(city: City, retrieval: Path, folder: Path, *options: str) -> Trained:
    settings = tiny("stun", f"model.start={retrieval / 'model'}", *options)
    return train(settings, city.data, folder, city.validation, device="cpu")


def test_stun_keeps_its_last_epoch(
    city: City, retrieval: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an earlier one has a better R@1: that is the model that STUN's authors use."""
    measure, recalls = Validator.measure, iter([0.9, 0.8, 0.7, 0.6, 0.5])
    monkeypatch.setattr(Validator, "measure", lambda *given: measure(*given) | {"R@1": next(recalls)})
    trained = stun_run(city, retrieval, tmp_path, "optimizer.epochs=4", "optimizer.lr=0.05")
    assert [row["R@1"] for row in trained.epochs] == [0.9, 0.8, 0.7, 0.6, 0.5]
    state = load_state(tmp_path)
    assert state is not None
    assert state["epoch"] == 4
    for name, value in load_checkpoint(tmp_path / "model")[0].state_dict().items():
        torch.testing.assert_close(value, state["model"][name], rtol=0, atol=0)


def test_a_new_student_is_not_its_teacher(city: City, retrieval: Path, tmp_path: Path) -> None:
    teacher = load_checkpoint(retrieval / "model")[0].state_dict()
    still = (
        "optimizer.lr=1e-12",
        "optimizer.epochs=1",
        "optimizer.iterations=1",
        "model.freeze_batchnorm=true",
    )
    losses = {}
    for student in ("teacher", "new"):
        trained = stun_run(city, retrieval, tmp_path / student, *still, f"model.student={student}")
        weight = trained.model.state_dict()["backbone.layer3.0.conv1.weight"]
        same = torch.allclose(weight, teacher["backbone.layer3.0.conv1.weight"], atol=1e-6)
        assert same == (student == "teacher")
        losses[student] = trained.epochs[-1]["loss"]
    assert losses["new"] > losses["teacher"]  # the teacher is still the trained model


def test_stun_can_be_scored_by_s(tmp_path: Path) -> None:
    model = PlaceModel.create("resnet_tiny", 16, "stun-s").eval()
    images = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        s = model.head(*model.features(images))
        torch.testing.assert_close(model(images).variance, s.mean(1))
        other = PlaceModel.create("resnet_tiny", 16, "stun").eval()
        other.load_state_dict(model.state_dict())
        torch.testing.assert_close(other(images).variance, s.exp().mean(1))
    assert load_model(save_model(model, tmp_path / "model")).architecture.head == "stun-s"


@pytest.mark.parametrize("fixed", [True, False])
def test_statistics_of_frozen_stages(fixed: bool, city: City, tmp_path: Path) -> None:
    """The code of CosPlace and of the release freezes weights, not statistics."""
    options = [
        "model.backbone=resnet18",
        "model.trainable=partial",
        f"model.frozen_statistics={str(fixed).lower()}",
    ]
    settings = tiny("retrieval", *options, "optimizer.iterations=1", "optimizer.epochs=1")
    before = {k: v.clone() for k, v in starting_model(settings, RECIPES["retrieval"]).state_dict().items()}
    after = train(settings, city.data, tmp_path, device="cpu").model.state_dict()
    for part in ("bn1", "layer1.0.bn1", "layer2.1.bn2"):
        assert (
            torch.equal(before[f"backbone.{part}.running_mean"], after[f"backbone.{part}.running_mean"])
            == fixed
        )
        assert torch.equal(before[f"backbone.{part}.weight"], after[f"backbone.{part}.weight"])
    assert not torch.equal(
        before["backbone.layer4.0.bn1.running_mean"], after["backbone.layer4.0.bn1.running_mean"]
    )


def test_gnll_per_dimension(city: City, retrieval: Path, tmp_path: Path) -> None:
    """With several outputs, dimensions that vary more get a larger variance than others."""
    options = ["model.head=variance-each", "optimizer.epochs=3", "stop.score=variance-upper"]
    settings = tiny("gnll", f"model.start={retrieval / 'model'}", *options)
    trained = train(settings, city.data, tmp_path, city.validation, device="cpu")
    assert all(np.isfinite(row["ECE@1"]) for row in trained.epochs)
    losses = [row["loss"] for row in trained.epochs[1:]]
    assert losses[-1] < losses[0]
    model = trained.model
    with torch.no_grad():
        each = model.head(*model.features(model.preprocessing.normalize(city.data.images[:8])))
    assert each.shape == (8, model.dim)
    assert float(each.std(1).min()) > 0
