"""Anchors: the directions that κ is measured against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def class_anchors(prototypes: Tensor, labels: Tensor) -> Tensor:
    """The normalised prototype of each image's class: C×d and B → B×d."""
    return F.normalize(prototypes, dim=1)[labels]


def batch_centroids(descriptors: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Contrastive training: the centroid of each image's positives in the batch, itself left out.

    Returns anchors B×d and a mask B of images that have a positive at all; other rows are zero.
    """
    same = (places[:, None] == places[None, :]) & ~torch.eye(
        len(places), dtype=torch.bool, device=places.device
    )
    return F.normalize(same.to(descriptors.dtype) @ descriptors, dim=1), same.any(1)


class FixedAnchors(nn.Module):
    """One direction per image, known before training: prototypes, centroids or clean views.

    A centroid of few descriptors leans towards each of them, which would make κ look better than it is. So
    with ``leave_one_out`` the matrix holds sums, and each view's own descriptor is taken out again.
    """

    matrix: Tensor
    index: Tensor

    def __init__(self, matrix: Tensor, index: Tensor, leave_one_out: bool = False) -> None:
        """``matrix`` M×d and ``index`` N, the anchor of every image row (−1: none)."""
        super().__init__()
        self.register_buffer(
            "matrix", matrix if leave_one_out else F.normalize(matrix, dim=1), persistent=False
        )
        self.register_buffer("index", index, persistent=False)
        self.leave_one_out = leave_one_out

    def forward(self, rows: Tensor, descriptors: Tensor) -> Tensor:
        """Anchors of image rows whose descriptors are B×d."""
        chosen = self.matrix[self.index[rows]].to(descriptors.dtype)
        return F.normalize(chosen - descriptors.detach(), dim=1) if self.leave_one_out else chosen
