"""The losses of classification-based place recognition and of the kappa head.

Multi-similarity loss and its pair miner (Wang et al., CVPR 2019), on whole B×B matrices.

Written here rather than imported, so that the core needs no further package; tests hold both to the numbers
of pytorch-metric-learning.

Bayesian triplet loss (Warburg et al., ICCV 2021) for isotropic Gaussian descriptors, in closed form.

τ = ‖a − p‖² − ‖a − n‖² is a sum over many dimensions, hence nearly Gaussian; its mean and variance are exact.

Anchors: the directions that κ is measured against.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


ALPHA, BETA, BASE, EPSILON = 2.0, 50.0, 0.5, 0.1


class Pairs(NamedTuple):
    """Which pairs of a batch count; rows are anchors."""

    positive: Tensor
    """B×B, bool: two different images of one place."""
    negative: Tensor
    """B×B, bool: images of two places."""


def all_pairs(places: Tensor) -> Pairs:
    """Every positive and every negative pair of a batch with place numbers B."""
    same = places[:, None] == places[None, :]
    return Pairs(same & ~torch.eye(len(places), dtype=torch.bool, device=places.device), ~same)


def multi_similarity_pairs(descriptors: Tensor, places: Tensor, epsilon: float = EPSILON) -> Pairs:
    """The informative pairs: those that ``epsilon`` would set on the wrong side of the hardest opposite one.

    A positive counts if its cosine is less than ε above the anchor's nearest negative, a negative if its
    cosine is less than ε below the anchor's farthest positive. Descriptors B×d at unit length.
    """
    _check(descriptors, places)
    with torch.no_grad():  # a choice has no gradient
        cosines = descriptors @ descriptors.T
        positive, negative = all_pairs(places)
        nearest = cosines.masked_fill(~negative, -math.inf).amax(1, keepdim=True)
        farthest = cosines.masked_fill(~positive, math.inf).amin(1, keepdim=True)
        return Pairs(positive & (cosines - epsilon < nearest), negative & (cosines + epsilon > farthest))


def multi_similarity_loss(
    descriptors: Tensor,
    places: Tensor,
    pairs: Pairs | None = None,
    alpha: float = ALPHA,
    beta: float = BETA,
    base: float = BASE,
) -> Tensor:
    """Mean over anchors of log(1 + Σ₊ exp(−α(c − base)))/α + log(1 + Σ₋ exp(β(c − base)))/β, c the cosines.

    Without ``pairs`` every pair counts. Anchors without any pair count as 0.
    """
    _check(descriptors, places)
    positive, negative = all_pairs(places) if pairs is None else pairs
    cosines = descriptors @ descriptors.T
    pull = _log_one_plus_sum(alpha * (base - cosines), positive) / alpha
    push = _log_one_plus_sum(beta * (cosines - base), negative) / beta
    return (pull + push).mean()


def _log_one_plus_sum(exponents: Tensor, mask: Tensor) -> Tensor:
    """log(1 + Σ exp(x)) of each row's chosen entries; 0 with a zero gradient where none is chosen."""
    chosen = exponents.masked_fill(~mask, -math.inf)
    return torch.cat([torch.zeros_like(chosen[:, :1]), chosen], dim=1).logsumexp(1)


def _check(descriptors: Tensor, places: Tensor) -> None:
    if descriptors.ndim != 2 or len(descriptors) == 0 or places.shape != descriptors.shape[:1]:
        found = f"{tuple(descriptors.shape)} and {tuple(places.shape)}"
        raise KappaPlaceError(f"The loss needs descriptors B×d and one place for each; got {found}.")


def triplet_moments(
    descriptors: Tensor, variance: Tensor, triplets: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Mean and variance of τ for triplets (anchor, positive, negative), given as rows: T each.

    Descriptors B×d are means, ``variance`` B is that of every dimension; all are independent. With σ² for
    variances and D for squared distances of the means,

        E τ = D_ap − D_an + d(σp² − σn²)
        Var τ = 2d(σp²(σp² + 2σa²) + σn²(σn² + 2σa²)) + 4(D_ap σp² + D_an σn² + D_pn σa²).

    No term of the variance is negative, so nothing cancels; only B×B distances are needed.
    """
    a, p, n = triplets
    dim = descriptors.shape[1]
    length = descriptors.square().sum(1)
    distance = (length[:, None] + length[None, :] - 2 * descriptors @ descriptors.T).clamp(min=0)
    va, vp, vn = variance[a], variance[p], variance[n]
    near, far, between = distance[a, p], distance[a, n], distance[p, n]
    mean = near - far + dim * (vp - vn)
    spread = vp * (vp + 2 * va) + vn * (vn + 2 * va)
    return mean, 2 * dim * spread + 4 * (near * vp + far * vn + between * va)


def prior_divergence(descriptors: Tensor, variance: Tensor) -> Tensor:
    """KL of each N(μ, σ²I) from the prior N(0, I/d), whose draws lie near the unit sphere: B."""
    dim = descriptors.shape[1]
    scaled = dim * variance
    return 0.5 * dim * (scaled + descriptors.square().sum(1) - 1 - torch.log(scaled))


def bayesian_triplet_loss(
    descriptors: Tensor, variance: Tensor, places: Tensor, margin: float = 0.0, kl_weight: float = 1e-6
) -> Tensor:
    """Mean over all triplets of −log P(τ < −margin), plus the mean divergence from the prior, weighted.

    Descriptors B×d at unit length, variance B positive, places B. A batch without a triplet gives 0, which
    still backpropagates.
    """
    if descriptors.ndim != 2 or not variance.shape == places.shape == descriptors.shape[:1]:
        found = f"{tuple(descriptors.shape)}, {tuple(variance.shape)} and {tuple(places.shape)}"
        raise KappaPlaceError(
            f"The loss needs descriptors B×d, a variance and a place for each; got {found}."
        )
    positive, negative = all_pairs(places)
    a, p, n = torch.nonzero(positive[:, :, None] & negative[:, None, :], as_tuple=True)
    if not len(a):
        return 0 * (descriptors.sum() + variance.sum())
    mean, spread = triplet_moments(descriptors, variance, (a, p, n))
    # log_ndtr stays finite where Φ itself is 0 in floating point.
    likelihood = torch.special.log_ndtr((-margin - mean) / spread.sqrt())
    return kl_weight * prior_divergence(descriptors, variance).mean() - likelihood.mean()


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
