"""VGG-16's convolutions in plain torch, with torchvision's parameter names (``features.N``)."""

from __future__ import annotations

from torch import Tensor, nn

_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """The thirteen convolutions without the last ReLU and the last pooling, as in CosPlace."""

    channels = 512
    # By default, the last three convolutions (from features.24) train and the others are frozen.
    stages = (("front",), ("back",))

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for widths in _WIDTHS:
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
