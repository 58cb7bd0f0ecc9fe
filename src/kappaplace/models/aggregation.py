"""Aggregation of a feature map into a descriptor, as in CosPlace.

The steps are: normalize channels, GeM, Linear, normalize. The model runs the first step once and shares the
result with the kappa head.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GEM_EPS = 1e-6


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context of full precision; an empty one if autocast is off, which saves time."""
    return (
        torch.autocast(device.type, enabled=False)
        if torch.is_autocast_enabled(device.type)
        else nullcontext()
    )


def normalize_channels(features: Tensor) -> Tensor:
    """Scale the channels of a B×C×H×W map to unit length."""
    return F.normalize(features, p=2.0, dim=1)


def gem(features: Tensor, p: Tensor | float, eps: float = GEM_EPS) -> Tensor:
    """Return the generalized mean over the spatial axes; p = 1 is the mean, p → ∞ the maximum.

    Computed in float32 under autocast, because ``eps**p`` underflows in half precision.

    Args:
        features: Feature maps B×C×H×W.
        p: Exponent.
        eps: Smallest value of a feature.

    Returns:
        Pooled features B×C.
    """
    with without_autocast(features.device):
        features = features if features.dtype == torch.float64 else features.float()
        # `1 / p` of a tensor would be two kernels, a measurable cost in a small model.
        root = p.reciprocal() if isinstance(p, Tensor) else 1.0 / p
        return features.clamp(min=eps).pow(p).mean(dim=(-2, -1)).pow(root)


class GeM(nn.Module):
    """Generalized-mean pooling with a learnable exponent."""

    def __init__(self, p: float = 3.0) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.full((1,), p))

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
