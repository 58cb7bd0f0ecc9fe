"""The exact Bessel ratio and log-partition for any dimension and concentration, in float64.

One algorithm covers the whole range. Debye's uniform expansion (DLMF 10.41) of I_ν(x) is accurate to rounding
once ν ≥ 64; in its leading term it is the Amos form with ṽ = ν, so this file adds only the correction. Lower
orders come from the recurrence r_{ν−1} = 1/(2ν/x + r_ν) of the ratio r_ν = I_{ν+1}(x)/I_ν(x), which is
stable in that direction. All sums have terms of the same sign or start at the small quantity itself, so the
relative precision is kept down to κ = 1e-6 and below, where Ψ ≈ κ²/(2d).
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from kappaplace.vmf import amos
from kappaplace.vmf.amos import as_tensors, check_dim

LOWEST_ORDER = 64  # Debye's expansion is used from this order on
TERMS = 7  # terms after the leading one; the first omitted one is below 1e-14 at order 64
TINY = 1e-100  # keeps 1/x finite at κ = 0 and disappears in rounding elsewhere


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
    return ratio(kappa.double(), dim).to(kappa.dtype)


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
    return partition(kappa.double(), dim).to(kappa.dtype)


def ratio(kappa: Tensor, dim: float) -> Tensor:
    """Return A_d(κ) of a float64 tensor."""
    order, steps = _raised_order(dim)
    value = _debye_ratio(kappa, order)
    for i in range(steps):
        value = 1 / (2 * (order - i) / (kappa + TINY) + value)
    return value


def partition(kappa: Tensor, dim: float) -> Tensor:
    """Return the exact Ψ of a float64 tensor, with `ratio` as its gradient."""
    return amos.with_derivative(kappa, dim, _partition, ratio)


def _partition(kappa: Tensor, dim: float) -> Tensor:
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
    return amos.ratio(x, order) - z * t * t * _polynomial(s, t) / _polynomial(u, t)


def _debye_partition(x: Tensor, order: float) -> Tensor:
    """Return log(Γ(ν+1)·(2/x)^ν·I_ν(x)).

    The expansion's value at x = 0 replaces Γ (Stirling's series is the same series at t = 1), and
    U(t) − U(1) is divided by t − 1 beforehand. The result is therefore exactly 0 at 0 and precise near it.
    """
    z = x / order
    w = torch.sqrt(1 + z * z)
    rise = z * z / (1 + w)  # w − 1
    u = _coefficients(order)
    quotient = [sum(u[power + 1 :]) for power in range(len(u) - 1)]  # (U(t) − U(1))/(t − 1)
    change = -rise / w * _polynomial(quotient, 1 / w)  # U(t) − U(1), as t − 1 = −(w − 1)/w
    return amos.partition(x, order) - torch.log1p(rise) / 2 + torch.log1p(change / sum(u))


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
