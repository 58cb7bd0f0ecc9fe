"""Density, best-fitting concentration, random samples, and products of densities.

In a product, agreeing directions add up and opposing ones cancel. Sampling uses Ulrich's rejection scheme as
corrected by Wood (1994), vectorized.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kappaplace.checks import within
from kappaplace.errors import KappaPlaceError
from kappaplace.vmf import bessel
from kappaplace.vmf.bessel import as_tensors, check_dim

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
        mean_direction: Known mean direction, (..., d). Default: the mean of the samples. The default biases κ
            upwards unless n is much larger than 1/A_d(κ)². The reason is that the mean of n random directions
            has a length of about 1/√n.
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
    return bessel.exact_log_partition(kappa, dim) if use_exact else bessel.log_partition(kappa, dim)


def _log_area(dim: int) -> float:
    """Return the log of the surface 2π^{d/2}/Γ(d/2) of the unit sphere in R^d."""
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)


def _amos_nll(cosine: Tensor, kappa: Tensor, order: float) -> Tensor:
    """Return Ψ − κc; near c = 1 as κ(1 − c) − (κ − Ψ), which does not subtract large numbers."""
    near = kappa * (1 - cosine) - bessel.partition_gap(kappa, order)
    far = bessel.amos_partition(kappa, order) - kappa * cosine
    return torch.where(cosine > 0.5, near, far)


def _exact_nll(cosine: Tensor, kappa: Tensor, dim: int) -> Tensor:
    wide = kappa.double()  # float64 leaves enough digits for the plain difference
    return (bessel.exact_partition(wide, dim) - wide * cosine.double()).to(kappa.dtype)


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
    ratio = bessel.exact_ratio(kappa, dim)
    slope = 1 - ratio * ratio - (dim - 1) * ratio / kappa  # Riccati's equation of the ratio
    # It loses its digits at high κ, where the slope of the Amos form is correct to about 1/κ.
    slope = torch.where(kappa > 1e5, bessel.amos_slope(kappa, (dim - 1) / 2), slope)
    return kappa - (ratio - cosine) / slope


MAX_KAPPA = 1e12  # above it, all samples equal the mean in float64


def sample(
    mean_direction: Tensor, kappa: Tensor | float, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """Sample unit vectors from von Mises-Fisher distributions.

    Samples are computed in float64 and have the dtype of the inputs, without a gradient.

    Args:
        mean_direction: Unit vectors μ, (..., d).
        kappa: Concentrations between 0 and 1e12, (...), broadcast with mean_direction.
        n: Number of samples per distribution.
        generator: Random generator. Default: PyTorch's global generator.

    Returns:
        The samples, (..., n, d).

    Raises:
        KappaPlaceError: If κ is out of range or NaN, n is negative or d is below 2.

    >>> sample(torch.eye(3), 10.0, 4).shape
    torch.Size([3, 4, 3])
    """
    dim = mean_direction.shape[-1] if mean_direction.ndim else 0
    check_dim(dim)
    within(n, "n", 0)
    mean_direction, kappa = as_tensors(mean_direction, kappa)
    if not bool(((kappa >= 0) & (kappa <= MAX_KAPPA)).all()):  # NaN fails too
        raise KappaPlaceError(f"kappa must be between 0 and {MAX_KAPPA:g}, and not NaN.")
    with torch.no_grad():
        shape = torch.broadcast_shapes(mean_direction.shape[:-1], kappa.shape)
        mean = torch.nn.functional.normalize(mean_direction.double(), dim=-1).unsqueeze(-2)
        wide = kappa.double().to(mean.device).unsqueeze(-1).expand(*shape, n)
        gap = _sample_gap(wide.reshape(-1), dim, generator).reshape(wide.shape)
        tangent = torch.randn(*wide.shape, dim - 1, dtype=mean.dtype, device=mean.device, generator=generator)
        tangent = torch.nn.functional.normalize(tangent, dim=-1)
        sine = torch.sqrt(gap * (2 - gap))
        return _about_mean(1 - gap, sine.unsqueeze(-1) * tangent, mean).to(mean_direction.dtype)


def resultant(kappa_a: Tensor | float, kappa_b: Tensor | float, cosine: Tensor | float) -> Tensor:
    """Return the concentration of the product of two densities, √(κa² + κb² + 2κaκb·cosine).

    It is 1/U in the paper.

    Args:
        kappa_a: Concentration of the first density, κ ≥ 0, any shape.
        kappa_b: Concentration of the second density.
        cosine: Cosine between their mean directions.

    Returns:
        The concentration, in the common shape of the arguments.

    >>> resultant(3.0, 4.0, 0.0).item()
    5.0
    """
    kappa_a, kappa_b, cosine = as_tensors(kappa_a, kappa_b, cosine)
    # (κa − κb)² + 2κaκb(1 + c) is equal and loses no digits as c → −1.
    square = (kappa_a - kappa_b) ** 2 + 2 * kappa_a * kappa_b * (1 + cosine).clamp(min=0)
    positive = ~(square <= 0)  # also true for NaN, which must not become a concentration of 0
    # The inner `where` keeps the infinite slope of √ at 0 out of the gradient, which is 0 there by choice.
    return torch.where(positive, torch.sqrt(torch.where(positive, square, 1)), 0)


def fuse(directions: Tensor, kappas: Tensor | float, axis: int = -2) -> tuple[Tensor, Tensor]:
    """Return direction and concentration of the product of several densities.

    Args:
        directions: Mean directions, (..., n, d).
        kappas: Concentrations, (..., n).
        axis: Axis of directions to multiply along; not the last one.

    Returns:
        Direction (..., d) and κ (...). Densities that cancel completely give the zero vector and κ = 0.

    Raises:
        KappaPlaceError: If axis is the last axis.
    """
    if directions.ndim < 2 or axis % directions.ndim == directions.ndim - 1:
        raise KappaPlaceError(
            f"axis must not be the last axis of directions, which contains the components; got axis {axis} "
            f"for shape {tuple(directions.shape)}."
        )
    directions, kappas = as_tensors(directions, kappas)
    total = (directions * kappas.unsqueeze(-1)).sum(axis)
    kappa = torch.linalg.vector_norm(total, dim=-1)
    return total / torch.where(kappa > 0, kappa, 1).unsqueeze(-1), kappa


def _sample_gap(kappa: Tensor, dim: int, generator: torch.Generator | None) -> Tensor:
    """Return 1 − cosine to μ for each κ of a vector. The cosine itself would lose digits at high κ."""
    m = dim - 1
    b = m / (2 * kappa + torch.sqrt(4 * kappa * kappa + m * m))
    gap = torch.empty_like(kappa)
    pending = torch.arange(len(kappa), device=kappa.device)
    while len(pending):
        proposal, log_accept = _propose(kappa[pending], b[pending], m, generator)
        uniform = torch.rand(len(pending), dtype=kappa.dtype, device=kappa.device, generator=generator)
        accepted = torch.log(uniform) <= log_accept
        gap[pending[accepted]] = proposal[accepted]
        pending = pending[~accepted]
    return gap


def _propose(kappa: Tensor, b: Tensor, m: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Sample a gap from the envelope, and return it with the log-probability to accept it.

    The envelope is w = (1 − (1+b)β)/(1 − (1−b)β) with β ~ Beta(m/2, m/2), here as a ratio of two gammas. It
    touches the density at w₀ = (1 − b)/(1 + b).
    """
    # torch.distributions does not accept a generator; this is the function that it calls.
    shape = torch.full_like(kappa, m / 2)
    first = torch._standard_gamma(shape, generator=generator)
    second = torch._standard_gamma(shape, generator=generator)
    gap = 2 * b * first / (second + b * first)
    touch, touch_gap = (1 - b) / (1 + b), 2 * b / (1 + b)
    log_accept = kappa * (touch_gap - gap) + m * torch.log((1 + touch * gap / touch_gap) / (1 + touch))
    return gap, log_accept


def _about_mean(cosine: Tensor, tangent: Tensor, mean: Tensor) -> Tensor:
    """Rotate (cosine, tangent), which are relative to the first axis, to the mean direction.

    A Householder reflection that swaps the first axis with ±mean preserves lengths and angles. The sign is
    chosen so that the normal of the reflection cannot vanish.
    """
    sign = torch.where(mean[..., :1] < 0, -1.0, 1.0).to(mean.dtype)
    normal = torch.cat([mean[..., :1] + sign, mean[..., 1:]], dim=-1)
    vectors = torch.cat([-sign * cosine.unsqueeze(-1), tangent], dim=-1)
    scale = 2 / (normal * normal).sum(-1, keepdim=True)
    return vectors - scale * (vectors * normal).sum(-1, keepdim=True) * normal
