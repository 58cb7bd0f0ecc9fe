"""The graph that is exported: normalized images in; descriptor, κ and patch maps out."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.models.backbones.efficientnet_lite import SameConv2d, same_conv
from kappaplace.models.exported import DESCRIPTOR, KAPPA, PATCHES, VARIANCE
from kappaplace.models.fast.fused import fold_batch_norms
from kappaplace.models.heads import Head, MirroredKappaHead
from kappaplace.models.place_model import PlaceModel

INPUT = "images"
ANY_SIDE = 224
"""Side of test images for a model that takes any size."""


class ExportGraph(nn.Module):
    """A copy of a model, in its inference form, with its outputs in a row; ``outputs`` names them."""

    def __init__(self, model: PlaceModel, patches: bool) -> None:
        super().__init__()
        self.outputs = output_names(model, patches)
        plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
        if isinstance(plain.head, MirroredKappaHead) and plain.head.spread == "kappa":
            plain = plain.fold().eval()
        fold_batch_norms(plain.backbone, probe_images(model.preprocessing, 1))
        self.watch = WatchedBackbone(plain.backbone) if patches else None
        if self.watch is not None:
            plain.backbone = self.watch
        self.model = plain

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """B×3×H×W → descriptor B×d, κ (or variance) B, patch maps B×C×h×w, as far as there are any."""
        made = tuple(part for part in self.model(images) if part is not None)
        return made if self.watch is None else (*made, self.watch.seen.pop())


class WatchedBackbone(nn.Module):
    """A backbone that keeps its patch map aside: its stages are computed once for both outputs."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_stages(images)[0]

    def forward_stages(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output, and the map of every stage before it."""
        last, maps = self.backbone.forward_stages(images)  # type: ignore[operator]
        self.seen[:] = [maps[self.backbone.patch_stage]]
        return last, maps


def output_names(model: PlaceModel, patches: bool) -> tuple[str, ...]:
    """What the graph gives, in this order."""
    spread: tuple[str, ...] = ()
    if model.head is not None:
        kappa = isinstance(model.head, Head) and model.head.spread == "kappa"
        spread = (KAPPA,) if kappa else (VARIANCE,)
    return (DESCRIPTOR, *spread, *((PATCHES,) if patches else ()))


def probe_images(preprocessing: Preprocessing, count: int, size: tuple[int, int] | None = None) -> Tensor:
    """Images of many frequencies, normalized: the same in every run."""
    generator = torch.Generator().manual_seed(count)
    height, width = size or preprocessing.fixed_size or (ANY_SIDE, ANY_SIDE)
    layers = [
        nn.functional.interpolate(
            torch.rand(count, 3, cells, cells, generator=generator), (height, width), mode="bilinear"
        )
        for cells in (3, 12, 60)
    ]
    return preprocessing.normalise(torch.stack(layers).mean(0))


@torch.library.custom_op("kappaplace::same_conv2d", mutates_args=())
def same_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, groups: int) -> Tensor:
    """A strided convolution that pads to ⌈size/stride⌉, the odd pixel right and at the bottom."""
    return same_conv(x, weight, bias, (stride, stride), groups)


@same_conv2d.register_fake
def _shape(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, groups: int) -> Tensor:
    height, width = ((side + stride - 1) // stride for side in x.shape[-2:])
    return x.new_empty(x.shape[0], weight.shape[0], height, width)


class OneOperator(nn.Module):
    """A `SameConv2d` that exports as a single operator."""

    def __init__(self, layer: SameConv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.groups = layer.stride[0], layer.groups

    def forward(self, x: Tensor) -> Tensor:
        return same_conv2d(x, self.weight, self.bias, self.stride, self.groups)


def with_one_operator(module: nn.Module) -> nn.Module:
    """The module with every `SameConv2d` exchanged, in place."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, SameConv2d):
                setattr(parent, name, OneOperator(child))
    return module


def translations(opset: int) -> dict[Any, Any]:
    """How the ONNX exporter writes the operator: Conv with auto_pad SAME_UPPER, which is the same."""
    import onnxscript

    op = getattr(onnxscript, f"opset{opset}")

    def conv(x: Any, weight: Any, bias: Any, stride: int, groups: int) -> Any:
        return op.Conv(x, weight, bias, auto_pad="SAME_UPPER", strides=[stride, stride], group=groups)

    return {torch.ops.kappaplace.same_conv2d.default: conv}
