"""The exact engine: every reference is compared, in blocks, on CPU or GPU. Nothing to build or to keep."""

from __future__ import annotations

from collections.abc import Callable
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

FEW = 4  # queries whose products are looked up instead of computed from decoded codes, which serves many
CODES_BLOCK = 1 << 13  # codes decoded together: 16 MB of 512 numbers, memory that is used again and again


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
        self._codes = self.rows.in_code_space()
        self.device = device

    def __len__(self) -> int:
        return len(self.rows)

    def _search(self, queries: NDArray[np.float32], k: int, near: Circle | None) -> Matches:
        rows = self.rows
        if self._codes is not None:  # the few queries are turned instead of all references
            queries, rows = self._codes[0].turn(queries), self._codes[1]
        if near is None:
            return self._compare(queries, rows, k)
        chosen = self.nearby.rows(near)
        if len(chosen) == 0:
            return Matches(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32))
        found = self._compare(queries, Subset(rows, chosen), min(k, len(chosen)))
        return Matches(chosen[found.indices], found.similarities)  # ascending rows: ties stay in order

    def _compare(self, queries: NDArray[np.float32], rows: Rows | Subset, k: int) -> Matches:
        if self._codes is not None:
            products = rows.products if isinstance(rows, Rows) else None
            return search_codes(queries, rows, k, self.device, products)
        # `exact.search` reads its references by slices only, which is all that Rows and Subset offer.
        return exact.search(queries, cast(Any, rows), k, device=self.device)


def search_codes(
    queries: NDArray[np.float32],
    codes: Any,
    k: int,
    device: str | torch.device,
    products: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None,
) -> Matches:
    """The best of codes, read by slices in their space; where there are `products` to look up, a few queries
    on the CPU ask for those instead."""
    if products is not None and len(queries) <= FEW and torch.device(device).type == "cpu":
        return exact.search_matrix(products(queries), k)
    return exact.search(queries, codes, k, device=device, block=CODES_BLOCK)
