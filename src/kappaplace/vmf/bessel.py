"""The Bessel ratio and its integral, the log-partition: the Amos form and the exact one.

**Amos form.** With ṽ = (d − 1)/2 and s = √(κ² + ṽ²), the ratio is κ/(ṽ + s), an upper bound of the exact one.
Its integral from 0 is

    Ψ(κ) = (s − ṽ) − ṽ·log((s + ṽ)/(2ṽ)).

Every expression below avoids subtracting two large numbers. Derivatives are written out for the same reason:
automatic differentiation would subtract again. Functions with `order` take ṽ itself.

**Exact form**, in float64. One algorithm covers every dimension and concentration. Debye's uniform expansion
(DLMF 10.41) of I_ν(x) is accurate to rounding if ν ≥ 64. Its leading term is the Amos form with ṽ = ν, so
only the correction is added. Lower orders come from the recurrence r_{ν−1} = 1/(2ν/x + r_ν) of the ratio
r_ν = I_{ν+1}(x)/I_ν(x), which is stable in that direction. All sums have terms of the same sign or start at
the small quantity. The relative precision therefore holds for κ = 1e-6 and below, where Ψ ≈ κ²/(2d).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError

Curve = Callable[[Tensor, float], Tensor]

LOWEST_ORDER = 64  # smallest order of Debye's expansion
TERMS = 7  # terms after the leading one; the first omitted one is below 1e-14 at order 64
TINY = 1e-100  # keeps 1/x finite at κ = 0 and disappears in rounding elsewhere


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
    return amos_ratio(kappa, (dim - 1) / 2)


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
    return amos_partition(kappa, (dim - 1) / 2)


def amos_ratio(kappa: Tensor, order: float) -> Tensor:
    """Return the ratio κ/(ṽ + s) of the Amos form."""
    return with_derivative(kappa, order, _ratio, amos_slope)


def ratio_gap(kappa: Tensor, order: float) -> Tensor:
    """Return 1 − ratio, to full relative precision even for a ratio close to 1."""
    return with_derivative(kappa, order, _ratio_gap, _minus_slope)


def amos_slope(kappa: Tensor, order: float) -> Tensor:
    """Return the derivative ṽ/(s(ṽ + s)) of the ratio of the Amos form."""
    s = _root(kappa, order)
    return order / (s * (order + s))


def amos_partition(kappa: Tensor, order: float) -> Tensor:
    """Return the log-partition Ψ(κ) in the Amos form."""
    return with_derivative(kappa, order, _amos_partition, amos_ratio)


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
    return -amos_slope(kappa, order)


def _amos_partition(kappa: Tensor, order: float) -> Tensor:
    rise = kappa * _ratio(kappa, order)  # s − ṽ
    return rise - order * torch.log1p(rise / (2 * order))


def _partition_gap(kappa: Tensor, order: float) -> Tensor:
    rise = kappa * _ratio(kappa, order)
    shortfall = 2 * order * kappa / (kappa + order + _root(kappa, order))  # κ − (s − ṽ)
    return shortfall + order * torch.log1p(rise / (2 * order))


def exact_bessel_ratio(kappa: Tensor | float, dim: int) -> Tensor:
    """Return the mean cosine to μ at concentration κ, A_d(κ) = I_{d/2}(κ)/I_{d/2−1}(κ).

    Args:
        kappa: Concentration κ ≥ 0, any shape.
        dim: Length of the descriptors, at least 2.

    Returns:
        The ratio, in [0, 1), increasing in κ; shape of kappa.

    Raises:
        KappaPlaceError: If dim is below 2.

    >>> round(exact_bessel_ratio(100.0, 512).item(), 4)
    0.1884
    """
    check_dim(dim)
    (kappa,) = as_tensors(kappa)
    return exact_ratio(kappa.double(), dim).to(kappa.dtype)


def exact_log_partition(kappa: Tensor | float, dim: int) -> Tensor:
    """Return the exact log-partition, log(Γ(d/2)·(2/κ)^v·I_v(κ)) with v = d/2 − 1.

    Args:
        kappa: Concentration κ ≥ 0, any shape.
        dim: Length of the descriptors, at least 2.

    Returns:
        Ψ: 0 at κ = 0, with `exact_bessel_ratio` as its gradient; shape of kappa.

    Raises:
        KappaPlaceError: If dim is below 2.

    >>> round(exact_log_partition(100.0, 512).item(), 4)
    9.5888
    """
    check_dim(dim)
    (kappa,) = as_tensors(kappa)
    return exact_partition(kappa.double(), dim).to(kappa.dtype)


def exact_ratio(kappa: Tensor, dim: float) -> Tensor:
    """Return the exact ratio A_d(κ) of a float64 tensor."""
    order, steps = _raised_order(dim)
    value = _debye_ratio(kappa, order)
    for i in range(steps):
        value = 1 / (2 * (order - i) / (kappa + TINY) + value)
    return value


def exact_partition(kappa: Tensor, dim: float) -> Tensor:
    """Return the exact log-partition Ψ(κ) of a float64 tensor, with `exact_ratio` as its gradient."""
    return with_derivative(kappa, dim, _exact_partition, exact_ratio)


def _exact_partition(kappa: Tensor, dim: float) -> Tensor:
    order, steps = _raised_order(dim)
    total = _debye_partition(kappa, order)
    value = _debye_ratio(kappa, order) if steps else kappa  # not needed without steps
    for i in range(steps):
        # Ψ at order ν − 1 is Ψ at order ν plus log1p(x·r_ν/(2ν)), from I_{ν−1} = I_ν/r_{ν−1}.
        total = total + torch.log1p(kappa * value / (2 * (order - i)))
        value = 1 / (2 * (order - i) / (kappa + TINY) + value)
    return total


def _raised_order(dim: float) -> tuple[float, int]:
    """Return the order for Debye's expansion, and the number of recurrence steps down to d/2 − 1."""
    order = dim / 2 - 1
    steps = max(0, math.ceil(LOWEST_ORDER - order))
    return order + steps, steps


