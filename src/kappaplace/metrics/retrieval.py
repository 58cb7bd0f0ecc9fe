"""How often retrieval is right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError


def success_at(hits: NDArray[np.bool_], k: int) -> NDArray[np.bool_]:
    """Whether at least one of the first k matches of each query is a positive; ``hits`` is N×K."""
    if not 1 <= k <= hits.shape[1]:
        raise KappaPlaceError(f"R@{k} needs the {k} best matches, {hits.shape[1]} are given.")
    return np.any(hits[:, :k], axis=1)


def recall_at(hits: NDArray[np.bool_], k: int) -> float:
    """R@K: the share of queries with a positive among their K best matches.

    >>> recall_at(np.array([[True, False], [False, True]]), 1)
    0.5
    """
    return float(success_at(hits, k).mean())
