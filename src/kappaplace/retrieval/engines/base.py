"""What every search engine offers, and the checks that all of them share."""

from __future__ import annotations

import math
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.types import Matches

Circle: TypeAlias = tuple[float, float, float]
_FARTHEST = 1e150  # a radius that can still be squared; all there is lies within it
"""x, y and radius: only references within the radius of this point are searched."""


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


def within(x: NDArray[np.float64], y: NDArray[np.float64], circle: Circle) -> NDArray[np.bool_]:
    """Which positions lie in the circle, rim included; NaN is nowhere. The one formula of all engines."""
    centre_x, centre_y, radius = circle
    with np.errstate(invalid="ignore", over="ignore"):  # what is too far to be squared is outside
        return np.asarray((x - centre_x) ** 2 + (y - centre_y) ** 2 <= radius**2)


def best_first(
    rows: NDArray[np.int64], similarities: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k best of N×C candidates in order, equal similarities by row."""
    order = np.lexsort((rows, -similarities), axis=1)[:, :k]
    return np.take_along_axis(rows, order, 1), np.take_along_axis(similarities, order, 1)
