"""Does a score tell right from wrong? Measures that no monotone re-scaling can move."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auroc(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Probability that a right query is less uncertain than a wrong one; ties count half.

    NaN where all are right or all are wrong: there is nothing to tell apart.

    >>> auroc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False]))
    1.0
    """
    right = int(success.sum())
    wrong = len(success) - right
    if right == 0 or wrong == 0:
        return float("nan")
    _, inverse, counts = np.unique(uncertainty, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    rank = (last - (counts - 1) / 2)[inverse]  # mean rank of each group of ties, from 1
    return float((rank[~success].sum() - wrong * (wrong + 1) / 2) / (right * wrong))
