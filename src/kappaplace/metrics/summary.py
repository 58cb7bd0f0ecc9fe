"""Compute all metrics of a score or a probability, also over several datasets.

A score is sorted once for all its metrics, so that a bootstrap is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.metrics.bootstrap import Arrays
from kappaplace.metrics.calibration import expected_calibration_error
from kappaplace.metrics.probability import (
    BINS,
    brier_parts,
    debiased_ece,
    equal_mass_ece,
    log_loss,
    smooth_ece,
)
from kappaplace.metrics.retrieval import KS, success_at
from kappaplace.metrics.selective import RISKS, acceptance_curve

CONSTANT, PERFECT = "constant score", "perfect ranking"
ECE_NOTE = (
    "The order of methods by ECE@K depends on R@K, so compare ECE@K only between methods of similar recall. "
    "A constant score gets R@K, and a perfect ranking with evenly spread values gets 0.17 to 0.5."
)
"""Note that is printed with every table of ECE@K."""
TIED = 0.5
"""A score is flawed if at least this fraction of the queries has the same value."""
_SAME = 1e-6  # of the median magnitude: values this close differ by rounding


def score_summary(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> dict[str, float]:
    """Compute all metrics that do not change under a monotone rescaling of the uncertainty.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.

    Returns:
        The metrics by name.

    Raises:
        KappaPlaceError: If a score is not finite, or the shapes differ.

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
    """Compute all metrics of calibrated probabilities.

    Args:
        probability: Probability that each query is correct, N values in [0, 1].
        success: Whether each query is correct, N booleans.
        bins: Number of bins.

    Returns:
        The metrics by name.

    Raises:
        KappaPlaceError: If a probability is not in [0, 1], or the shapes differ.

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
    """The queries of several datasets, one dataset after the other."""

    arrays: tuple[NDArray[Any], ...]
    """Joined arrays, with one row per query."""
    strata: NDArray[np.int64]
    """Number of the dataset of each query, for ``Resampling.of``."""


def pool(sets: Sequence[Arrays]) -> Pooled:
    """Join the arrays of several datasets.

    Args:
        sets: Arrays of each dataset, with one row per query, in the same order for every dataset.

    Returns:
        The joined arrays.

    Raises:
        KappaPlaceError: If there is no dataset, or the lengths differ.

    >>> pooled = pool([(np.array([0.1, 0.2]), np.array([True, False])), (np.array([0.3]), np.array([True]))])
    >>> pooled.arrays[0], pooled.strata
    (array([0.1, 0.2, 0.3]), array([0, 0, 1]))
    """
    if not sets:
        raise KappaPlaceError("sets must contain at least one dataset, got none.")
    for number, arrays in enumerate(sets):
        if len(arrays) != len(sets[0]) or len({len(array) for array in arrays}) != 1:
            raise KappaPlaceError(f"Dataset {number} must have {len(sets[0])} arrays of the same length.")
    joined = tuple(np.concatenate(column) for column in zip(*sets, strict=True))
    strata = np.repeat(np.arange(len(sets)), [len(arrays[0]) for arrays in sets])
    return Pooled(joined, strata)


def pooled(metric: Callable[..., float], sets: Sequence[Arrays]) -> float:
    """Compute a metric over the queries of all datasets, in which a large dataset has more weight.

    Args:
        metric: Function that gets the joined arrays as arguments and returns the metric.
        sets: Arrays of each dataset, see `pool`.

    Returns:
        The metric.

    >>> pooled(lambda success: success.mean(), [(np.array([True, True, True]),), (np.array([False]),)])
    0.75
    """
    return float(metric(*pool(sets).arrays))


def tied_fraction(uncertainty: NDArray[np.floating]) -> float:
    """Compute the largest fraction of queries that have the same value, up to rounding.

    Args:
        uncertainty: Uncertainty of each query, N.

    Returns:
        A fraction: 1 for a constant score, 0 for no query.

    >>> tied_fraction(np.array([1.0, 1.0, 1.0, 2.0]))
    0.75
    """
    ordered = np.sort(np.asarray(uncertainty, np.float64))
    if not len(ordered):
        return 0.0
    width = _SAME * float(np.median(np.abs(ordered)))
    ends = np.searchsorted(ordered, ordered + width, side="right")
    return float((ends - np.arange(len(ordered))).max() / len(ordered))


def score_flaw(uncertainty: NDArray[np.floating]) -> str:
    """Return why a score cannot rank queries; an empty text if it can.

    ECE@K does not detect this: a constant score gets R@K, which can be lower than the ECE of a good score.

    Args:
        uncertainty: Uncertainty of each query, N.

    Returns:
        "constant"; a text such as "63% tied" if this many queries have the same value; or "".

    >>> score_flaw(np.array([0.1, 0.2, 0.3])), score_flaw(np.ones(3)), score_flaw(np.array([1, 1, 1, 2.0]))
    ('', 'constant', '75% tied')
    """
    tied = tied_fraction(uncertainty) if len(uncertainty) > 1 else 0.0
    return "" if tied < TIED else "constant" if tied == 1 else f"{tied:.0%} tied"


def mean_cosine(descriptors: NDArray[np.floating]) -> float:
    """Compute the mean cosine over all pairs of different images.

    Args:
        descriptors: Unit descriptors, N×d.

    Returns:
        The mean. 0 if there are fewer than two images.

    >>> mean_cosine(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])).__round__(3)
    0.333
    """
    count = len(descriptors)
    if count < 2:
        return 0.0
    total = np.asarray(descriptors).sum(axis=0, dtype=np.float64)
    return float((total @ total - count) / (count * (count - 1)))


def reference_metrics(hits: NDArray[np.bool_]) -> dict[str, dict[str, float]]:
    """Compute the metrics that a constant score and a perfect ranking would get on the same retrieval.

    The perfect ranking sorts the queries by the rank of their first positive, and spreads them evenly.

    Args:
        hits: Whether each match is a positive, N×K booleans, best match first.

    Returns:
        ECE@K and the metrics of `score_summary`, for "constant score" and "perfect ranking".

    >>> rows = reference_metrics(np.array([[True], [False]]))
    >>> rows["constant score"]["ECE@1"], rows["perfect ranking"]["AUROC"]
    (0.5, 1.0)
    """
    first = np.where(hits.any(axis=1), hits.argmax(axis=1), hits.shape[1])
    order = np.empty(len(hits))
    order[np.argsort(first, kind="stable")] = np.arange(len(hits))
    success = {k: success_at(hits, k) for k in KS if k <= hits.shape[1]}
    return {
        name: {
            **{f"ECE@{k}": expected_calibration_error(values, each) for k, each in success.items()},
            **score_summary(values, success[1]),
        }
        for name, values in ((CONSTANT, np.zeros(len(hits))), (PERFECT, order))
    }
