"""Every metric of a score, or of a probability, at once, and several sets evaluated as one.

A score is sorted once for all its metrics, so that a bootstrap stays fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.metrics.probability import BINS, brier_parts, debiased_ece, equal_mass_ece, log_loss
from kappaplace.metrics.selective import RISKS, acceptance_curve
from kappaplace.metrics.smooth import smooth_ece


def score_summary(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> dict[str, float]:
    """All metrics that no monotone re-scaling of the uncertainty can move.

    >>> score_summary(np.array([0.1, 0.2]), np.array([True, False]))["AUROC"]
    1.0
    """
    curve = acceptance_curve(uncertainty, success)
    return {
        "AUROC": curve.auroc,
        "AUC-PR": curve.auc_pr,
        "AUC-PR random": curve.successes / curve.queries,
        "R@100%P": curve.recall_at_full_precision,
        "AURC": curve.aurc,
        "E-AURC": curve.e_aurc,
        "AUGRC": curve.augrc,
        **{f"coverage@{risk:.0%}": curve.coverage_at(risk) for risk in RISKS},
    }


def probability_summary(
    probability: NDArray[np.floating], success: NDArray[np.bool_], bins: int = BINS
) -> dict[str, float]:
    """All metrics of calibrated probabilities.

    >>> probability_summary(np.array([0.5, 0.5]), np.array([True, False]))["Brier"]
    0.25
    """
    parts = brier_parts(probability, success, bins)
    return {
        "smooth ECE": smooth_ece(probability, success),
        "equal-mass ECE": equal_mass_ece(probability, success, bins),
        "debiased ECE": debiased_ece(probability, success, bins),
        "Brier": parts.score,
        "Brier reliability": parts.reliability,
        "Brier resolution": parts.resolution,
        "Brier uncertainty": parts.uncertainty,
        "Brier within": parts.within,
        "log-loss": log_loss(probability, success),
    }


class Pooled(NamedTuple):
    """The queries of all sets, one set after the other."""

    arrays: tuple[NDArray[Any], ...]
    strata: NDArray[np.int64]
    """Number of the set that each query came from, for ``Resampling.of``."""


def pool(sets: Sequence[Sequence[NDArray[Any]]]) -> Pooled:
    """Join the arrays of each set; every set gives the same kinds of arrays, with one row a query.

    >>> pooled = pool([(np.array([0.1, 0.2]), np.array([True, False])), (np.array([0.3]), np.array([True]))])
    >>> pooled.arrays[0], pooled.strata
    (array([0.1, 0.2, 0.3]), array([0, 0, 1]))
    """
    if not sets:
        raise KappaPlaceError("Pooling needs at least one set.")
    for number, arrays in enumerate(sets):
        if len(arrays) != len(sets[0]) or len({len(array) for array in arrays}) != 1:
            raise KappaPlaceError(f"Set {number} of the pool needs {len(sets[0])} arrays of one length.")
    joined = tuple(np.concatenate(column) for column in zip(*sets, strict=True))
    strata = np.repeat(np.arange(len(sets)), [len(arrays[0]) for arrays in sets])
    return Pooled(joined, strata)


def pooled(metric: Callable[..., float], sets: Sequence[Sequence[NDArray[Any]]]) -> float:
    """A metric over the queries of all sets: not a mean over sets, so a large set weighs more.

    >>> pooled(lambda success: success.mean(), [(np.array([True, True, True]),), (np.array([False]),)])
    0.75
    """
    return float(metric(*pool(sets).arrays))
