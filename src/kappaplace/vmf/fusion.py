"""Products of von Mises-Fisher densities: agreeing directions add up, opposing ones cancel."""

from __future__ import annotations

import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.vmf.inputs import working


def resultant(kappa_a: Tensor | float, kappa_b: Tensor | float, cosine: Tensor | float) -> Tensor:
    """Concentration √(κa² + κb² + 2κaκb·cosine) of the product of two densities; the paper's 1/U.

    >>> resultant(3.0, 4.0, 0.0).item()
    5.0
    """
    kappa_a, kappa_b, cosine = working(kappa_a, kappa_b, cosine)
    # (κa − κb)² + 2κaκb(1 + c) is the same and loses no digits as c → −1.
    square = (kappa_a - kappa_b) ** 2 + 2 * kappa_a * kappa_b * (1 + cosine).clamp(min=0)
    positive = ~(square <= 0)  # NaN among them: it must not come out as a concentration of 0
    # The inner `where` keeps the infinite slope of √ at 0 out of the gradient, which is 0 there by choice.
    return torch.where(positive, torch.sqrt(torch.where(positive, square, 1)), 0)


def fuse(directions: Tensor, kappas: Tensor | float, axis: int = -2) -> tuple[Tensor, Tensor]:
    """Direction and concentration of the product of all densities along `axis`.

    directions (..., n, d) with kappas (..., n) → direction (..., d) and kappa (...). Where the densities
    cancel completely there is no direction: it is the zero vector, with κ = 0.
    """
    if directions.ndim < 2 or axis % directions.ndim == directions.ndim - 1:
        raise KappaPlaceError(
            f"Cannot fuse directions of shape {tuple(directions.shape)} along axis {axis}: the last axis "
            "holds the components, fuse along another one."
        )
    directions, kappas = working(directions, kappas)
    total = (directions * kappas.unsqueeze(-1)).sum(axis)
    kappa = torch.linalg.vector_norm(total, dim=-1)
    return total / torch.where(kappa > 0, kappa, 1).unsqueeze(-1), kappa
