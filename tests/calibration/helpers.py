"""Worlds with a known truth."""

from __future__ import annotations

import numpy as np


def informative(seed: int, n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Uncertainty in (0, 1), and P(right) = 1 − u²."""
    rng = np.random.default_rng(seed)
    u = rng.random(n)
    return u, rng.random(n) >= u**2


def with_outside(seed: int, n: int, rate: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Uncertainty, right and outside: normal scores, in-map queries are wrong at times, outside always."""
    rng = np.random.default_rng(seed)
    outside = rng.random(n) < rate
    u = rng.normal(np.where(outside, 1.5, 0.0), 1.0)
    right = ~outside & (rng.random(n) < 1 / (1 + np.exp(1.5 * u - 2.0)))
    return u, right, outside
