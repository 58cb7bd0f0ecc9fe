"""ResNet and VGG-16 feature extractors in plain torch, with torchvision's parameter names.

The core therefore does not need torchvision, whose binary may not match the installed torch.
"""

from __future__ import annotations

import torch
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
    """The thirteen convolutions without the last ReLU and the last pooling, as in CosPlace."""

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
