"""Metrics of retrieval: recall and average precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import checked_hits
from kappaplace.errors import KappaPlaceError

KS = (1, 5, 10)
"""Numbers of matches K for which retrieval and calibration are measured."""


def success_at(hits: NDArray[np.bool_], k: int) -> NDArray[np.bool_]:
    """Check whether a positive is among the k best matches of each query.

    Args:
        hits: Whether each match is a positive, N×K booleans, best match first.
        k: Number of matches.

    Returns:
        N booleans.

    Raises:
        KappaPlaceError: If k is out of range, or hits are not booleans.
    """
    return np.any(checked_hits(hits, k, f"R@{k}"), axis=1)


def recall_at(hits: NDArray[np.bool_], k: int) -> float:
    """Compute R@K: the fraction of queries with a positive among their K best matches.

    Args:
        hits: Whether each match is a positive, N×K booleans, best match first.
        k: Number of matches.

    Returns:
        The recall, in [0, 1].

    >>> recall_at(np.array([[True, False], [False, True]]), 1)
    0.5
    """
    return float(success_at(hits, k).mean())


def average_precision_at(
    hits: NDArray[np.bool_], positives: NDArray[np.integer], k: int
) -> NDArray[np.float64]:
    """Compute AP@K of each query: summed precision at its hits, divided by min(K, positives).

    A query without a positive counts as a failure (0), as in R@K. Remove its row to exclude it.

    Args:
        hits: Whether each match is a positive, N×K booleans, best match first.
        positives: Number of positives of each query among all references, N integers.
        k: Number of matches.

    Returns:
        The average precision of each query, N values in [0, 1].

    Raises:
        KappaPlaceError: If k is out of range, or a query has more hits than positives.
    """
    top = checked_hits(hits, k, f"mAP@{k}")
    count = np.asarray(positives)
    hit_count = top.sum(axis=1)
    if count.shape != hit_count.shape or count.dtype.kind not in "iu":
        raise KappaPlaceError(
            f"positives must be an integer for each of {len(top)} queries, "
            f"got {count.dtype} of shape {count.shape}."
        )
    if (hit_count > count).any():
        query = int(np.argmax(hit_count > count))
        raise KappaPlaceError(
            f"positives must be at least the number of hits, got {count[query]} for "
            f"query {query} with {hit_count[query]}."
        )
    hits_so_far = np.cumsum(top, axis=1, dtype=np.int32)  # half the memory, half the time
    precision = (hits_so_far * top) @ (1 / np.arange(1, k + 1))  # summed over the hits
    return precision / np.maximum(np.minimum(count, k), 1)


def mean_average_precision_at(hits: NDArray[np.bool_], positives: NDArray[np.integer], k: int) -> float:
    """Compute mAP@K: the mean of `average_precision_at` over the queries.

    Args:
        hits: Whether each match is a positive, N×K booleans, best match first.
        positives: Number of positives of each query among all references, N integers.
        k: Number of matches.

    Returns:
        The mean average precision, in [0, 1].

    >>> mean_average_precision_at(np.array([[True, False], [False, True]]), np.array([1, 2]), 2)
    0.625
    """
    return float(average_precision_at(hits, positives, k).mean())
