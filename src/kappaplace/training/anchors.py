"""Anchors: the directions that κ is measured against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
