"""PCA whitening of long descriptors on the images of a map.

Strong encoders have thousands of dimensions, and most of them vary little between the places of one map.
Whitening projects descriptors on the directions that vary most, and gives these directions nearly the same
spread.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError

SAMPLE_BYTES = 1 << 29
"""Largest size of the sample of descriptors that a whitening is fitted on."""
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
