"""Aggregation of a feature map into a descriptor, as in CosPlace and in MixVPR.

The steps of CosPlace are: normalize channels, GeM, Linear, normalize. The model runs the first step once and
shares the result with the kappa head.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kappaplace.models.backbones.convolutional import Bottleneck, ResNet

GEM_EPS = 1e-6


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context of full precision; an empty one if autocast is off, which saves time."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if enabled else nullcontext()


def normalize_channels(features: Tensor) -> Tensor:
    """Scale the channels of a B×C×H×W map to unit length."""
    return F.normalize(features, p=2.0, dim=1)


def gem(features: Tensor, p: Tensor | float) -> Tensor:
    """Return the generalized mean over the spatial axes; p = 1 is the mean, p → ∞ the maximum.

    It is computed in float32 under autocast, because ``GEM_EPS**p`` underflows in half precision.

    Args:
        features: Feature maps B×C×H×W.
        p: Exponent.

    Returns:
        Pooled features B×C.
    """
    with without_autocast(features.device):
        features = features if features.dtype == torch.float64 else features.float()
        # `1 / p` of a tensor would be two kernels, a measurable cost in a small model.
        root = p.reciprocal() if isinstance(p, Tensor) else 1.0 / p
        return features.clamp(min=GEM_EPS).pow(p).mean(dim=(-2, -1)).pow(root)


class GeM(nn.Module):
    """Generalized-mean pooling with a learnable exponent."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.full((1,), 3.0))

    def forward(self, features: Tensor) -> Tensor:
        return gem(features, self.p)


class Aggregation(nn.Module):
    """GeM and a linear projection of a channel-normalized map; the caller normalizes the result."""

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.gem = GeM()
        self.project = nn.Linear(channels, dim)

    def from_pooled(self, pooled: Tensor) -> Tensor:
        """Return the descriptor before its normalization; GeM returns float32 even in a float16 model."""
        return self.project(pooled.to(self.project.weight.dtype))

    def forward(self, normalized: Tensor) -> Tensor:
        return self.from_pooled(self.gem(normalized))


class PlainAggregation(nn.Module):
    """GeM of the map itself, without normalization of channels and without a projection, as in STUN."""

    def __init__(self) -> None:
        super().__init__()
        self.gem = GeM()

    def from_pooled(self, pooled: Tensor) -> Tensor:
        """Return the descriptor before its normalization."""
        return pooled


class FeatureMixing(nn.Module):
    """Aggregation of MixVPR: perceptrons along the cells of a map, then two linear projections.

    Args:
        channels: Channels of the map.
        cells: Cells of the map.
        width: Channels after the first projection.
        rows: Numbers per channel after the second projection.
        depth: Number of perceptrons.
    """

    def __init__(
        self, channels: int = 1024, cells: int = 400, width: int = 1024, rows: int = 4, depth: int = 4
    ) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(cells), nn.Linear(cells, cells), nn.ReLU(), nn.Linear(cells, cells))
            for _ in range(depth)
        )
        self.channel_proj = nn.Linear(channels, width)
        self.row_proj = nn.Linear(cells, rows)

    def forward(self, features: Tensor) -> Tensor:
        mixed = features.flatten(2)
        for mixer in self.mixers:
            mixed = mixed + mixer(mixed)
        projected = self.channel_proj(mixed.transpose(1, 2)).transpose(1, 2)
        return F.normalize(self.row_proj(projected).flatten(1), dim=1)


class MixVPR(nn.Module):
    """MixVPR for images of 320×320 pixels: the first three stages of ResNet-50, and feature mixing."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = ResNet((3, 4, 6, 3), Bottleneck)
        self.backbone.layer4 = nn.Sequential()
        self.aggregator = FeatureMixing()

    def forward(self, images: Tensor) -> Tensor:
        return self.aggregator(self.backbone(images))
