"""Losses and anchors against NumPy loops."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.training.losses import (
    batch_centroids,
    class_anchors,
    gaussian_nll,
    large_margin_cosine_loss,
    stun_loss,
    vmf_loss,
)


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
    for dim, option in ((512, None), (256, 256)):
        v = mpmath.mpf(dim - 1) / 2
        losses = []
        for i in range(6):
            k, c = mpmath.mpf(float(kappa[i])), float(z[i] @ mu[i])
            root = mpmath.sqrt(k * k + v * v)
            at_zero = v - v * mpmath.log(2 * v)
            losses.append(root - v * mpmath.log(v + root) - at_zero - k * c)
        expected = float(sum(losses) / 6)
        assert float(vmf_loss(z, mu, kappa, option)) == pytest.approx(expected, rel=1e-9)


def test_class_anchors_are_normalised_prototypes() -> None:
    w = torch.randn(3, 4) * 5
    anchors = class_anchors(w, torch.tensor([2, 0]))
    np.testing.assert_allclose(anchors[0], w[2] / w[2].norm(), rtol=1e-6)
    np.testing.assert_allclose(anchors[1].norm(), 1.0, rtol=1e-6)


def test_batch_centroid_leaves_the_image_itself_out() -> None:
    z, places = unit(5, 4), torch.tensor([7, 7, 7, 2, 9])
    anchors, mask = batch_centroids(z, places)
    assert mask.tolist() == [True, True, True, False, False]
    for i in range(3):
        total = sum(z[j].numpy() for j in range(3) if j != i)
        np.testing.assert_allclose(anchors[i], total / np.linalg.norm(total), rtol=1e-9)
    assert not anchors[3:].any()


def test_gaussian_nll_by_hand_and_against_torch() -> None:
    z, mu = unit(5, 7), unit(5, 7)
    for variance in (torch.rand(5, dtype=torch.float64) + 0.1, torch.rand(5, 7, dtype=torch.float64) + 0.1):
        total = 0.0
        for i in range(5):
            for j in range(7):
                v = float(variance[i] if variance.ndim == 1 else variance[i, j])
                # The density of a Gaussian of variance v at √7·z, without its constant.
                gap = math.sqrt(7) * float(z[i, j]) - math.sqrt(7) * float(mu[i, j])
                total += -math.log(math.exp(-(gap**2) / (2 * v)) / math.sqrt(v))
        assert float(gaussian_nll(z, mu, variance)) == pytest.approx(total / 35, rel=1e-9)
        wide = variance.view(5, -1).expand(5, 7)
        theirs = torch.nn.functional.gaussian_nll_loss(math.sqrt(7) * z, math.sqrt(7) * mu, wide)
        torch.testing.assert_close(gaussian_nll(z, mu, variance), theirs)
    with pytest.raises(KappaPlaceError, match="variance for each image"):
        gaussian_nll(z, mu, torch.ones(7, dtype=torch.float64))


def test_the_best_variance_of_the_gaussian_is_the_scaled_mean_square() -> None:
    z, mu = unit(3, 16), unit(3, 16)
    best = (16 * (z - mu).square()).mean(1).requires_grad_()
    gaussian_nll(z, mu, best).backward()
    np.testing.assert_allclose(best.grad, 0, atol=1e-12)


@pytest.mark.parametrize("squared", [False, True])
def test_stun_loss_by_hand(squared: bool) -> None:
    student, teacher, s = unit(4, 6), unit(4, 6), torch.rand(4, 6, dtype=torch.float64)
    total = 0.0
    for i in range(4):
        gap = np.linalg.norm(teacher[i].numpy() - student[i].numpy()) ** (2 if squared else 1)
        for x in s[i].tolist():
            total += gap / math.exp(x) + math.log(math.exp(x))
    assert float(stun_loss(student, teacher, s, squared)) == pytest.approx(total / 24, rel=1e-9)
    with pytest.raises(KappaPlaceError, match="the same shape"):
        stun_loss(student, teacher, s[:, 0])


@pytest.mark.parametrize("squared", [False, True])
def test_stun_starts_where_student_and_teacher_agree(squared: bool) -> None:
    teacher, s = unit(4, 6), torch.full((4, 6), 0.5, dtype=torch.float64)
    student = teacher.clone().requires_grad_()
    stun_loss(student, teacher, s, squared).backward()
    assert student.grad is not None
    assert torch.isfinite(student.grad).all()
