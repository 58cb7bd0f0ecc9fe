"""Search engines: their interface, and the engine that compares all references."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace._names import renamed
from kappaplace.data.near import Circle, Near, checked_circle
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.codes import check_finite
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.retrieval.exact import check_k, search
from kappaplace.types import Matches

E = TypeVar("E", bound="Engine")


class Engine:
    """Top-k search of one set of references; queries and references have unit length.

    The base class checks the input, so that an engine implements only its own search.
    """

    name = ""
    exact = True
    """Whether the matches are the same as in a full comparison, up to rounding."""
    why = "chosen by the caller"
    """Reason why this engine was chosen, in one sentence."""
    dim: int

    def __len__(self) -> int:
        raise NotImplementedError

    @renamed(near="area")
    def search(self, queries: NDArray[np.float32], k: int, *, area: Circle | None = None) -> Matches:
        """Return the k most similar references of each query.

        Args:
            queries: Unit descriptors N×d.
            k: Number of matches per query; with ``area``, fewer if the circle contains fewer references.
            area: Search only this circle: x, y and radius in metres.

        Returns:
            Rows and cosines, best first, ties by row.

        Raises:
            KappaPlaceError: If the queries have another dimension or are not finite, or if k is too large.
        """
        area = None if area is None else checked_circle(area)
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise KappaPlaceError(
                f"Queries of shape {queries.shape} do not fit references of {self.dim} dimensions. "
                "Both must come from the same model."
            )
        check_finite(queries)
        if area is None or k < 1:
            check_k(k, len(self))
        if len(queries) == 0:
            return Matches(np.empty((0, k), np.int64), np.empty((0, k), np.float32))
        return self._search(queries, k, area)

    def _search(self, queries: NDArray[np.float32], k: int, area: Circle | None) -> Matches:
        raise NotImplementedError

    def close(self) -> None:
        """Release files and connections; do not use the engine afterwards."""

    def __enter__(self: E) -> E:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def best_first(
    rows: NDArray[np.int64], similarities: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the k best of N×C candidates, best first; equal similarities are ordered by row.

    Args:
        rows: Row numbers of the candidates, N×C.
        similarities: Similarities of the candidates, N×C.
        k: Number of candidates to return per query.

    Returns:
        Row numbers and similarities, N×k, best first.
    """
    order = np.lexsort((rows, -similarities), axis=1)[:, :k]
    return np.take_along_axis(rows, order, 1), np.take_along_axis(similarities, order, 1)


def circles(positions: NDArray[np.floating] | None, references: int) -> Near:
    """Return the positions of references, ready to find those inside a circle."""
    if positions is not None and np.shape(positions) != (references, 2):
        raise KappaPlaceError(
            f"Positions of shape {np.shape(positions)} do not fit {references} references. "
            "Pass x and y of each reference, or NaN if unknown."
        )
    return Near(positions=positions)


def no_matches(queries: int) -> Matches:
    """Return an empty list for each query."""
    return Matches(np.empty((queries, 0), np.int64), np.empty((queries, 0), np.float32))


class ExactEngine(Engine):
    """Engine that compares all references in blocks, on CPU or GPU; only one block is in memory."""

    name = "exact"
    exact = True

    def __init__(
        self,
        descriptors: Descriptors | Columns,
        positions: NDArray[np.floating] | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        self.columns, self.device = as_columns(descriptors), device
        if len(self.columns) == 0:
            raise KappaPlaceError(
                "There are no references to search, because the map is empty. Add images first."
            )
        self.nearby, self.dim = circles(positions, len(self.columns)), self.columns.shape[1]

    def __len__(self) -> int:
        return len(self.columns)

    def _search(self, queries: NDArray[np.float32], k: int, area: Circle | None) -> Matches:
        if area is None:
            return search(*self.columns.beside(queries), k, device=self.device)
        rows = self.nearby.within(area)
        if len(rows) == 0:
            return no_matches(len(queries))
        inside = self.columns.only(rows).beside(queries)
        best = search(*inside, min(k, len(rows)), device=self.device)
        return Matches(rows[best.indices], best.similarities)  # ascending rows: ties stay in order