def _debye_ratio(x: Tensor, order: float) -> Tensor:
    """Return r_ν(x): the logarithmic derivative of Debye's expansion, minus ν/x."""
    z = x / order
    t = torch.rsqrt(1 + z * z)
    u = _coefficients(order)
    s = [(power + 0.5) * c / order for power, c in enumerate(u)]  # Σ (½·u_k + t·u_k′)/ν^{k+1}
    return amos_ratio(x, order) - z * t * t * _polynomial(s, t) / _polynomial(u, t)


def _debye_partition(x: Tensor, order: float) -> Tensor:
    """Return log(Γ(ν+1)·(2/x)^ν·I_ν(x)).

    The expansion's value at x = 0 replaces Γ, because Stirling's series is the same series at t = 1. U(t) −
    U(1) is divided by t − 1 beforehand. The result is therefore exactly 0 at 0 and precise near it.
    """
    z = x / order
    w = torch.sqrt(1 + z * z)
    rise = z * z / (1 + w)  # w − 1
    u = _coefficients(order)
    quotient = [sum(u[power + 1 :]) for power in range(len(u) - 1)]  # (U(t) − U(1))/(t − 1)
    change = -rise / w * _polynomial(quotient, 1 / w)  # U(t) − U(1), as t − 1 = −(w − 1)/w
    return amos_partition(x, order) - torch.log1p(rise) / 2 + torch.log1p(change / sum(u))


def _polynomial(coefficients: list[float], t: Tensor) -> Tensor:
    """Evaluate a polynomial by Horner's rule; the lowest power comes first."""
    value = torch.full_like(t, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * t + c
    return value


def _coefficients(order: float) -> list[float]:
    """Return U(t) = Σ_k u_k(t)/ν^k as one polynomial in t."""
    return [sum(u[power] / order**k for k, u in enumerate(_DEBYE)) for power in range(3 * TERMS + 1)]


def _debye_polynomials() -> list[list[float]]:
    """Return u_0 … u_TERMS, computed in fractions: u_{k+1} = ½t²(1−t²)·u_k′ + ⅛∫₀ᵗ(1−5τ²)·u_k dτ.

    This is DLMF 10.41.9.
    """
    size = 3 * TERMS + 1
    rows = [[Fraction(1)] + [Fraction(0)] * (size - 1)]
    for _ in range(TERMS):
        following = [Fraction(0)] * size
        for power, c in enumerate(rows[-1]):
            if c:
                following[power + 1] += c * power / 2 + c / (8 * (power + 1))
                following[power + 3] -= c * power / 2 + 5 * c / (8 * (power + 3))
        rows.append(following)
    return [[float(c) for c in row] for row in rows]


_DEBYE = _debye_polynomials()
