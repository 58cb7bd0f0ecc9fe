"""From a feature map to a descriptor: aggregation as in CosPlace and in MixVPR, and whitening.

The steps of CosPlace are: normalize channels, GeM, Linear, normalize. The model runs the first step once and
shares the result with the kappa head.

Strong encoders have thousands of dimensions, and most of them vary little between the places of one map.
Whitening projects descriptors on the directions that vary most, and gives these directions nearly the same
spread.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError
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


SAMPLE_BYTES = 1 << 29
"""Maximum size in bytes of the descriptors that a whitening is fitted on."""
SHRINKAGE = 1.0
"""Number of mean variances to add to the variance of each direction, because a map has few images per
direction. 0 gives all directions the same spread, and a large number is a plain PCA. The value comes from
``benchmarks/whitening.py``."""


class Whitening(nn.Module):
    """A linear function of unit descriptors, whose result is scaled to unit length.

    Args:
        weights: (D+1)×d numbers: the matrix D×d, and a last row that is added to the product.
    """

    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        if weights.ndim != 2 or weights.shape[0] <= weights.shape[1] or not weights.isfinite().all():
            raise KappaPlaceError(
                f"The weights of a whitening must have shape (D+1)×d with d ≤ D, got {tuple(weights.shape)}."
            )
        # Not in the state dict: the map stores them next to the weights of its model.
        self.register_buffer("weights", weights.float(), persistent=False)

    @property
    def inputs(self) -> int:
        """Dimension of the descriptors of the encoder."""
        return self.weights.shape[0] - 1

    @property
    def dim(self) -> int:
        """Dimension of the whitened descriptors."""
        return self.weights.shape[1]

    @cached_property
    def digest(self) -> str:
        """Checksum of the numbers."""
        return hashlib.sha256(self.to_array().tobytes()).hexdigest()

    def forward(self, descriptor: Tensor) -> Tensor:
        """Return whitened descriptors B×d of unit descriptors B×D."""
        product = torch.addmm(self.weights[-1], descriptor.to(self.weights), self.weights[:-1])
        return F.normalize(product, dim=-1)

    def of(self, descriptors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the whitened descriptors of an array of unit descriptors N×D."""
        with torch.inference_mode():
            return self(torch.from_numpy(np.asarray(descriptors, np.float32))).cpu().numpy()

    def to_array(self) -> NDArray[np.float32]:
        """Return the numbers as an array."""
        return self.weights.cpu().numpy()


def learn_whitening(
    descriptors: NDArray[np.floating], dim: int, *, shrinkage: float = SHRINKAGE
) -> Whitening:
    """Fit a whitening on the descriptors of a map.

    Args:
        descriptors: Unit descriptors N×D.
        dim: Dimension d of the result.
        shrinkage: Number of mean variances to add to the variance of each direction.

    Returns:
        The whitening.

    Raises:
        KappaPlaceError: If ``dim`` is not smaller than D, or than the number of different descriptors.
    """
    count, inputs = descriptors.shape
    if not 2 <= dim < inputs:
        raise KappaPlaceError(
            f"Whitening must give fewer dimensions than the model ({inputs}) and at least 2, got {dim}. Pass "
            "another --dim, or omit it."
        )
    if dim >= count:
        raise KappaPlaceError(
            f"Whitening to {dim} dimensions needs more than {dim} images, got {count}. Pass a smaller --dim, "
            "or omit it."
        )
    mean = descriptors.mean(axis=0, dtype=np.float64)
    centered = (descriptors - mean).astype(np.float32)
    # The smaller one of two matrices with the same eigenvalues.
    few = count < inputs
    product = (centered @ centered.T if few else centered.T @ centered).astype(np.float64)
    variance, vectors = eigh(product, subset_by_index=(len(product) - dim, len(product) - 1))
    if variance[0] <= 1e-6 * variance[-1]:
        raise KappaPlaceError(
            f"The descriptors of the {count} images vary in fewer than {dim} directions. Pass a smaller "
            "--dim, or add different images."
        )
    directions = centered.T @ (vectors / np.sqrt(variance)) if few else vectors
    matrix = directions / np.sqrt((variance + shrinkage * variance.mean()) / (count - 1))
    return Whitening(torch.from_numpy(np.vstack([matrix, -mean @ matrix]).astype(np.float32)))
