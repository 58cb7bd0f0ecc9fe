"""Losses and anchors against NumPy loops."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

from kappaplace.training.anchors import batch_centroids, class_anchors
from kappaplace.training.losses import large_margin_cosine_loss, vmf_loss


def unit(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


def test_large_margin_cosine_loss_by_hand() -> None:
    z, w, labels = unit(5, 7), torch.randn(4, 7, dtype=torch.float64) * 3, torch.tensor([0, 3, 1, 1, 2])
    total = 0.0
    for image, label in zip(z.numpy(), labels.tolist(), strict=True):
        cosines = [float(image @ row / np.linalg.norm(row)) for row in w.numpy()]
        logits = [30.0 * (c - (0.4 if j == label else 0.0)) for j, c in enumerate(cosines)]
        total += math.log(sum(math.exp(x) for x in logits)) - logits[label]
    assert float(large_margin_cosine_loss(z, w, labels)) == pytest.approx(total / 5, rel=1e-9)


def test_vmf_loss_by_hand_and_the_releases_dimension() -> None:
    z, mu = unit(6, 512), unit(6, 512)
    kappa = torch.tensor([0.1, 1, 10, 100, 500, 2000], dtype=torch.float64)
    for dim, stated in ((512, None), (256, 256)):
        v = mpmath.mpf(dim - 1) / 2
        losses = []
        for i in range(6):
            k, c = mpmath.mpf(float(kappa[i])), float(z[i] @ mu[i])
            root = mpmath.sqrt(k * k + v * v)
            at_zero = v - v * mpmath.log(2 * v)
            losses.append(root - v * mpmath.log(v + root) - at_zero - k * c)
        expected = float(sum(losses) / 6)
        assert float(vmf_loss(z, mu, kappa, stated)) == pytest.approx(expected, rel=1e-9)


def test_class_anchors_are_normalised_prototypes() -> None:
    w = torch.randn(3, 4) * 5
    anchors = class_anchors(w, torch.tensor([2, 0]))
    np.testing.assert_allclose(anchors[0], w[2] / w[2].norm(), rtol=1e-6)
    np.testing.assert_allclose(anchors[1].norm(), 1.0, rtol=1e-6)


def test_batch_centroid_leaves_the_image_itself_out() -> None:
    z, places = unit(5, 4), torch.tensor([7, 7, 7, 2, 9])
    anchors, known = batch_centroids(z, places)
    assert known.tolist() == [True, True, True, False, False]
    for i in range(3):
        total = sum(z[j].numpy() for j in range(3) if j != i)
        np.testing.assert_allclose(anchors[i], total / np.linalg.norm(total), rtol=1e-9)
    assert not anchors[3:].any()
