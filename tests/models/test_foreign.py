"""Layouts of other projects, rebuilt from their documented keys, and files that must not be loaded."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import load_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.published import read_prototypes

NUMBERS = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}


def cosplace_state(model: PlaceModel) -> dict[str, Tensor]:
    """Weights of a model under the names in CosPlace's files."""
    state = {}
    for name, value in model.backbone.state_dict().items():
        child, _, rest = name.partition(".")
        state[f"backbone.{rest if child == 'features' else f'{NUMBERS[child]}.{rest}'}"] = value
    state["aggregation.1.p"] = model.aggregation.gem.p.data
    state["aggregation.3.weight"] = model.aggregation.project.weight.data
    state["aggregation.3.bias"] = model.aggregation.project.bias.data
    return state


def same(one: PlaceModel, other: PlaceModel) -> None:
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for own, reference in zip(one.eval()(images), other.eval()(images), strict=True):
            if own is not None:
                torch.testing.assert_close(own, reference, rtol=0, atol=0)


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50", "vgg16"])
def test_cosplace_file(backbone: str, tmp_path: Path) -> None:
    model = PlaceModel.create(backbone, dim=64, head="none")
    torch.save(cosplace_state(model), tmp_path / "weights.pth")
    loaded = load_model(tmp_path / "weights.pth")
    assert loaded.architecture == model.architecture
    assert loaded.preprocessing.mode == "none"
    same(loaded, model)


@pytest.mark.parametrize("backbone", ["resnet101", "resnet152"])
def test_depth_is_recognised(backbone: str, tmp_path: Path) -> None:
    torch.save(cosplace_state(PlaceModel.create(backbone, dim=8, head="none")), tmp_path / "weights.pth")
    assert load_model(tmp_path / "weights.pth").architecture.backbone == backbone


def release_file(model: PlaceModel, head: dict[str, Tensor], file: Path) -> None:
    """The authors' release: a training checkpoint with the model, its head and the classifiers."""
    classifiers = [{"weight": torch.randn(5, model.dim)}, {"weight": torch.randn(3, model.dim)}]
    state = {**cosplace_state(model), **head}
    torch.save({"epoch": 7, "model_state_dict": state, "classifiers_state_dict": classifiers}, file)


def test_release_with_mirrored_head_and_prototypes(tmp_path: Path) -> None:
    model = PlaceModel.create("resnet18", dim=32)
    model.head.aggregation.gem.p.data.fill_(3.7)
    head = {
        "var_head.0.1.p": model.head.aggregation.gem.p.data,
        "var_head.0.3.weight": model.head.aggregation.project.weight.data,
        "var_head.0.3.bias": model.head.aggregation.project.bias.data,
        "var_head.1.weight": model.head.last.weight.data,
        "var_head.1.bias": model.head.last.bias.data,
    }
    release_file(model, head, tmp_path / "release.pth")
    loaded = load_model(tmp_path / "release.pth")
    assert loaded.architecture.head == "mirrored"
    same(loaded, model)
    prototypes = read_prototypes(tmp_path / "release.pth")
    assert [tuple(p.shape) for p in prototypes] == [(5, 32), (3, 32)]
    torch.testing.assert_close(prototypes[0].norm(dim=1), torch.ones(5))


@pytest.mark.parametrize(("name", "outputs"), [("linear", 1), ("stun", 32)])
def test_release_with_other_heads(name: str, outputs: int, tmp_path: Path) -> None:
    model = PlaceModel.create("resnet18", dim=32, head=name)
    head = {"var_head.0.weight": model.head.last.weight.data, "var_head.0.bias": model.head.last.bias.data}
    assert head["var_head.0.weight"].shape == (outputs, 32)
    release_file(model, head, tmp_path / "release.pth")
    loaded = load_model(tmp_path / "release.pth")
    assert loaded.architecture.head == name
    same(loaded, model)


def test_an_unknown_head_is_refused(tmp_path: Path) -> None:
    model = PlaceModel.create("resnet18", dim=32)
    head = {"var_head.0.weight": torch.zeros(7, 9), "var_head.0.bias": torch.zeros(7)}
    release_file(model, head, tmp_path / "release.pth")
    with pytest.raises(KappaPlaceError, match="unknown uncertainty head"):
        load_model(tmp_path / "release.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_torchvision_resnet_in_half_precision(suffix: str, tmp_path: Path) -> None:
    model = PlaceModel.create("resnet18", dim=16)
    state = {k: v.half() if v.is_floating_point() else v for k, v in model.backbone.state_dict().items()}
    if suffix == ".pth":  # old files without the step counter of BatchNorm
        state = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    state |= {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    file = tmp_path / f"resnet18{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    loaded = load_model(file, dim=16)
    assert loaded.architecture.backbone == "resnet18"
    assert not loaded.training
    expected = model.backbone.layer4[1].conv2.weight.half().float()
    torch.testing.assert_close(loaded.backbone.layer4[1].conv2.weight, expected, rtol=0, atol=0)


def test_backbone_can_be_stated(tmp_path: Path) -> None:
    torch.save(PlaceModel.create("resnet50", dim=8).backbone.state_dict(), tmp_path / "weights.pth")
    assert load_model(tmp_path / "weights.pth", dim=8).architecture.backbone == "resnet50"
    v1 = load_model(tmp_path / "weights.pth", dim=8, backbone="resnet50_v1")
    assert v1.backbone.layer2[0].conv1.stride == (2, 2)


def test_another_dimension_is_refused(tmp_path: Path) -> None:
    torch.save(cosplace_state(PlaceModel.create("resnet18", dim=64, head="none")), tmp_path / "w.pth")
    with pytest.raises(KappaPlaceError, match="64-dimensional descriptors, expected 512"):
        load_model(tmp_path / "w.pth", dim=512)


class Exploit:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("this must never run",))


def test_code_in_a_weights_file_never_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"conv1.weight": Exploit()}, tmp_path / "evil.pth")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Exploit()))
    for file in ("evil.pth", "evil.pkl"):
        with pytest.raises(KappaPlaceError, match="contains more than tensors"):
            load_model(tmp_path / file)
    assert "never run" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["junk.pth", "junk.safetensors"])
@pytest.mark.parametrize("content", [b"", b"junk" * 50])
def test_junk_is_one_sentence(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(KappaPlaceError, match="junk"):
        load_model(tmp_path / name)


@pytest.mark.parametrize("content", [{"stem.weight": torch.zeros(2)}, {"a": 1}, [1, 2]])
def test_unknown_layouts_are_one_sentence(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(KappaPlaceError, match="layout"):
        load_model(tmp_path / "other.pth")


def test_incomplete_files_name_what_is_missing(tmp_path: Path) -> None:
    state = cosplace_state(PlaceModel.create("resnet18", dim=8, head="none"))
    for key in ("aggregation.1.p", "aggregation.3.bias"):
        torch.save({k: v for k, v in state.items() if k != key}, tmp_path / "w.pth")
        with pytest.raises(KappaPlaceError, match=key):
            load_model(tmp_path / "w.pth")
    torch.save({"classifiers_state_dict": [{"centre": torch.zeros(2, 2)}]}, tmp_path / "w.pth")
    with pytest.raises(KappaPlaceError, match="'weight' is missing"):
        read_prototypes(tmp_path / "w.pth")


def test_prototypes_missing(tmp_path: Path) -> None:
    torch.save({"model_state_dict": {}}, tmp_path / "w.pth")
    with pytest.raises(KappaPlaceError, match="does not contain class prototypes"):
        read_prototypes(tmp_path / "w.pth")
