"""How often retrieval is right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import checked_hits
from kappaplace.errors import KappaPlaceError

KS = (1, 5, 10)
"""Depths K at which retrieval and calibration are measured."""


def success_at(hits: NDArray[np.bool_], k: int) -> NDArray[np.bool_]:
    """Whether at least one of the first k matches of each query is a positive; ``hits`` is N×K."""
    return np.any(checked_hits(hits, k, f"R@{k}"), axis=1)


def recall_at(hits: NDArray[np.bool_], k: int) -> float:
    """R@K: the share of queries with a positive among their K best matches.

    >>> recall_at(np.array([[True, False], [False, True]]), 1)
    0.5
    """
    return float(success_at(hits, k).mean())


def average_precision_at(
    hits: NDArray[np.bool_], positives: NDArray[np.integer], k: int
) -> NDArray[np.float64]:
    """AP@K of each query: summed precision at its hits, over the min(K, positives) that could be found.

    ``positives`` counts the references of the whole map that are right for each query. A query without any
    counts as a failure (0), as in R@K; drop its row to leave it out.
    """
    top = checked_hits(hits, k, f"mAP@{k}")
    count = np.asarray(positives)
    found = top.sum(axis=1)
    if count.shape != found.shape or count.dtype.kind not in "iu":
        raise KappaPlaceError(
            f"mAP@{k} needs the number of positives of each of {len(top)} queries, "
            f"got the shape {count.shape} of {count.dtype}."
        )
    if (found > count).any():
        query = int(np.argmax(found > count))
        raise KappaPlaceError(
            f"Query {query} has {found[query]} hits in its top {k} but only {count[query]} positives."
        )
    found_so_far = np.cumsum(top, axis=1, dtype=np.int32)  # half the memory, half the time
    precision = (found_so_far * top) @ (1 / np.arange(1, k + 1))  # summed over the hits
    return precision / np.maximum(np.minimum(count, k), 1)


def mean_average_precision_at(hits: NDArray[np.bool_], positives: NDArray[np.integer], k: int) -> float:
    """mAP@K: the mean of ``average_precision_at`` over the queries.

    >>> mean_average_precision_at(np.array([[True, False], [False, True]]), np.array([1, 2]), 2)
    0.625
    """
    return float(average_precision_at(hits, positives, k).mean())
