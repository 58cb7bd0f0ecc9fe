"""The two optimisers behind the calibrators: logistic regression without negative slopes, and PAV."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.special import expit

from kappaplace.checks import Bools, Floats, Rows

NEWTON_STEPS = 100
TOLERANCE = 1e-10  # of the gradient, a query


def smoothed_targets(success: Bools) -> Floats:
    """Platt's targets: (N₊ + 1)/(N₊ + 2) for right and 1/(N₋ + 2) for wrong, instead of 1 and 0.

    They are the rule of succession for each class. A score that separates the classes perfectly then still
    gets a finite slope, and no probability beyond what the counts support.
    """
    right = int(success.sum())
    wrong = len(success) - right
    return np.where(success, (right + 1) / (right + 2), 1 / (wrong + 2))


def fit_logistic(columns: Floats, targets: Floats, free: int = 1) -> Floats:
    """Coefficients of σ(columns @ c) that minimise the log-loss; all but the first ``free`` are ≥ 0.

    The loss is convex, so its minimum over non-negative slopes lies inside some face: every choice of slopes
    that are held at 0 is tried (there are at most two slopes), the best feasible one is the answer.
    """
    slopes = columns.shape[1] - free
    best, best_loss = np.zeros(columns.shape[1]), np.inf
    for kept in product((True, False), repeat=slopes):
        used = np.array([True] * free + list(kept))
        coefficients = np.zeros(columns.shape[1])
        if used.any():
            coefficients[used] = _newton(columns[:, used], targets)
        if (coefficients[free:] >= 0).all() and (loss := _loss(columns @ coefficients, targets)) < best_loss:
            best, best_loss = coefficients, loss
    return best


def pool_adjacent_violators(values: Floats, weights: Floats) -> tuple[Floats, Rows]:
    """Weighted isotonic regression, falling: the pooled blocks as (their values, their last positions + 1).

    Each round pools every run of rising values at once, so the rounds are few. In which order neighbours
    are pooled does not matter: the result is the same.

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


def _newton(x: Floats, targets: Floats) -> Floats:
    """Newton's method with halved steps."""
    beta = np.zeros(x.shape[1])
    current = _loss(x @ beta, targets)
    for _ in range(NEWTON_STEPS):
        p = expit(x @ beta)
        gradient = x.T @ (p - targets)
        if np.abs(gradient).max() <= TOLERANCE * len(targets):
            break
        hessian = (x * (p * (1 - p))[:, None]).T @ x
        # A hair on the diagonal: two columns may be all but parallel.
        step = np.linalg.solve(hessian + 1e-12 * len(targets) * np.eye(len(beta)), gradient)
        length, following = 1.0, _loss(x @ (beta - step), targets)
        while following > current and length > 1e-10:
            length /= 2
            following = _loss(x @ (beta - length * step), targets)
        if following >= current:
            break  # rounding: no step lowers the loss any further
        beta, current = beta - length * step, following
    return beta
