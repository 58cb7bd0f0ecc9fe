"""Queries that are near-copies of references: recall on them is no measure of recall on new queries.

A query is a twin if it is nearly the same image as its best match, or if it was taken within a minute of a
reference. Both happen if a drive is uploaded more than once. The queries of a benchmark are defined by its
protocol, so none of them is excluded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.appearance import copies, taken_together
from kappaplace.data.protocols import PROTOCOLS
from kappaplace.evaluation.inputs import Retrieved
from kappaplace.types import Json

MOST_NAMED = 5
"""Maximum number of copies with another label that are reported."""
NONE = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Twins:
    """Queries of a dataset that are near-copies of references."""

    rows: NDArray[np.int64] = field(default_factory=lambda: NONE)
    """Numbers of the twins in the dataset, ascending."""
    misplaced: tuple[str, ...] = ()
    """Images of the twins whose best match is the same image, although it is not a positive."""

    def __str__(self) -> str:
        count = len(self.rows)
        return f"; {count:,} near-copies of references excluded" if count else ""

    @property
    def facts(self) -> dict[str, Json]:
        """Facts to store with a result; empty without twins."""
        facts: dict[str, Json] = {"twins": len(self.rows)} if len(self.rows) else {}
        return facts | ({"misplaced": list(self.misplaced[:MOST_NAMED])} if self.misplaced else {})


def find_twins(retrieved: Retrieved, rows: NDArray[np.int64]) -> Twins:
    """Find the twins among some queries of a dataset.

    Args:
        retrieved: The dataset after retrieval.
        rows: Numbers of the queries to check, ascending.

    Returns:
        The twins; empty without a table and for benchmarks.
    """
    table = retrieved.table
    if table is None or table.protocol in PROTOCOLS:
        return Twins()
    top = retrieved.evidence.top[rows]
    images = table.image_paths(table.query_rows[rows])
    same = copies(images, table.image_paths(table.reference_rows[top]))
    correct = retrieved.positives.hits(retrieved.evidence.matches.indices[:, :1])[rows, 0]
    together = taken_together(table.timestamp[table.query_rows[rows]], table.timestamp[table.reference_rows])
    misplaced = [image for image, wrong in zip(images, same & ~correct, strict=True) if wrong]
    return Twins(rows[same | together], tuple(misplaced))
