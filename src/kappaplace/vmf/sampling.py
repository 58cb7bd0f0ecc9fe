"""Random samples, and products of densities: agreeing directions add up, opposing ones cancel.

Sampling uses Ulrich's rejection scheme as corrected by Wood (1994), vectorized.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kappaplace.checks import within
from kappaplace.errors import KappaPlaceError
from kappaplace.vmf.amos import as_tensors, check_dim

MAX_KAPPA = 1e12  # above it, all samples equal the mean in float64


def sample(
    mean_direction: Tensor, kappa: Tensor | float, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """Sample unit vectors from von Mises-Fisher distributions.

    Computed in float64 and returned in the dtype of the inputs, without a gradient.

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
        raise KappaPlaceError(f"kappa must be between 0 and {MAX_KAPPA:g}, got other values or NaN.")
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

    A Householder reflection that swaps the first axis with ±mean preserves lengths and angles. Its sign is
    chosen so that its normal cannot vanish.
    """
    sign = torch.where(mean[..., :1] < 0, -1.0, 1.0).to(mean.dtype)
    normal = torch.cat([mean[..., :1] + sign, mean[..., 1:]], dim=-1)
    vectors = torch.cat([-sign * cosine.unsqueeze(-1), tangent], dim=-1)
    scale = 2 / (normal * normal).sum(-1, keepdim=True)
    return vectors - scale * (vectors * normal).sum(-1, keepdim=True) * normal
