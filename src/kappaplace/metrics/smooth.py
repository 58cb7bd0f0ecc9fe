"""Smooth ECE (Błasiok and Nakkiran, "Smooth ECE", 2023): calibration of probabilities without bins.

The residuals y − p are smoothed over p with a Gaussian of width σ that is reflected at 0 and 1, and the
absolute value of the result r(t) is integrated over t. That value falls as σ grows; the smooth ECE is the σ
that equals it.

The reflected Gaussian is the heat kernel of [0, 1], so smoothing multiplies the k-th cosine coefficient of
the residuals by exp(−(πkσ)²/2). The coefficients are found once, in time linear in the queries, and each σ
then costs two short Fourier transforms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import checked_probabilities

CELLS = 2048
"""Cells of the grid on [0, 1]."""
FINEST = 2.5 / CELLS
"""Narrowest kernel. At 2.5 cells a Gaussian holds nothing (4e-14) that the grid cannot represent."""
REACH = 20
"""Cells to each side on which that kernel is evaluated: 8 σ, beyond which it is below 1e-13."""


def smooth_ece(probability: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """The smooth ECE of calibrated probabilities, in [0, 1].

    Below 0.0012, the width of the finest kernel, the value with that kernel is given.

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
    """Σ mass·cos(πk·at) for k = 0 … CELLS, each damped as the finest kernel does.

    The circle of circumference 2 stands for [0, 1] and its mirror image; the real part of a transform on it
    is the same as reflecting. Spreading by the kernel itself, not by rounding to the grid, is what keeps this
    exact.
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
    """∫|r(t)|dt for the kernel of this width.

    Between two sign changes the integral is a difference of r's antiderivative R, so only the signs need
    care: where r changes sign within a cell, R at the crossing comes from the cubic through R and r at both
    ends.
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
