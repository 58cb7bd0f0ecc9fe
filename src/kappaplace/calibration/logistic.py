"""Logistic regression, optionally with a penalty or without negative slopes, and isotonic regression."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.special import expit

from kappaplace.checks import Bools, Floats, Rows

NEWTON_STEPS = 100
TOLERANCE = 1e-10
"""Largest gradient per query at which the fit stops."""


def smoothed_targets(success: Bools) -> Floats:
    """Return Platt's targets: (N₊ + 1)/(N₊ + 2) for correct and 1/(N₋ + 2) for incorrect outcomes.

    They follow the rule of succession for each class. So the slope stays finite for a score that separates
    the classes perfectly, and no probability is more extreme than the counts support.
    """
    right = int(success.sum())
    wrong = len(success) - right
    return np.where(success, (right + 1) / (right + 2), 1 / (wrong + 2))


def fit_logistic(columns: Floats, targets: Floats, free: int = 1) -> Floats:
    """Return the coefficients of σ(columns @ c) that minimize the log-loss; all but the first ``free`` are ≥
    0.

    The loss is convex, so at its minimum over non-negative slopes some slopes are 0 and the others are free.
    Every such choice is tried (there are at most two slopes), and the best feasible one is returned.
    """
    slopes = columns.shape[1] - free
    best, best_loss = np.zeros(columns.shape[1]), np.inf
    for choice in product((True, False), repeat=slopes):
        used = np.array([True] * free + list(choice))
        coefficients = np.zeros(columns.shape[1])
        if used.any():
            coefficients[used] = newton(columns[:, used], targets)
        if (coefficients[free:] >= 0).all() and (loss := _loss(columns @ coefficients, targets)) < best_loss:
            best, best_loss = coefficients, loss
    return best


def pool_adjacent_violators(values: Floats, weights: Floats) -> tuple[Floats, Rows]:
    """Return the blocks of a decreasing, weighted isotonic regression: their values and last positions + 1.

    Each round pools every run of increasing values at once, so few rounds are needed. The order in which
    neighbors are pooled does not change the result.

    >>> pool_adjacent_violators(np.array([0.9, 0.2, 0.4, 0.1]), np.ones(4))
    (array([0.9, 0.3, 0.1]), array([1, 3, 4]))
    """
    ends: Rows = np.arange(1, len(values) + 1)
    sums, weight = values * weights, weights
    while True:
        means = sums / weight
        starts_block = np.concatenate([[True], means[1:] < means[:-1]])
        if starts_block.all():
            return means, ends
        starts = np.flatnonzero(starts_block)
        sums, weight = np.add.reduceat(sums, starts), np.add.reduceat(weight, starts)
        ends = ends[np.append(starts[1:], len(ends)) - 1]


def _loss(logits: Floats, targets: Floats) -> float:
    return float(np.logaddexp(0.0, logits).sum() - targets @ logits)


def newton(x: Floats, targets: Floats, ridge: Floats | None = None) -> Floats:
    """Minimize the log-loss plus Σ ridge/2·c² by Newton's method; steps are halved until the loss decreases.

    Args:
        x: Columns, N×F.
        targets: Targets between 0 and 1, N.
        ridge: Penalty per coefficient, F. Default: none.

    Returns:
        Coefficients of σ(x @ c), F.
    """
    beta = np.zeros(x.shape[1])
    penalty = np.zeros(x.shape[1]) if ridge is None else ridge

    def loss(coefficients: Floats) -> float:
        return _loss(x @ coefficients, targets) + float(penalty @ coefficients**2) / 2

    current = loss(beta)
    for _ in range(NEWTON_STEPS):
        p = expit(x @ beta)
        gradient = x.T @ (p - targets) + penalty * beta
        if np.abs(gradient).max() <= TOLERANCE * len(targets):
            break
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        # Slightly larger diagonal: two columns may be nearly parallel, and the curvature may vanish.
        step = np.linalg.solve(hessian + 1e-12 * len(targets) * np.eye(len(beta)), gradient)
        length, following = 1.0, loss(beta - step)
        while following > current and length > 1e-10:
            length /= 2
            following = loss(beta - length * step)
        if following >= current:
            break  # rounding: no step decreases the loss
        beta, current = beta - length * step, following
    return beta
