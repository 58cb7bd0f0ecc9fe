"""EfficientNet-Lite0 in plain torch, with the parameter names of timm's ``tf_efficientnet_lite0``.

The Lite family has no squeeze-and-excite and no swish, so it quantizes well and suits small robots.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

# (repeats, kernel, stride, expansion, outputs) of each stage.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def _norm(channels: int) -> nn.BatchNorm2d:
    # TensorFlow's defaults, with which the published weights were trained.
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class SameConv2d(nn.Conv2d):
    """Convolution with TensorFlow's "same" padding: an odd pixel is added on the right and at the bottom."""

    def forward(self, x: Tensor) -> Tensor:
        return same_conv(x, self.weight, self.bias, self.stride, self.groups)


def same_conv(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], groups: int) -> Tensor:
    """Compute the convolution of `SameConv2d`; each side of the output has ⌈size / stride⌉ pixels.

    Args:
        x: Feature maps B×C×H×W.
        weight: Kernels.
        bias: Bias of each output channel.
        stride: Stride along each axis.
        groups: Groups of channels.

    Returns:
        The feature maps after the convolution.
    """
    pads: list[int] = []
    for size, kernel, step in zip(
        reversed(x.shape[-2:]), reversed(weight.shape[-2:]), reversed(stride), strict=True
    ):
        total = max((-(-size // step) - 1) * step + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, pads), weight, bias, stride, groups=groups)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    if stride == 1:
        return nn.Conv2d(inputs, outputs, kernel, 1, kernel // 2, groups=groups, bias=False)
    return SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)


class DepthwiseSeparable(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv_dw = _conv(inputs, inputs, kernel, stride, inputs)
        self.bn1 = _norm(inputs)
        self.conv_pw = _conv(inputs, outputs, 1)
        self.bn2 = _norm(outputs)
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv_pw(F.relu6(self.bn1(self.conv_dw(x)))))
        return x + y if self.skip else y


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        middle = inputs * expansion
        self.conv_pw = _conv(inputs, middle, 1)
        self.bn1 = _norm(middle)
        self.conv_dw = _conv(middle, middle, kernel, stride, middle)
        self.bn2 = _norm(middle)
        self.conv_pwl = _conv(middle, outputs, 1)
        self.bn3 = _norm(outputs)
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.bn1(self.conv_pw(x)))
        y = F.relu6(self.bn2(self.conv_dw(y)))
        y = self.bn3(self.conv_pwl(y))
        return x + y if self.skip else y


class EfficientNetLite0(nn.Module):
    """Stem, seven stages and the 1×1 head convolution; the output has 1,280 channels at stride 32."""

    channels = 1280
    stage_channels = tuple(stage[-1] for stage in _STAGES)
    patch_stage = 4  # stride 16: fine enough for positions, deep enough for content
    stages = (
        ("conv_stem", "bn1"),
        *((f"blocks.{index}",) for index in range(len(_STAGES))),
        ("conv_head", "bn2"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = _conv(3, 32, 3, 2)
        self.bn1 = _norm(32)
        blocks: list[nn.Module] = []
        inputs = 32
        for repeats, kernel, stride, expansion, outputs in _STAGES:
            stage: list[nn.Module] = []
            for position in range(repeats):
                step = stride if position == 0 else 1
                if expansion == 1:
                    stage.append(DepthwiseSeparable(inputs, outputs, kernel, step))
                else:
                    stage.append(InvertedResidual(inputs, outputs, kernel, step, expansion))
                inputs = outputs
            blocks.append(nn.Sequential(*stage))
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = _conv(inputs, self.channels, 1)
        self.bn2 = _norm(self.channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_stages(x)[0]

    def forward_stages(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output, and the feature map of every stage before it."""
        x = F.relu6(self.bn1(self.conv_stem(x)))
        maps = []
        for block in self.blocks:
            x = block(x)
            maps.append(x)
        return F.relu6(self.bn2(self.conv_head(x))), maps
