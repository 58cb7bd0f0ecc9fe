"""The Amos form: a closed-form upper bound of the Bessel ratio, and its integral, the log-partition.

With ṽ = (d − 1)/2 and s = √(κ² + ṽ²) the ratio is κ/(ṽ + s) and its integral from 0 is

    Ψ(κ) = (s − ṽ) − ṽ·log((s + ṽ)/(2ṽ)).

Every expression below avoids subtracting two large numbers. Derivatives are written out for the same reason:
automatic differentiation would subtract again. Functions with `order` take ṽ itself; `bessel` reuses them at
other orders. `check_dim` and `as_tensors` prepare the arguments of all functions of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError

Curve = Callable[[Tensor, float], Tensor]


def check_dim(dim: int) -> None:
    """Fail unless a dimension is an integer of at least 2."""
    if dim < 2 or dim % 1 != 0:
        raise KappaPlaceError(f"dim must be an integer of at least 2, got {dim}.")


def as_tensors(*values: Tensor | float) -> list[Tensor]:
    """Return the values as tensors of the same dtype, at least float32 (also inside autocast).

    Python numbers take the dtype of the tensors, or float64 if there is no tensor.
    """
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not tensors:
        return [torch.as_tensor(value, dtype=torch.float64) for value in values]
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
    device = tensors[0].device
    return [
        value.to(dtype) if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype, device=device)
        for value in values
    ]


class _WithDerivative(torch.autograd.Function):
    """A function of κ with a second function as its derivative, which is differentiable too.

    It has no forward-mode rule, because torch.compile rejects functions with one.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa: Tensor, order: float, value: Curve, derivative: Curve) -> Tensor:
        return value(kappa, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, Curve, Curve], output: Tensor) -> None:
        kappa, ctx.order, _, ctx.derivative = inputs
        ctx.save_for_backward(kappa)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (kappa,) = ctx.saved_tensors
        return grads[0] * ctx.derivative(kappa, ctx.order), None, None, None


def with_derivative(kappa: Tensor, order: float, value: Curve, derivative: Curve) -> Tensor:
    """Return value(kappa, order), with derivative(kappa, order) as its gradient in κ.

    Args:
        kappa: Concentration.
        order: The order ṽ.
        value: The function.
        derivative: Derivative of the function in κ, which is differentiable too.

    Returns:
        The value, with shape of kappa.
    """
    return _WithDerivative.apply(kappa, order, value, derivative)


def bessel_ratio(kappa: Tensor | float, dim: int) -> Tensor:
    """Return the mean cosine to μ at concentration κ in the Amos form, κ/(ṽ + √(κ² + ṽ²)).

    Args:
        kappa: Concentration κ ≥ 0, any shape.
        dim: Length of the descriptors, at least 2.

    Returns:
        The ratio, in [0, 1), increasing in κ; shape of kappa.

    Raises:
        KappaPlaceError: If dim is below 2.

    >>> round(bessel_ratio(100.0, 512).item(), 4)
    0.1887
    """
    check_dim(dim)
    (kappa,) = as_tensors(kappa)
    return ratio(kappa, (dim - 1) / 2)


def log_partition(kappa: Tensor | float, dim: int) -> Tensor:
    """Return Ψ(κ), the integral of `bessel_ratio` from 0 to κ.

    Args:
        kappa: Concentration κ ≥ 0, any shape.
        dim: Length of the descriptors, at least 2.

    Returns:
        Ψ: convex, 0 at κ = 0, with `bessel_ratio` as its gradient; shape of kappa.

    Raises:
        KappaPlaceError: If dim is below 2.

    >>> round(log_partition(100.0, 512).item(), 4)
    9.6063
    """
    check_dim(dim)
    (kappa,) = as_tensors(kappa)
    return partition(kappa, (dim - 1) / 2)


def ratio(kappa: Tensor, order: float) -> Tensor:
    """Return κ/(ṽ + s)."""
    return with_derivative(kappa, order, _ratio, slope)


def ratio_gap(kappa: Tensor, order: float) -> Tensor:
    """Return 1 − ratio, to full relative precision even for a ratio close to 1."""
    return with_derivative(kappa, order, _ratio_gap, _minus_slope)


def slope(kappa: Tensor, order: float) -> Tensor:
    """Return the derivative of the ratio, ṽ/(s(ṽ + s))."""
    s = _root(kappa, order)
    return order / (s * (order + s))


def partition(kappa: Tensor, order: float) -> Tensor:
    """Return Ψ(κ)."""
    return with_derivative(kappa, order, _partition, ratio)


def partition_gap(kappa: Tensor, order: float) -> Tensor:
    """Return κ − Ψ(κ), to full relative precision even for large κ, where Ψ is close to κ."""
    return with_derivative(kappa, order, _partition_gap, ratio_gap)


def _root(kappa: Tensor, order: float) -> Tensor:
    return torch.sqrt(kappa * kappa + order * order)


def _ratio(kappa: Tensor, order: float) -> Tensor:
    return kappa / (order + _root(kappa, order))


def _ratio_gap(kappa: Tensor, order: float) -> Tensor:
    s = _root(kappa, order)  # s − κ = ṽ²/(s + κ)
    return (order + order * order / (s + kappa)) / (order + s)


def _minus_slope(kappa: Tensor, order: float) -> Tensor:
    return -slope(kappa, order)


def _partition(kappa: Tensor, order: float) -> Tensor:
    rise = kappa * _ratio(kappa, order)  # s − ṽ
    return rise - order * torch.log1p(rise / (2 * order))


def _partition_gap(kappa: Tensor, order: float) -> Tensor:
    rise = kappa * _ratio(kappa, order)
    shortfall = 2 * order * kappa / (kappa + order + _root(kappa, order))  # κ − (s − ṽ)
    return shortfall + order * torch.log1p(rise / (2 * order))
