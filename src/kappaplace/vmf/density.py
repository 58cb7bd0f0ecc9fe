"""Log-density, negative log-likelihood and the best-fitting concentration."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.vmf import amos, bessel
from kappaplace.vmf.amos import as_tensors, check_dim

NEWTON_STEPS = 8
SMALLEST_KAPPA = 1e-30  # replaces 0 in divisions by κ


def log_normalizer(kappa: Tensor | float, dim: int, exact: bool = False) -> Tensor:
    """Return log C_d(κ), so that log p(z) = log C_d(κ) + κ·μᵀz.

    Args:
        kappa: Concentration κ ≥ 0, any shape.
        dim: Length of the descriptors, at least 2.
        exact: Use the exact Bessel functions instead of the Amos form.

    Returns:
        The log-normalizer, shape of kappa. At κ = 0 it is minus the log-area of the sphere.

    Raises:
        KappaPlaceError: If dim is below 2.
    """
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
    """Return the negative log-likelihood Ψ(κ) − κ·cosine of descriptors.

    It is computed per element with broadcasting and not reduced. Its gradient in κ is ratio(κ) − cosine.

    Args:
        cosine: Cosine between the descriptor and its anchor μ.
        kappa: Concentration κ > 0. This is not checked, because a check would make the GPU wait.
        dim: Length of the descriptors, at least 2. The paper's released code used 256 with descriptors of
            length 512; pass 256 to reproduce its loss.
        exact: Use the exact Bessel functions instead of the Amos form.
        constant: Add the log-area of the sphere, so that exp(−nll) is the density.

    Returns:
        The negative log-likelihood, in the common shape of cosine and kappa.

    Raises:
        KappaPlaceError: If dim is below 2.

    >>> round(nll(0.5, 100.0, 512).item(), 4)
    -40.3937
    """
    check_dim(dim)
    cosine, kappa = as_tensors(cosine, kappa)
    value = _exact_nll(cosine, kappa, dim) if exact else _amos_nll(cosine, kappa, (dim - 1) / 2)
    return value + _log_area(dim) if constant else value


def best_kappa(cosine: Tensor | float, dim: int, *, exact: bool = False, max_kappa: float = 1e6) -> Tensor:
    """Return the κ that minimizes `nll` for a cosine, which is where the ratio equals the cosine.

    In the Amos form this is 2ṽc/(1 − c²); the exact form is solved by Newton's method. Both are
    differentiable.

    Args:
        cosine: Cosine between the descriptor and its anchor μ, any shape.
        dim: Length of the descriptors, at least 2.
        exact: Use the exact Bessel functions instead of the Amos form.
        max_kappa: Largest κ to return.

    Returns:
        κ, shape of cosine; 0 for cosines ≤ 0.

    Raises:
        KappaPlaceError: If dim is below 2.

    >>> round(best_kappa(0.5, 512).item(), 4)
    340.6667
    """
    check_dim(dim)
    (cosine,) = as_tensors(cosine)
    if exact:
        return _exact_best_kappa(cosine.double(), dim, max_kappa).to(cosine.dtype)
    cosine = cosine.clamp(min=0)
    numerator, denominator = (dim - 1) * cosine, (1 - cosine) * (1 + cosine)
    # The limit comes before the division: otherwise gradients are NaN at c = 1.
    limited = numerator >= max_kappa * denominator
    return torch.where(limited, max_kappa, numerator / torch.where(limited, 1, denominator))


def fit_kappa(samples: Tensor, mean_direction: Tensor | None = None, *, max_kappa: float = 1e9) -> Tensor:
    """Return the maximum-likelihood κ (exact form) of samples.

    Args:
        samples: Unit vectors, (..., n, d).
        mean_direction: Known mean direction, (..., d). Default: the mean of the samples. This biases κ
            upwards unless n is much larger than 1/A_d(κ)², because the mean of n random directions has a
            length of about 1/√n, not 0.
        max_kappa: Result for identical samples, which have no finite κ.

    Returns:
        κ, shape (...).

    Raises:
        KappaPlaceError: If samples has fewer than two dimensions.
    """
    if samples.ndim < 2:
        raise KappaPlaceError(f"samples must have shape (..., n, d), got {tuple(samples.shape)}.")
    (samples,) = as_tensors(samples)
    # At high κ, 1 − c is smaller than the rounding of float32 descriptors to unit length.
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
    """Return the log of the surface 2π^{d/2}/Γ(d/2) of the unit sphere in R^d."""
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)


def _amos_nll(cosine: Tensor, kappa: Tensor, order: float) -> Tensor:
    """Return Ψ − κc. Near c = 1 it is κ(1 − c) − (κ − Ψ), where value and gradient use small numbers only."""
    near = kappa * (1 - cosine) - amos.partition_gap(kappa, order)
    far = amos.partition(kappa, order) - kappa * cosine
    return torch.where(cosine > 0.5, near, far)


def _exact_nll(cosine: Tensor, kappa: Tensor, dim: int) -> Tensor:
    wide = kappa.double()  # float64 leaves enough digits for the plain difference
    return (bessel.partition(wide, dim) - wide * cosine.double()).to(kappa.dtype)


def _exact_best_kappa(cosine: Tensor, dim: int, max_kappa: float) -> Tensor:
    """Solve by Newton's method, starting at the Amos solution.

    The ratio is concave and the Amos form is an upper bound: the start is below the root, and no step
    overshoots.
    """
    highest = bessel.exact_bessel_ratio(max_kappa, dim).item()
    cosine = cosine.clamp(0, highest)
    kappa = best_kappa(cosine.detach(), dim, max_kappa=max_kappa).clamp(min=SMALLEST_KAPPA)
    for _ in range(NEWTON_STEPS):
        kappa = _newton_step(kappa, cosine.detach(), dim).clamp(SMALLEST_KAPPA, max_kappa)
    # The last step, from a constant κ, has the gradient 1/A′(κ) of the root.
    return torch.where(cosine > 0, _newton_step(kappa, cosine, dim), 0 * cosine)


def _newton_step(kappa: Tensor, cosine: Tensor, dim: int) -> Tensor:
    ratio = bessel.ratio(kappa, dim)
    slope = 1 - ratio * ratio - (dim - 1) * ratio / kappa  # Riccati's equation of the ratio
    # It loses its digits at high κ, where the slope of the Amos form is correct to about 1/κ.
    slope = torch.where(kappa > 1e5, amos.slope(kappa, (dim - 1) / 2), slope)
    return kappa - (ratio - cosine) / slope
