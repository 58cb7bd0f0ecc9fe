"""What every search engine offers: the checks and circles that all of them share, and the exact engine."""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.data.near import Circle, Near
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval import exact
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.types import Matches

_FARTHEST = 1e150  # a radius that can still be squared; all there is lies within it


@runtime_checkable
class Engine(Protocol):
    """Top-k search over one set of references; queries and references have unit length."""

    name: str
    exact: bool
    """Whether the answer is the one a full comparison would give, up to rounding."""
    why: str
    """One sentence: why this engine was taken."""

    def __len__(self) -> int: ...

    def search(self, queries: NDArray[np.float32], k: int, *, near: Circle | None = None) -> Matches:
        """The k most similar references of each query: rows and cosines, best first, ties by row.

        With ``near`` there are fewer than k columns, perhaps none, where the circle holds fewer references.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...


class BaseEngine:
    """Checks the input once, so that an engine writes only its own search."""

    name = ""
    exact = True
    why = "asked for"
    dim: int

    def __len__(self) -> int:
        raise NotImplementedError

    def search(self, queries: NDArray[np.float32], k: int, *, near: Circle | None = None) -> Matches:
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise KappaPlaceError(
                f"Queries of shape {queries.shape} do not fit references of {self.dim} dimensions; "
                "both must come from the same model."
            )
        if not np.isfinite(queries).all():
            raise KappaPlaceError("Some descriptors are NaN or infinite; check the model and the images.")
        if k < 1 or (near is None and k > len(self)):
            raise KappaPlaceError(
                f"Cannot retrieve {k} matches: there are {len(self)} references; choose k from 1 to that."
            )
        if near is not None:
            near = checked_circle(near)
        if len(queries) == 0:
            return Matches(np.empty((0, k), np.int64), np.empty((0, k), np.float32))
        return self._search(queries, k, near)

    def _search(self, queries: NDArray[np.float32], k: int, near: Circle | None) -> Matches:
        raise NotImplementedError

    def close(self) -> None:
        """Free what is held; the engine must not be used afterwards."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checked_circle(near: Circle) -> Circle:
    try:
        x, y, radius = map(float, near)
    except (TypeError, ValueError):
        raise KappaPlaceError(f"A place to search near is x, y and a radius, got {near!r}.") from None
    if not all(map(math.isfinite, (x, y, radius))) or radius < 0:
        raise KappaPlaceError(
            f"A place to search near needs a finite x and y and a radius of at least 0, got {near}."
        )
    return x, y, min(radius, _FARTHEST)


def best_first(
    rows: NDArray[np.int64], similarities: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k best of N×C candidates in order, equal similarities by row."""
    order = np.lexsort((rows, -similarities), axis=1)[:, :k]
    return np.take_along_axis(rows, order, 1), np.take_along_axis(similarities, order, 1)


def circles(positions: NDArray[np.floating] | None, references: int) -> Near:
    """Positions of so many references, ready to be asked for those within a circle."""
    if positions is not None and np.shape(positions) != (references, 2):
        raise KappaPlaceError(
            f"Positions of shape {np.shape(positions)} do not fit {references} references; "
            "give x and y of each, NaN where unknown."
        )
    return Near(positions=positions)


def no_matches(queries: int) -> Matches:
    """The answer where there is nothing to search."""
    return Matches(np.empty((queries, 0), np.int64), np.empty((queries, 0), np.float32))


class ExactEngine(BaseEngine):
    """Compares every reference, in blocks, on CPU or GPU; memory is that of one block."""

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
            raise KappaPlaceError("There are no references to search: the map is empty.")
        self.nearby, self.dim = circles(positions, len(self.columns)), self.columns.shape[1]

    def __len__(self) -> int:
        return len(self.columns)

    def _search(self, queries: NDArray[np.float32], k: int, near: Circle | None) -> Matches:
        if near is None:
            return exact.search(*self.columns.beside(queries), k, device=self.device)
        chosen = self.nearby.within(near)
        if len(chosen) == 0:
            return no_matches(len(queries))
        inside = self.columns.only(chosen).beside(queries)
        found = exact.search(*inside, min(k, len(chosen)), device=self.device)
        return Matches(chosen[found.indices], found.similarities)  # ascending rows: ties stay in order
