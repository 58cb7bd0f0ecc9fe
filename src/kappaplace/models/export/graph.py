"""The exported graph: from normalized images to descriptor, κ and patch maps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kappaplace.models.backbones.efficientnet_lite import SameConv2d, same_conv
from kappaplace.models.exported import DESCRIPTOR, KAPPA, PATCHES, VARIANCE
from kappaplace.models.fast import probe_images
from kappaplace.models.fast.fused import fold_batch_norms
from kappaplace.models.heads import Head, MirroredKappaHead
from kappaplace.models.place_model import PlaceModel

if TYPE_CHECKING:
    from onnxscript.tensor import Tensor as Symbol

INPUT = "images"


class ExportGraph(nn.Module):
    """A copy of a model in its inference form; its outputs are a tuple, named by ``outputs``."""

    def __init__(self, model: PlaceModel, patches: bool) -> None:
        super().__init__()
        self.outputs = output_names(model, patches)
        plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
        if isinstance(plain.head, MirroredKappaHead) and plain.head.spread == "kappa":
            plain = plain.fold().eval()
        fold_batch_norms(plain.backbone, probe_images(model.preprocessing, 1))
        self.recorder = RecordingBackbone(plain.backbone) if patches else None
        if self.recorder is not None:
            plain.backbone = self.recorder
        self.model = plain

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute descriptors B×d, κ (or variance) B, and patch maps B×C×h×w, if there are any."""
        outputs = tuple(part for part in self.model(images) if part is not None)
        return outputs if self.recorder is None else (*outputs, self.recorder.maps.pop())


class RecordingBackbone(nn.Module):
    """A backbone that records its patch map, so that its stages are computed once for both outputs."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.maps: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_stages(images)[0]

    def forward_stages(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output, and the feature map of every stage before it."""
        last, maps = self.backbone.forward_stages(images)  # type: ignore[operator]
        self.maps[:] = [maps[self.backbone.patch_stage]]
        return last, maps


def output_names(model: PlaceModel, patches: bool) -> tuple[str, ...]:
    """Return the names of the outputs, in order."""
    spread: tuple[str, ...] = ()
    if model.head is not None:
        kappa = isinstance(model.head, Head) and model.head.spread == "kappa"
        spread = (KAPPA,) if kappa else (VARIANCE,)
    return (DESCRIPTOR, *spread, *((PATCHES,) if patches else ()))


@torch.library.custom_op("kappaplace::same_conv2d", mutates_args=())
def same_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, groups: int) -> Tensor:
    """Compute a strided convolution with padding to ⌈size/stride⌉; see `same_conv`."""
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
    """Replace every `SameConv2d` of a module in place; return the module."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, SameConv2d):
                setattr(parent, name, OneOperator(child))
    return module


def translations(opset: int) -> dict[Callable[..., Tensor], Callable[..., Symbol]]:
    """Return the ONNX form of the operator: a Conv with auto_pad SAME_UPPER, which is equivalent."""
    import onnxscript

    op = getattr(onnxscript, f"opset{opset}")

    def conv(x: Symbol, weight: Symbol, bias: Symbol, stride: int, groups: int) -> Symbol:
        return op.Conv(x, weight, bias, auto_pad="SAME_UPPER", strides=[stride, stride], group=groups)

    return {torch.ops.kappaplace.same_conv2d.default: conv}
