"""Asking an engine for more until the k best are certain.

An engine that filters after its own top list, or orders equal similarities as it likes, must be asked for
more than k; how many more is only known from the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.engines.base import best_first
from kappaplace.types import Matches

EQUAL = 1e-6  # similarities closer than float32 rounding may stand in any order in an engine's list


class Hits(NamedTuple):
    """What an engine says of one query: its list, and which entries pass the filter."""

    rows: NDArray[np.int64]
    similarities: NDArray[np.float32]
    kept: NDArray[np.bool_]


def deepen(
    ask: Callable[[NDArray[np.float32], int], list[Hits]],
    queries: NDArray[np.float32],
    k: int,
    *,
    most: int,
    where: str,
) -> Matches:
    """The k best hits of each query, ties by row; ``ask(queries, limit)`` returns ``limit`` hits or all."""
    found: list[Hits | None] = [None] * len(queries)
    open_ = np.arange(len(queries))
    limit = min(2 * k + 16, most)
    while len(open_):
        still = []
        for row, hits in zip(open_, ask(queries[open_], limit), strict=True):
            found[row] = hits
            if len(hits.rows) == limit and not _certain(hits, k):
                still.append(row)
        if still and limit == most:
            raise KappaPlaceError(
                f"{where} lists at most {most} references a query, and the {k} best cannot be told among "
                "them: ask for fewer matches or a smaller radius."
            )
        open_, limit = np.array(still, np.int64), min(4 * limit, most)
    return _together([hits for hits in found if hits is not None], k)


def _certain(hits: Hits, k: int) -> bool:
    """Whether k hits stand clear of the end of the list, where equal ones may have been cut off."""
    passed = hits.similarities[hits.kept]
    return len(passed) >= k and bool(passed[k - 1] > hits.similarities[-1] + EQUAL)


def _together(found: list[Hits], k: int) -> Matches:
    columns = min(k, min(int(hits.kept.sum()) for hits in found))  # the same for all where exact
    indices = np.empty((len(found), columns), np.int64)
    similarities = np.empty((len(found), columns), np.float32)
    for row, hits in enumerate(found):
        rows, values = best_first(hits.rows[hits.kept][None], hits.similarities[hits.kept][None], columns)
        indices[row], similarities[row] = rows[0], values[0]
    return Matches(indices, similarities)
