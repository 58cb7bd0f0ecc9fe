"""TensorFlow's "same" padding as one operator of the exported graph.

Written out, the padding of a strided convolution is arithmetic on the image's size: a tracer either fixes it
to the size it saw or carries it along as a page of formulas. ONNX has a word for it, so the graph uses that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kappaplace.models.backbones.efficientnet_lite import SameConv2d, same_conv


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
