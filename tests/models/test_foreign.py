"""Layouts of other projects, rebuilt from their documented keys, and files that must not be loaded."""

from __future__ import annotations

import pickle
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.models.backbones.timm import import_torchvision
from kappaplace.models.checkpoint import load_model, save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.published import read_prototypes, read_tensors

needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="needs the extra 'backbones'")

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
def test_depth_is_recognized(backbone: str, tmp_path: Path) -> None:
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
    loaded = load_model(tmp_path / "release.pth", head="mirrored")
    assert loaded.architecture.head == "mirrored"
    same(loaded, model)
    prototypes = read_prototypes(tmp_path / "release.pth")
    assert [tuple(p.shape) for p in prototypes] == [(5, 32), (3, 32)]
    torch.testing.assert_close(prototypes[0].norm(dim=1), torch.ones(5))


def layer(key: str, outputs: int, inputs: int) -> dict[str, Tensor]:
    return {f"{key}.weight": torch.randn(outputs, inputs) / 8, f"{key}.bias": torch.randn(outputs) / 8}


def aggregation(dim: int) -> dict[str, Tensor]:
    return {"var_head.0.1.p": torch.tensor([2.5]), **layer("var_head.0.3", dim, 512)}


# The options of the release's training, the keys it writes (d = 32), and the heads that they allow.
RELEASE_HEADS = {
    "vmf": (layer("var_head.0", 1, 32), ["linear", "variance-linear"]),
    "vmf_agg": (aggregation(32) | layer("var_head.1", 1, 32), ["mirrored", "variance"]),
    "stun_head": (layer("var_head.0", 32, 32), ["stun", "stun-s", "variance-each-linear"]),
    "separate_agg": (aggregation(32), ["variance-each-aggregation"]),
    "separate_linear_agg": (aggregation(32) | layer("var_head.1", 32, 32), ["variance-each"]),
}


def release_output(model: PlaceModel, head: dict[str, Tensor], images: Tensor, stun: bool) -> Tensor:
    """The output of the release's head, one layer after the other."""
    features = model.backbone(images)
    unit = features / features.norm(dim=1, keepdim=True)

    def pooled(p: float) -> Tensor:
        return unit.clamp(min=1e-6).pow(p).mean((2, 3)).pow(1 / p)

    if "var_head.0.1.p" in head:
        x = pooled(2.5) @ head["var_head.0.3.weight"].T + head["var_head.0.3.bias"]
        rest = "var_head.1"
    else:
        x, rest = model.aggregation.project(pooled(3.0)), "var_head.0"
    if f"{rest}.weight" in head:
        x = x @ head[f"{rest}.weight"].T + head[f"{rest}.bias"]
    return torch.sigmoid(x) if stun else torch.log1p(torch.exp(x)) + 1e-6


@pytest.mark.parametrize("option", RELEASE_HEADS)
@torch.no_grad()
def test_heads_of_the_release(option: str, tmp_path: Path) -> None:
    head, names = RELEASE_HEADS[option]
    model = PlaceModel.create("resnet18", dim=32, head="none").eval()
    file = tmp_path / "release.pth"
    release_file(model, head, file)
    if len(names) > 1:  # κ or variance, softplus or sigmoid: the keys are the same
        with pytest.raises(KappaPlaceError, match=f"allow the heads '{names[0]}', '{names[1]}'.*head=…"):
            load_model(file)
    with pytest.raises(KappaPlaceError, match=r"allow the heads .* got 'layers'"):
        load_model(file, head="layers")
    images = torch.randn(3, 3, 64, 64)
    for name in names:
        loaded = load_model(file, head=name if len(names) > 1 else None)
        assert loaded.architecture.head == name
        expected = release_output(model, head, images, stun=name.startswith("stun"))
        output = loaded.head(*loaded.features(images))
        torch.testing.assert_close(output, expected.squeeze(1), rtol=1e-4, atol=1e-6)
        embeddings = loaded(images)
        if name in ("linear", "mirrored"):
            assert embeddings.variance is None
            torch.testing.assert_close(embeddings.kappa, output)
        else:
            assert embeddings.kappa is None
            each = output.exp() if name == "stun" else output
            torch.testing.assert_close(embeddings.variance, each.reshape(3, -1).mean(1))
    plain = load_model(file, head="none")
    assert plain.head is None
    same(plain, model)


def test_a_head_that_a_file_specifies_is_not_chosen_again(tmp_path: Path) -> None:
    save_model(PlaceModel.create("resnet_tiny", dim=8), tmp_path / "own")
    with pytest.raises(KappaPlaceError, match="head is only for weights files of other projects"):
        load_model(tmp_path / "own", head="variance")


