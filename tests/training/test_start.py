"""The starting model: new or trained, with the head and the frozen parts of the recipe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.models.checkpoint import AnyModel, save_model
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.heads import LinearKappaHead, MirroredKappaHead
from kappaplace.models.place_model import PlaceModel
from kappaplace.records import to_plain
from kappaplace.training.recipes import RECIPES
from kappaplace.training.run import Trained, train
from kappaplace.training.start import Engine, HeadNet, OneProcess, TrainingNet, starting_model, with_head
from tests.training.tiny import SIDE, City, plain_encoder, tiny_settings

INPUT = Preprocessing(SIDE, "exact")


def start(recipe: str, *options: str, source_model: AnyModel | None = None) -> AnyModel:
    return starting_model(tiny_settings(recipe, *options), RECIPES[recipe], source_model)


def trainable(model: nn.Module) -> set[str]:
    return {name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad}


def same(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("recipe", [name for name, recipe in RECIPES.items() if not recipe.needs_start])
def test_a_new_model_follows_settings_and_seed(recipe: str) -> None:
    first, again, other = (start(recipe, f"run.seed={seed}") for seed in (1, 1, 2))
    assert isinstance(first, PlaceModel)
    assert to_plain(first.architecture) == {
        "backbone": "resnet_tiny",
        "dim": 32,
        "head": RECIPES[recipe].head,
    }
    assert first.preprocessing.fixed_size == (SIDE, SIDE)
    assert same(first, again)
    assert not same(first, other)
    assert all(parameter.requires_grad for parameter in first.parameters())


@pytest.mark.parametrize("recipe", [name for name, recipe in RECIPES.items() if recipe.needs_start])
def test_recipes_for_trained_models_ask_for_one(recipe: str) -> None:
    with pytest.raises(
        KappaPlaceError, match=rf"The recipe {recipe} starts from a trained model\. .*model\.start"
    ):
        start(recipe)


@pytest.mark.parametrize("recipe", [name for name, recipe in RECIPES.items() if recipe.frozen])
def test_post_training_leaves_only_the_head_to_move(recipe: str) -> None:
    source = PlaceModel.create("resnet_tiny", 32, "none")
    model = start(recipe, source_model=source).train()
    assert trainable(model) == {"head"}
    assert not any(module.training for module in (model.backbone, *model.backbone.modules()))
    assert same(model.backbone, source.backbone)
    assert same(model.aggregation, source.aggregation)


def test_partial_training_freezes_the_first_stages() -> None:
    model = start("retrieval", "model.backbone=resnet18", "model.trainable=partial").train()
    moving = {
        name.split(".")[1] for name, p in model.backbone.named_parameters(prefix="b") if p.requires_grad
    }
    assert moving == {"layer3", "layer4"}
    assert not model.backbone.bn1.training
    assert model.backbone.layer4.training


def test_a_folder_is_a_start_and_stays_as_it_is(tmp_path: Path) -> None:
    source = PlaceModel.create("resnet_tiny", 32, "none", preprocessing=INPUT)
    save_model(source, tmp_path)
    model = start("kappa-pt", f"model.start={tmp_path}")
    assert isinstance(model.head, MirroredKappaHead)
    assert not model.head.trained
    assert same(model.backbone, source.backbone)
    assert model.preprocessing == INPUT


def test_a_head_of_the_same_kind_keeps_its_weights_and_another_is_new() -> None:
    source = PlaceModel.create("resnet_tiny", 32, "mirrored")
    model = with_head(source, "mirrored")
    assert same(model, source)
    assert isinstance(model.head, MirroredKappaHead)
    assert model.head.trained
    other = with_head(source, "linear")
    assert isinstance(other.head, LinearKappaHead)
    assert not other.head.trained
    assert same(other.backbone, source.backbone)
    with torch.no_grad():  # a copy: training must not reach back into what was given
        for parameter in model.parameters():
            parameter.zero_()
    assert source.backbone.conv1.weight.any()


def test_the_head_may_start_from_the_trained_aggregation() -> None:
    source = PlaceModel.create("resnet_tiny", 32, "none")
    source.aggregation.gem.p.data.fill_(2.5)
    copied, fresh = (
        start("kappa-pt", f"model.copy_aggregation={flag}", source_model=source).head
        for flag in ("true", "false")
    )
    assert same(copied.aggregation, source.aggregation)
    assert not same(fresh.aggregation, source.aggregation)


def test_another_head_can_be_requested() -> None:
    model = start("kappa-jt", "model.head=mirrored-tied")
    assert isinstance(model.head, MirroredKappaHead)
    assert model.head.tied
    with pytest.raises(KappaPlaceError, match="Unknown head 'square'"):
        start("kappa-jt", "model.head=square")


def test_frozen_encoders_take_the_recipes_that_do_not_change_them() -> None:
    encoder = FrozenEncoder(plain_encoder(), layer="2", preprocessing=INPUT)
    for recipe in ("kappa-pt", "contrastive-pt"):
        model = start(recipe, source_model=encoder)
        assert model.encoder is encoder.encoder
        assert trainable(model) == {"head"}
        assert model.head is not encoder.head  # the caller's own is not trained behind their back
    for recipe in ("retrieval", "kappa-jt", "contrastive", "stun", "gnll", "mc-dropout", "btl"):
        with pytest.raises(KappaPlaceError, match=f"The recipe {recipe} changes the encoder"):
            start(recipe, source_model=encoder)
    with pytest.raises(KappaPlaceError, match="layer of a FrozenEncoder determines its head"):
        start("kappa-pt", "model.head=mirrored", source_model=encoder)


def test_the_linear_head_of_a_frozen_encoder_is_linear() -> None:
    """An encoder with a layer has another head, which this recipe must not train."""
    start("linear-head", source_model=FrozenEncoder(plain_encoder(), preprocessing=INPUT))
    with pytest.raises(KappaPlaceError, match="linear-head"):
        start("linear-head", source_model=FrozenEncoder(plain_encoder(), layer="2", preprocessing=INPUT))


def test_sides_that_a_backbone_does_not_support_are_reported() -> None:
    with pytest.raises(KappaPlaceError, match=r"must be a multiple of 14 .*got 32"):
        start("retrieval", "model.backbone=dinov2_vits14")


def test_nets_equal_the_model() -> None:
    model = PlaceModel.create("resnet_tiny", 32).eval()
    images = torch.randn(2, 3, SIDE, SIDE)
    descriptor, kappa = TrainingNet(model)(images)
    expected = model(images)
    torch.testing.assert_close(descriptor, expected.descriptor)
    torch.testing.assert_close(kappa, expected.kappa)
    reduced = model.head.reduce(*model.features(images))
    torch.testing.assert_close(HeadNet(model.head)(reduced), expected.kappa)


def weights(run: Trained) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


@pytest.mark.parametrize("recipe", ["retrieval", "kappa-jt"])
def test_one_process_trains_the_same_without_accelerate(
    recipe: str, city: City, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate")
    settings = tiny_settings(recipe)
    expected = train(settings, city.data, tmp_path / "with", city.validation, device="cpu")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    run = train(settings, city.data, tmp_path / "without", city.validation, device="cpu")
    assert isinstance(Engine.create(settings.run, "cpu", tmp_path).accelerator, OneProcess)
    for name, value in weights(expected).items():
        torch.testing.assert_close(weights(run)[name], value, rtol=0, atol=0)
    assert [each["loss"] for each in run.epochs[1:]] == [each["loss"] for each in expected.epochs[1:]]


def test_several_processes_need_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(MissingExtra, match=r'several processes needs the extra "train"\. Install it with'):
        Engine.create(tiny_settings("retrieval").run, "cpu", tmp_path)
