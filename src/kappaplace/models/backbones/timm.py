"""Backbones from timm (extra ``backbones``), which is imported only when one of them is built.

timm imports torchvision. If torchvision is compiled for CUDA and torch for the CPU, that import fails with
``operator torchvision::nms does not exist``. Only the Python part of torchvision is needed here (layers,
transforms), so this module declares the two missing operators before the import. Models and
``transforms.v2`` then work; torchvision's own image decoders and ``nms`` do not.
"""

from __future__ import annotations

import importlib
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError, MissingExtra

# A library must live as long as the operators it defines.
_libraries: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Import torchvision; if its binary cannot be loaded, declare the missing operators first."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ):
        library.define(schema)
    _libraries.append(library)
    return importlib.import_module("torchvision")


def import_timm() -> ModuleType:
    """Import timm, or raise an error with the command that installs it."""
    try:
        import_torchvision()
        import timm
    except ImportError as error:
        raise MissingExtra("This timm backbone", "backbones") from error
    return timm


def build(timm_name: str) -> nn.Module:
    """Build an untrained timm model as a feature extractor."""
    create = partial(import_timm().create_model, timm_name, pretrained=False, num_classes=0)
    if timm_name.startswith("vit_"):
        return TokenBackbone(create(dynamic_img_size=True))  # any size that is a multiple of the patch
    return MapBackbone(create())


class MapBackbone(nn.Module):
    """A convolutional timm model that returns its feature map."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.channels: int = model.num_features  # type: ignore[assignment]
        blocks = len(model.blocks)  # type: ignore[arg-type]
        self.stages = (
            ("model.conv_stem", "model.bn1"),
            *((f"model.blocks.{index}",) for index in range(blocks)),
            ("model.conv_head", "model.bn2"),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.model.forward_features(x)  # type: ignore[operator]


class EfficientNet(nn.Module):
    """The convolutions of an untrained EfficientNet of torchvision, whose weights CosPlace uses."""

    stages = tuple((f"features.{index}",) for index in range(9))

    def __init__(self, name: str) -> None:
        super().__init__()
        import_timm()  # the same extra, and the same error without it
        self.features = getattr(import_torchvision().models, name)(weights=None).features
        self.channels: int = self.features[-1][0].out_channels

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class TokenBackbone(nn.Module):
    """A vision transformer that returns its patch tokens as a feature map."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.channels: int = model.num_features  # type: ignore[assignment]
        self.prefix: int = model.num_prefix_tokens  # type: ignore[assignment]
        self.patch: int = model.patch_embed.patch_size[0]  # type: ignore[union-attr,assignment,index]
        blocks = len(model.blocks)  # type: ignore[arg-type]
        self.stages = (
            ("model.patch_embed", "model.cls_token", "model.pos_embed"),
            *((f"model.blocks.{index}",) for index in range(blocks)),
            ("model.norm",),
        )

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height % self.patch or width % self.patch:
            raise KappaPlaceError(
                f"The sides of an image must be multiples of {self.patch} for this backbone, got "
                f"{height}×{width}. Change the size of the preprocessing."
            )
        tokens = self.model.forward_features(x)[:, self.prefix :]  # type: ignore[operator]
        rows = height // self.patch
        return tokens.transpose(1, 2).reshape(x.shape[0], self.channels, rows, -1)
