"""Log-density, negative log-likelihood and the concentration that fits best."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.vmf import amos, bessel
from kappaplace.vmf.amos import check_dim, working

NEWTON_STEPS = 8
SMALLEST_KAPPA = 1e-30  # stands in for 0 where κ is divided by


def log_normalizer(kappa: Tensor | float, dim: int, exact: bool = False) -> Tensor:
    """log C_d(κ), so that log p(z) = log C_d(κ) + κ·μᵀz; at κ = 0 it is minus the log-area of the sphere."""
    check_dim(dim)
    return -_log_partition(kappa, dim, exact) - _log_area(dim)


def nll(
    cosine: Tensor | float,
    kappa: Tensor | float,
    dim: int,
    *,
    exact: bool = False,
    constant: bool = False,
) -> Tensor:
    """Negative log-likelihood Ψ(κ) − κ·cosine of a descriptor whose cosine to its anchor μ is `cosine`.

    Elementwise with broadcasting, not reduced. The gradient in κ is ratio(κ) − cosine. κ must be positive;
    this is not checked, since a check would make the GPU wait. `constant` adds the log-area of the sphere,
    which makes exp(−nll) the density. `dim` is the length of the descriptor; 256 reproduces the loss of the
    paper's released code, which used 256 with descriptors of length 512.

    >>> round(nll(0.5, 100.0, 512).item(), 4)
    -40.3937
    """
    check_dim(dim)
    cosine, kappa = working(cosine, kappa)
    value = _exact_nll(cosine, kappa, dim) if exact else _amos_nll(cosine, kappa, (dim - 1) / 2)
    return value + _log_area(dim) if constant else value


def best_kappa(cosine: Tensor | float, dim: int, *, exact: bool = False, max_kappa: float = 1e6) -> Tensor:
    """The κ that minimises `nll` at this cosine: where the ratio equals it. 0 for cosines ≤ 0.

    The Amos form has 2ṽc/(1 − c²); the exact form is solved by Newton's method. Differentiable in both.

    >>> round(best_kappa(0.5, 512).item(), 4)
    340.6667
    """
    check_dim(dim)
    (cosine,) = working(cosine)
    if exact:
        return _exact_best_kappa(cosine.double(), dim, max_kappa).to(cosine.dtype)
    cosine = cosine.clamp(min=0)
    numerator, denominator = (dim - 1) * cosine, (1 - cosine) * (1 + cosine)
    # The limit is applied before the division, which would give NaN gradients at c = 1 otherwise.
    limited = numerator >= max_kappa * denominator
    return torch.where(limited, max_kappa, numerator / torch.where(limited, 1, denominator))


def fit_kappa(samples: Tensor, mean_direction: Tensor | None = None, *, max_kappa: float = 1e9) -> Tensor:
    """Maximum-likelihood κ (exact form) of unit vectors, samples of shape (..., n, d) → (...).

    Identical samples have no finite κ and get `max_kappa`.

    Without `mean_direction` (..., d) it is estimated from the samples too. That biases κ upwards unless
    n is much larger than 1/A_d(κ)²: the mean of n random directions has a length of about 1/√n, not 0.
    """
    if samples.ndim < 2:
        raise KappaPlaceError(f"fit_kappa needs samples of shape (..., n, d), got {tuple(samples.shape)}.")
    (samples,) = working(samples)
    # Rounding of float32 descriptors to unit length would drown 1 − c at high κ.
    units = torch.nn.functional.normalize(samples.double(), dim=-1)
    if mean_direction is None:
        cosine = torch.linalg.vector_norm(units.mean(-2), dim=-1)
    else:
        mean = torch.nn.functional.normalize(mean_direction.double(), dim=-1)
        cosine = (units * mean.unsqueeze(-2)).sum(-1).mean(-1)
    return best_kappa(cosine, samples.shape[-1], exact=True, max_kappa=max_kappa).to(samples.dtype)


def _log_partition(kappa: Tensor | float, dim: int, use_exact: bool) -> Tensor:
    return bessel.exact_log_partition(kappa, dim) if use_exact else amos.log_partition(kappa, dim)


def _log_area(dim: int) -> float:
    """Log of the surface 2π^{d/2}/Γ(d/2) of the unit sphere in R^d."""
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)


def _amos_nll(cosine: Tensor, kappa: Tensor, order: float) -> Tensor:
    """Ψ − κc, near c = 1 as κ(1 − c) − (κ − Ψ): value and gradient are then made of small numbers."""
    near = kappa * (1 - cosine) - amos.partition_gap(kappa, order)
    far = amos.partition(kappa, order) - kappa * cosine
    return torch.where(cosine > 0.5, near, far)


def _exact_nll(cosine: Tensor, kappa: Tensor, dim: int) -> Tensor:
    wide = kappa.double()  # float64 leaves enough digits for the plain difference
    return (bessel.partition(wide, dim) - wide * cosine.double()).to(kappa.dtype)


def _exact_best_kappa(cosine: Tensor, dim: int, max_kappa: float) -> Tensor:
    """Newton from the Amos solution.

    The ratio is concave and Amos bounds it from above: the start lies below the root, and no step overshoots.
    """
    highest = bessel.exact_bessel_ratio(max_kappa, dim).item()
    cosine = cosine.clamp(0, highest)
    kappa = best_kappa(cosine.detach(), dim, max_kappa=max_kappa).clamp(min=SMALLEST_KAPPA)
    for _ in range(NEWTON_STEPS):
        kappa = _newton_step(kappa, cosine.detach(), dim).clamp(SMALLEST_KAPPA, max_kappa)
    # One last step from a constant κ carries the gradient 1/A′(κ) of the root.
    return torch.where(cosine > 0, _newton_step(kappa, cosine, dim), 0 * cosine)


def _newton_step(kappa: Tensor, cosine: Tensor, dim: int) -> Tensor:
    ratio = bessel.ratio(kappa, dim)
    slope = 1 - ratio * ratio - (dim - 1) * ratio / kappa  # Riccati's equation of the ratio
    # It loses its digits at high κ, where the slope of the Amos form is right to about 1/κ.
    slope = torch.where(kappa > 1e5, amos.slope(kappa, (dim - 1) / 2), slope)
    return kappa - (ratio - cosine) / slope
