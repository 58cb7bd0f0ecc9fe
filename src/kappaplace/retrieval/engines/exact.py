"""The exact engine: every reference is compared, in blocks, on CPU or GPU. Nothing to build or to keep."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval import exact
from kappaplace.retrieval.engines.base import BaseEngine, Circle
from kappaplace.retrieval.engines.nearby import Nearby
from kappaplace.retrieval.engines.rows import Descriptors, Rows, Subset
from kappaplace.types import Matches


class ExactEngine(BaseEngine):
    """Searches descriptors where they lie; memory is that of one block, whatever the number of references."""

    name = "exact"
    exact = True

    def __init__(
        self,
        descriptors: Descriptors | Rows,
        positions: NDArray[np.floating] | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        self.rows = descriptors if isinstance(descriptors, Rows) else Rows(descriptors)
        if len(self.rows) == 0:
            raise KappaPlaceError("There are no references to search: the map is empty.")
        self.nearby = Nearby(positions, len(self.rows))
        self.dim = self.rows.shape[1]
        self.device = device

    def __len__(self) -> int:
        return len(self.rows)

    def _search(self, queries: NDArray[np.float32], k: int, near: Circle | None) -> Matches:
        if near is None:
            return self._compare(queries, self.rows, k)
        chosen = self.nearby.rows(near)
        if len(chosen) == 0:
            return Matches(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32))
        found = self._compare(queries, Subset(self.rows, chosen), min(k, len(chosen)))
        return Matches(chosen[found.indices], found.similarities)  # ascending rows: ties stay in order

    def _compare(self, queries: NDArray[np.float32], rows: Rows | Subset, k: int) -> Matches:
        # `exact.search` reads its references by slices only, which is all that Rows and Subset offer.
        return exact.search(queries, cast(Any, rows), k, device=self.device)
