"""Smooth ECE (Błasiok and Nakkiran, "Smooth ECE", 2023): calibration of probabilities without bins.

The residuals y − p are smoothed over p with a Gaussian of width σ that is reflected at 0 and 1, and the
absolute value of the result r(t) is integrated over t. The integral decreases with σ. The smooth ECE is the σ
that is equal to the integral.

The reflected Gaussian is the heat kernel of [0, 1], so smoothing multiplies the k-th cosine coefficient of
the residuals by exp(−(πkσ)²/2). The coefficients are computed once, in time linear in the queries; each σ
then needs two short Fourier transforms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import checked_probabilities

CELLS = 2048
"""Number of grid cells on [0, 1]."""
FINEST = 2.5 / CELLS
"""Narrowest kernel. At 2.5 cells, the grid represents a Gaussian to 4e-14."""
REACH = 20
"""Number of cells to each side on which this kernel is evaluated: 8 σ, where it falls below 1e-13."""


def smooth_ece(probability: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Compute the smooth ECE of calibrated probabilities.

    Args:
        probability: Probability that each query is correct, N values in [0, 1].
        success: Whether each query is correct, N booleans.

    Returns:
        The smooth ECE, in [0, 1]. Below 0.0012, the width of the narrowest kernel, it is the integral for
        this kernel.

    Raises:
        KappaPlaceError: If a probability is not in [0, 1], or the shapes differ.

    >>> round(smooth_ece(np.full(4, 0.5), np.array([True, True, True, False])), 6)
    0.25
    """
    from scipy.optimize import brentq

    values, outcome = checked_probabilities(probability, success)
    coefficients = _cosine_coefficients(values, (outcome - values) / len(values))

    def excess(width: float) -> float:
        return _smoothed_error(coefficients, width) - width

    finest = excess(FINEST)
    if finest <= 0:
        return finest + FINEST
    # No error exceeds 1, so there is a root below any number above 1.
    return min(1.0, float(brentq(excess, FINEST, 1.5, xtol=1e-12)))


def _cosine_coefficients(at: NDArray[np.float64], mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ mass·cos(πk·at) for k = 0 … CELLS, damped by the narrowest kernel.

    The circle of circumference 2 represents [0, 1] and its mirror image; the real part of a transform on it
    is equivalent to reflection. Spreading with the kernel, instead of rounding to the grid, keeps it exact.
    """
    position = at * CELLS
    cell = np.rint(position).astype(np.int64)
    circle = np.zeros(2 * CELLS)
    width = FINEST * CELLS
    for offset in range(-REACH, REACH + 1):
        kernel = np.exp(-0.5 * ((cell + offset - position) / width) ** 2)
        circle += np.bincount((cell + offset) % (2 * CELLS), mass * kernel, minlength=2 * CELLS)
    return np.fft.rfft(circle).real / (width * np.sqrt(2 * np.pi))


def _smoothed_error(coefficients: NDArray[np.float64], width: float) -> float:
    """Return ∫|r(t)|dt for a kernel width.

    Between two sign changes, the integral is a difference of r's antiderivative R. If r changes sign within a
    cell, R at the crossing comes from the cubic through R and r at both ends of the cell.
    """
    k = np.arange(CELLS + 1)
    damped = coefficients * np.exp(-0.5 * (np.pi * k) ** 2 * (width**2 - FINEST**2))
    r = 2 * CELLS * np.fft.irfft(damped)[: CELLS + 1]
    waves = np.zeros(CELLS + 1, dtype=np.complex128)
    waves[1:] = -1j * damped[1:] / (np.pi * k[1:])
    area = damped[0] * k / CELLS + 2 * CELLS * np.fft.irfft(waves)[: CELLS + 1]
    total = float(np.abs(np.diff(area)).sum())
    crossing = np.flatnonzero(r[:-1] * r[1:] < 0)
    left, right = area[crossing], area[crossing + 1]
    slope_left, slope_right = r[crossing] / CELLS, r[crossing + 1] / CELLS
    x = slope_left / (slope_left - slope_right)
    middle = (
        left * (1 + 2 * x) * (1 - x) ** 2
        + slope_left * x * (1 - x) ** 2
        + right * x**2 * (3 - 2 * x)
        + slope_right * x**2 * (x - 1)
    )
    return total + float((np.abs(middle - left) + np.abs(right - middle) - np.abs(right - left)).sum())
