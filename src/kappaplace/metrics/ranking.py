"""Does a score tell right from wrong? Measures that no monotone re-scaling can move."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics.acceptance import acceptance_curve
from kappaplace.metrics.checks import checked_scores


def auroc(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Probability that a right query is less uncertain than a wrong one; ties count half.

    NaN where all are right or all are wrong: there is nothing to tell apart.

    >>> auroc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False]))
    1.0
    """
    return acceptance_curve(uncertainty, success).auroc


def auc_pr(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Area under precision and recall of success (average precision): Σ (recall gained × precision after it).

    A tied group is one step: all its queries take the precision reached once all of them are accepted. A
    constant score therefore gives exactly ``random_auc_pr``. NaN where no query is right.

    >>> round(auc_pr(np.array([0.1, 0.2, 0.3]), np.array([True, False, True])), 4)
    0.8333
    """
    return acceptance_curve(uncertainty, success).auc_pr


def random_auc_pr(success: NDArray[np.bool_]) -> float:
    """What AUC-PR is worth without any knowledge: the share of right queries, i.e. R@K itself.

    >>> random_auc_pr(np.array([True, False, True, True]))
    0.75
    """
    _, outcome = checked_scores(np.zeros(np.shape(success)), success)
    return float(outcome.mean())


def recall_at_full_precision(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """R@100%P: the share of the right queries that is accepted before the first wrong one.

    A tied group that holds a wrong query is not accepted at all. NaN where no query is right.

    >>> recall_at_full_precision(np.array([0.1, 0.2, 0.3]), np.array([True, False, True]))
    0.5
    """
    return acceptance_curve(uncertainty, success).recall_at_full_precision
