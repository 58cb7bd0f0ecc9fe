"""From feature map to descriptor: CosPlace's aggregation.

normalise channels → GeM → Linear → normalise. The first step is done once by the model and shared with
the kappa head, which reads the same normalised map.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GEM_EPS = 1e-6


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Full precision; nothing is entered where autocast is off already: that costs as much as a kernel."""
    return (
        torch.autocast(device.type, enabled=False)
        if torch.is_autocast_enabled(device.type)
        else nullcontext()
    )


def normalise_channels(features: Tensor) -> Tensor:
    """Unit length along the channels of a B×C×H×W map."""
    return F.normalize(features, p=2.0, dim=1)


def gem(features: Tensor, p: Tensor | float, eps: float = GEM_EPS) -> Tensor:
    """Generalised mean over the spatial axes: B×C×H×W → B×C; p = 1 is the mean, p → ∞ the maximum.

    Computed in float32 under autocast: ``eps**p`` underflows in half precision.
    """
    with without_autocast(features.device):
        features = features if features.dtype == torch.float64 else features.float()
        # `1 / p` of a tensor would be two kernels, and a small model notices each of them.
        root = p.reciprocal() if isinstance(p, Tensor) else 1.0 / p
        return features.clamp(min=eps).pow(p).mean(dim=(-2, -1)).pow(root)


class GeM(nn.Module):
    """Generalised-mean pooling with a learnable exponent."""

    def __init__(self, p: float = 3.0) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.full((1,), p))

    def forward(self, features: Tensor) -> Tensor:
        return gem(features, self.p)


class Aggregation(nn.Module):
    """GeM and a linear projection of a channel-normalised map; the caller normalises the result."""

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.gem = GeM()
        self.project = nn.Linear(channels, dim)

    def from_pooled(self, pooled: Tensor) -> Tensor:
        """The descriptor before its normalisation; GeM gives float32 even in a half-precision model."""
        return self.project(pooled.to(self.project.weight.dtype))

    def forward(self, normalised: Tensor) -> Tensor:
        return self.from_pooled(self.gem(normalised))
