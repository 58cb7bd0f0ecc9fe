"""Bayesian triplet loss (Warburg et al., ICCV 2021) for isotropic Gaussian descriptors, in closed form.

τ = ‖a − p‖² − ‖a − n‖² is a sum over many dimensions, hence nearly Gaussian; its mean and variance are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.training.contrastive import all_pairs


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
