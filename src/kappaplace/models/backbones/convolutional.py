"""ResNet, VGG-16 and EfficientNet-Lite0 in plain torch, with the parameter names of their published weights.

The core therefore needs neither torchvision, whose binary may not match the installed torch, nor timm.
EfficientNet-Lite has no squeeze-and-excite and no swish, so it quantizes well and suits small robots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_VGG16_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, stride_in_conv1: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(x)) + shortcut)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, stride_in_conv1: bool) -> None:
        super().__init__()
        first, second = (stride, 1) if stride_in_conv1 else (1, stride)
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, second, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return torch.relu(self.bn3(self.conv3(x)) + shortcut)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Stem and four stages; the output is the last feature map (stride 32)."""

    # Partial training freezes stages in this order. The usual choice is `frozen_stages=3`: stem, layer1 and
    # layer2 are frozen, layer3 and layer4 train.
    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential
    stages = (("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",), ("layer4",))
    patch_stage = 2  # layer3, stride 16: fine enough for positions, deep enough for content

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        block: type[BasicBlock] | type[Bottleneck],
        *,
        stride_in_conv1: bool = False,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = width
        for stage, depth in enumerate(depths):
            blocks: list[nn.Module] = []
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(block(channels, width << stage, stride, stride_in_conv1))
                channels = (width << stage) * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.channels = channels
        self.stage_channels = tuple((width << stage) * block.expansion for stage in range(3))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_stages(x)[0]

    def forward_stages(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output, and the feature map of every stage before it."""
        first = self.layer1(self.maxpool(torch.relu(self.bn1(self.conv1(x)))))
        second = self.layer2(first)
        third = self.layer3(second)
        return self.layer4(third), [first, second, third]


class VGG16(nn.Module):
    """VGG-16 without the last ReLU, the last pooling and the classifier, as in CosPlace."""

    channels = 512
    # By default, the last three convolutions (from features.24) train and the others are frozen.
    stages = (("front",), ("back",))

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for widths in _VGG16_WIDTHS:
            for width in widths:
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers[:-2])

    @property
    def front(self) -> nn.Module:
        return self.features[:-5]

    @property
    def back(self) -> nn.Module:
        return self.features[-5:]

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


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