@pytest.mark.parametrize(
    "head",
    [
        layer("var_head.0", 7, 9),
        {"var_head.0.p": torch.ones(1)} | layer("var_head.2", 32, 512) | layer("var_head.4", 32, 32),
    ],
)
def test_an_unknown_head_is_refused(head: dict[str, Tensor], tmp_path: Path) -> None:
    """The second is the release's "mlp", whose ReLU and GeM differ from those of "separate_linear_agg"."""
    release_file(PlaceModel.create("resnet18", dim=32), head, tmp_path / "release.pth")
    with pytest.raises(KappaPlaceError, match="unknown head"):
        load_model(tmp_path / "release.pth")


@pytest.mark.parametrize("wrapper", ["model_state_dict", "state_dict", ""])
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod."])
def test_training_checkpoints_with_numpy_numbers(wrapper: str, prefix: str, tmp_path: Path) -> None:
    """``last_checkpoint.pth`` of CosPlace and of the release has the best recall as a NumPy number."""
    model = PlaceModel.create("resnet18", dim=16, head="none")
    state = {f"{prefix}{key}": value for key, value in cosplace_state(model).items()}
    numbers = {"best_val_recall1": np.float64(81.5), "epoch_num": 3, "old": np.float32(0.5), "n": np.int64(2)}
    torch.save({wrapper: state, **numbers} if wrapper else state, tmp_path / "last_checkpoint.pth")
    same(load_model(tmp_path / "last_checkpoint.pth"), model)


def test_numpy_numbers_of_numpy_1(tmp_path: Path) -> None:
    """Their pickles name another module."""
    model = PlaceModel.create("resnet_tiny", dim=16, head="none")
    file = tmp_path / "old.pth"
    torch.save({"state": model.state_dict(), "best": np.float64(1.5)}, file, pickle_protocol=2)
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert read_tensors(file)["best"] == 1.5


@pytest.mark.parametrize("head", [{}, layer("var_head.0", 2048, 2048)])
@torch.no_grad()
def test_stun_teacher_and_student(head: dict[str, Tensor], tmp_path: Path) -> None:
    """GeM of the map as it is, no projection, and s from the pooled features."""
    trunk = PlaceModel.create("resnet50", dim=8, head="none").eval().backbone
    state = {}
    for name, value in trunk.state_dict().items():
        child, _, rest = name.partition(".")
        state[f"backbone.{NUMBERS[child]}.{rest}"] = value
    state |= {"backbone.8.p": torch.tensor([2.8])} | head
    torch.save({"epoch": 5, "state_dict": state, "recalls": np.float64(0.6)}, tmp_path / "ckpt.pth.tar")
    loaded = load_model(tmp_path / "ckpt.pth.tar")
    assert (loaded.dim, loaded.preprocessing.fixed_size) == (2048, (200, 200))
    images = torch.randn(2, 3, 64, 64)
    pooled = trunk(images).clamp(min=1e-6).pow(2.8).mean((2, 3)).pow(1 / 2.8)
    embeddings = loaded(images)
    torch.testing.assert_close(embeddings.descriptor, pooled / pooled.norm(dim=1, keepdim=True))
    if head:
        s = torch.sigmoid(pooled @ head["var_head.0.weight"].T + head["var_head.0.bias"])
        torch.testing.assert_close(embeddings.variance, s.exp().mean(1))
    optimized = loaded.optimize("cpu")
    torch.testing.assert_close(optimized(images).descriptor, embeddings.descriptor, rtol=1e-3, atol=1e-4)


def test_a_plain_backbone_has_the_dimension_of_its_map() -> None:
    with pytest.raises(KappaPlaceError, match="dim must be 2048 for resnet50_gem, got 512"):
        PlaceModel.create("resnet50_gem", 512)


@needs_timm
@pytest.mark.parametrize(
    "number", [0, 1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4, 5, 6, 7))]
)
@torch.no_grad()
def test_cosplace_efficientnets(number: int, tmp_path: Path) -> None:
    """CosPlace keeps the only child of torchvision's model that it uses, ``features``, as number 0."""
    reference = getattr(import_torchvision().models, f"efficientnet_b{number}")(weights=None).eval()
    channels = reference.features[-1][0].out_channels
    state = {f"backbone.0.{key}": value for key, value in reference.features.state_dict().items()}
    state |= {"aggregation.1.p": torch.tensor([3.0]), **layer("aggregation.3", 16, channels)}
    torch.save(state, tmp_path / "weights.pth")
    loaded = load_model(tmp_path / "weights.pth")
    assert loaded.architecture.backbone == f"torchvision_efficientnet_b{number}"
    images = torch.randn(1, 3, 64, 96)
    torch.testing.assert_close(loaded.backbone(images), reference.features(images))


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
    with pytest.raises(KappaPlaceError, match="contains no class prototypes"):
        read_prototypes(tmp_path / "w.pth")
