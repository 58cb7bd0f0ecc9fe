"""Backbones from timm (extra ``backbones``), imported only when one is asked for.

Import torchvision where its compiled operators do not match the installed torch.

The common case: the registry's torchvision is linked to CUDA while torch is a CPU build. Then
``import torchvision`` fails with ``operator torchvision::nms does not exist``, and timm, lightning and
torchmetrics fail with it. Only the Python side is needed here (layers, transforms), so it is enough to
declare the two operators that the import looks up. Models and ``transforms.v2`` work afterwards;
torchvision's own image decoders and ``nms`` do not.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

import torch
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError, MissingExtra

# The library must live as long as the operators it defines.
_declared: list[torch.library.Library] = []


def import_torchvision() -> types.ModuleType:
    """Return torchvision, declaring its missing operators first where its binary cannot be loaded."""
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
    _declared.append(library)
    return importlib.import_module("torchvision")


def import_timm() -> Any:
    """timm, or one sentence on how to get it."""
    try:
        import_torchvision()
        import timm
    except ImportError as error:
        raise MissingExtra("This timm backbone", "backbones") from error
    return timm


def build(timm_name: str) -> nn.Module:
    """An untrained timm model as a feature extractor."""
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0}
    if timm_name.startswith("vit_"):
        options["dynamic_img_size"] = True  # any size that is a multiple of the patch
        return TokenBackbone(import_timm().create_model(timm_name, **options))
    return MapBackbone(import_timm().create_model(timm_name, **options))


class MapBackbone(nn.Module):
    """A convolutional timm model: image → feature map."""

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


class TokenBackbone(nn.Module):
    """A vision transformer: image → patch tokens, arranged as a feature map."""

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
                f"This backbone needs image sides that are multiples of {self.patch}, "
                f"got {height}×{width}; set the preprocessing size accordingly."
            )
        tokens = self.model.forward_features(x)[:, self.prefix :]  # type: ignore[operator]
        rows = height // self.patch
        return tokens.transpose(1, 2).reshape(x.shape[0], self.channels, rows, -1)
