"""Multi-similarity loss and its pair miner (Wang et al., CVPR 2019), on whole B×B matrices.

Written here rather than imported, so that the core needs no further package; tests hold both to the numbers
of pytorch-metric-learning.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError

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
