"""The losses of classification-based place recognition and of the kappa head."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from kappaplace import vmf
from kappaplace.errors import KappaPlaceError

SCALE, MARGIN = 30.0, 0.40


def large_margin_cosine_loss(
    descriptors: Tensor, prototypes: Tensor, labels: Tensor, scale: float = SCALE, margin: float = MARGIN
) -> Tensor:
    """Cross-entropy of scaled cosines in which the right class must win by ``margin``.

    ``descriptors`` B×d at unit length, ``prototypes`` C×d of any length, ``labels`` B.
    """
    cosines = descriptors @ F.normalize(prototypes, dim=1).T
    penalty = F.one_hot(labels, len(prototypes)).to(cosines.dtype) * margin
    return F.cross_entropy(scale * (cosines - penalty), labels)


Likelihood = Callable[[Tensor, Tensor, int], Tensor]


@cache
def compiled_nll() -> Likelihood:
    """`vmf.nll` as one kernel forth and one back, instead of some fifty."""
    return torch.compile(vmf.nll)


def vmf_loss(
    descriptors: Tensor,
    anchors: Tensor,
    kappa: Tensor,
    dim: int | None = None,
    nll: Likelihood = vmf.nll,
) -> Tensor:
    """Mean negative log-likelihood of descriptors under vMF(anchor, κ), up to a constant.

    ``dim`` is the descriptor's dimension unless stated: the authors' released code uses 256 for 512-d
    descriptors, which scales every κ by 127.5/255.5; pass ``dim=256`` to reproduce it.
    """
    cosine = (descriptors * anchors).sum(-1)
    return nll(cosine, kappa, dim or descriptors.shape[-1]).mean()


def gaussian_nll(descriptors: Tensor, anchors: Tensor, variance: Tensor) -> Tensor:
    """Gaussian ablation: mean over images and dimensions of ½(log σ² + d(z − μ)²/σ²), up to a constant.

    Descriptors and anchors B×d are scaled by √d, so that a dimension has a variance of about 1. ``variance``
    is one per image, B, or one per dimension, B×d.
    """
    if variance.shape not in (descriptors.shape[:1], descriptors.shape):
        found = f"{tuple(variance.shape)} for descriptors {tuple(descriptors.shape)}"
        raise KappaPlaceError(f"The Gaussian loss needs a variance for each image or dimension; got {found}.")
    variance = variance.view(len(descriptors), -1)
    error = descriptors.shape[1] * (descriptors - anchors).square()
    return 0.5 * (torch.log(variance) + error / variance).mean()


def stun_loss(student: Tensor, teacher: Tensor, s: Tensor, squared: bool = False) -> Tensor:
    """STUN's distillation: mean over images and dimensions of ‖μ_T − μ_S‖₂/σ² + log σ², with σ² = exp(s).

    All B×d; ``s`` is the head's sigmoid output. STUN's code does not square the norm; ``squared`` does, which
    makes it a Gaussian likelihood.
    """
    if not student.shape == teacher.shape == s.shape:
        found = f"{tuple(student.shape)}, {tuple(teacher.shape)} and {tuple(s.shape)}"
        raise KappaPlaceError(f"Student, teacher and s must have one shape; got {found}.")
    gap = torch.linalg.vector_norm(teacher - student, dim=1, keepdim=True)
    return ((gap.square() if squared else gap) * torch.exp(-s) + s).mean()
