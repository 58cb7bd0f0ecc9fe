"""Losses and their anchors: classification, κ, Gaussian, STUN, multi-similarity and Bayesian triplets.

- Multi-similarity loss and its pair miner (Wang et al., CVPR 2019), on whole B×B matrices. Tests compare it
  with pytorch-metric-learning, which is not required.
- Bayesian triplet loss (Warburg et al., ICCV 2021) for isotropic Gaussian descriptors, in closed form. The
  difference τ = ‖a − p‖² − ‖a − n‖² is a sum over many dimensions, hence nearly Gaussian. The formulas for
  its mean and variance are exact.
- Anchors are the directions that κ is measured against.
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

SCALE, MARGIN = 30.0, 0.40


def large_margin_cosine_loss(
    descriptors: Tensor, prototypes: Tensor, labels: Tensor, scale: float = SCALE, margin: float = MARGIN
) -> Tensor:
    """Return the cross-entropy of scaled cosines, in which the correct class must win by a margin.

    Args:
        descriptors: Unit vectors, B×d.
        prototypes: Class prototypes of any length, C×d.
        labels: Class of each descriptor (B).
        scale: Scale of the cosines.
        margin: Value that is subtracted from the cosine of the correct class.

    Returns:
        The mean loss, a scalar.
    """
    cosines = descriptors @ F.normalize(prototypes, dim=1).T
    penalty = F.one_hot(labels, len(prototypes)).to(cosines.dtype) * margin
    return F.cross_entropy(scale * (cosines - penalty), labels)


Likelihood = Callable[[Tensor, Tensor, int], Tensor]


@cache
def compiled_nll() -> Likelihood:
    """Return `vmf.nll`, compiled to one forward and one backward kernel instead of about fifty."""
    return torch.compile(vmf.nll)


def vmf_loss(
    descriptors: Tensor, anchors: Tensor, kappa: Tensor, dim: int | None = None, nll: Likelihood = vmf.nll
) -> Tensor:
    """Return the mean negative log-likelihood of descriptors under vMF(anchor, κ), up to a constant.

    Args:
        descriptors: Unit vectors, B×d.
        anchors: Unit vectors, B×d.
        kappa: Concentration of each descriptor (B).
        dim: Dimension of the distribution. Default: d. The authors' released code uses 256 for 512-d
            descriptors, which scales every κ by 127.5/255.5.
        nll: Function that computes the likelihood.

    Returns:
        The mean loss, a scalar.
    """
    cosine = (descriptors * anchors).sum(-1)
    return nll(cosine, kappa, dim or descriptors.shape[-1]).mean()


def gaussian_nll(descriptors: Tensor, anchors: Tensor, variance: Tensor) -> Tensor:
    """Return the Gaussian loss: the mean of ½(log σ² + d(z − μ)²/σ²) over images and dimensions.

    Descriptors and anchors are scaled by √d, so that a dimension has a variance of about 1.

    Args:
        descriptors: Unit vectors z, B×d.
        anchors: Unit vectors μ, B×d.
        variance: σ² per image, B, or per dimension, B×d.

    Returns:
        The mean loss, a scalar.
    """
    variance = variance.view(len(descriptors), -1)
    error = descriptors.shape[1] * (descriptors - anchors).square()
    return 0.5 * (torch.log(variance) + error / variance).mean()


def stun_loss(student: Tensor, teacher: Tensor, s: Tensor, squared: bool = False) -> Tensor:
    """Return STUN's loss: the mean of ‖μ_T − μ_S‖₂/σ² + log σ² over images and dimensions, with σ² = exp(s).

    Args:
        student: Descriptors μ_S, B×d.
        teacher: Descriptors μ_T, B×d.
        s: Sigmoid output of the head, B×d.
        squared: Whether to square the norm, which makes it a Gaussian likelihood; STUN's code does not.

    Returns:
        The mean loss, a scalar.
    """
    gap = torch.linalg.vector_norm(teacher - student, dim=1, keepdim=True)
    return ((gap.square() if squared else gap) * torch.exp(-s) + s).mean()


ALPHA, BETA, BASE, EPSILON = 2.0, 50.0, 0.5, 0.1


class Pairs(NamedTuple):
    """Pairs of a batch that a loss uses. Rows are anchors."""

    positive: Tensor
    """Pairs of different images of the same place, B×B, bool."""
    negative: Tensor
    """Pairs of images of different places, B×B, bool."""


def all_pairs(places: Tensor) -> Pairs:
    """Return all positive and negative pairs of a batch, from the place of each image (B)."""
    same = places[:, None] == places[None, :]
    return Pairs(same & ~torch.eye(len(places), dtype=torch.bool, device=places.device), ~same)


def multi_similarity_pairs(descriptors: Tensor, places: Tensor, epsilon: float = EPSILON) -> Pairs:
    """Return the informative pairs: those within ``epsilon`` of the hardest opposite pair.

    A positive is used if its cosine is less than ε above that of the nearest negative. A negative is used if
    its cosine is less than ε below that of the farthest positive.

    Args:
        descriptors: Unit vectors, B×d.
        places: Place of each descriptor (B).
        epsilon: The margin ε.

    Returns:
        Masks of the informative pairs.
    """
    with torch.no_grad():  # the selection of pairs has no gradient
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
    """Return the mean over anchors of log(1 + Σ₊ exp(−α(c − base)))/α + log(1 + Σ₋ exp(β(c − base)))/β.

    c are the cosines of the pairs. The loss of an anchor without a pair is 0.

    Args:
        descriptors: Unit vectors, B×d.
        places: Place of each descriptor (B).
        pairs: Pairs to use. Default: all.
        alpha: Weight α of positives.
        beta: Weight β of negatives.
        base: Cosine that separates positives from negatives.

    Returns:
        The mean loss, a scalar.
    """
    positive, negative = all_pairs(places) if pairs is None else pairs
    cosines = descriptors @ descriptors.T
    pull = _log_one_plus_sum(alpha * (base - cosines), positive) / alpha
    push = _log_one_plus_sum(beta * (cosines - base), negative) / beta
    return (pull + push).mean()


def _log_one_plus_sum(exponents: Tensor, mask: Tensor) -> Tensor:
    """Return log(1 + Σ exp(x)) over the masked entries of each row. Without entries it is 0, with a zero
    gradient."""
    masked = exponents.masked_fill(~mask, -math.inf)
    return torch.cat([torch.zeros_like(masked[:, :1]), masked], dim=1).logsumexp(1)


def triplet_moments(
    descriptors: Tensor, variance: Tensor, triplets: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of τ for T triplets.

    All dimensions are independent. With σ² for variances and D for squared distances of the means,

        E τ = D_ap − D_an + d(σp² − σn²)
        Var τ = 2d(σp²(σp² + 2σa²) + σn²(σn² + 2σa²)) + 4(D_ap σp² + D_an σn² + D_pn σa²).

    No term of the variance is negative, so no digits are lost. Only B×B distances are needed.

    Args:
        descriptors: Means, B×d.
        variance: Variance of every dimension (B).
        triplets: Rows of anchors, positives and negatives, T each.

    Returns:
        Mean and variance of τ, T each.
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
    """Return the KL divergence of each N(μ, σ²I) from the prior N(0, I/d), near the unit sphere: B."""
    dim = descriptors.shape[1]
    scaled = dim * variance
    return 0.5 * dim * (scaled + descriptors.square().sum(1) - 1 - torch.log(scaled))


def bayesian_triplet_loss(
    descriptors: Tensor, variance: Tensor, places: Tensor, margin: float = 0.0, kl_weight: float = 1e-6
) -> Tensor:
    """Return the mean of −log P(τ < −margin) over all triplets, plus the weighted divergence from the prior.

    Without a triplet it is 0, which can still be backpropagated.

    Args:
        descriptors: Unit vectors, B×d.
        variance: Variance of each descriptor (B); positive.
        places: Place of each descriptor (B).
        margin: Margin of the triplets.
        kl_weight: Weight of the divergence.

    Returns:
        The mean loss, a scalar.
    """
    positive, negative = all_pairs(places)
    a, p, n = torch.nonzero(positive[:, :, None] & negative[:, None, :], as_tuple=True)
    if not len(a):
        return 0 * (descriptors.sum() + variance.sum())
    mean, spread = triplet_moments(descriptors, variance, (a, p, n))
    # log_ndtr is finite even if Φ is 0 in floating point.
    likelihood = torch.special.log_ndtr((-margin - mean) / spread.sqrt())
    return kl_weight * prior_divergence(descriptors, variance).mean() - likelihood.mean()


def class_anchors(prototypes: Tensor, labels: Tensor) -> Tensor:
    """Return the normalized prototype of the class of each image, B×d, from prototypes C×d and labels B."""
    return F.normalize(prototypes, dim=1)[labels]


def batch_centroids(descriptors: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centroid of the other images of the same place in the batch.

    Args:
        descriptors: Unit vectors, B×d.
        places: Place of each descriptor (B).

    Returns:
        Anchors B×d, and a mask of images that have a positive (B). Anchors of other images are zero.
    """
    same = all_pairs(places).positive
    return F.normalize(same.to(descriptors.dtype) @ descriptors, dim=1), same.any(1)


class FixedAnchors(nn.Module):
    """Fixed directions, one per image: prototypes, centroids or descriptors of unchanged images.

    A centroid of few descriptors is close to each of them, which would overestimate κ. With ``leave_one_out``
    the matrix therefore contains sums, and the descriptor of each view is subtracted.

    Args:
        matrix: Anchors, M×d.
        index: Row of the anchor of every image (N); −1 if it has none.
        leave_one_out: Whether the matrix contains sums of descriptors.
    """

    matrix: Tensor
    index: Tensor

    def __init__(self, matrix: Tensor, index: Tensor, leave_one_out: bool = False) -> None:
        super().__init__()
        self.register_buffer(
            "matrix", matrix if leave_one_out else F.normalize(matrix, dim=1), persistent=False
        )
        self.register_buffer("index", index, persistent=False)
        self.leave_one_out = leave_one_out

    def forward(self, rows: Tensor, descriptors: Tensor) -> Tensor:
        """Return the anchors of image rows whose descriptors are B×d."""
        anchors = self.matrix[self.index[rows]].to(descriptors.dtype)
        return F.normalize(anchors - descriptors.detach(), dim=1) if self.leave_one_out else anchors
