"""Exact search in blocks: the k best references, and the best one beyond a place.

Nothing here holds more than one block of similarities, so millions of references fit in little memory, on CPU
or GPU, without an index to build.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.data.near import Circle, Near, checked_circle
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.types import Matches

REFERENCE_BLOCK = 1 << 16
QUERY_BLOCK = 1 << 10  # 65,536 × 1,024 similarities are 268 MB: what one step may hold
FEW = 4  # queries whose products are looked up instead of computed from decoded codes, which serves many
CODES_BLOCK = 1 << 13  # codes decoded together: 16 MB of 512 numbers, memory that is used again and again

IsNear: TypeAlias = Callable[[Any, Any], NDArray[np.bool_]]
"""Whether references ``a`` and ``b`` (rows, broadcast) show one place; `PlaceImages.is_near` is one."""
Similarities: TypeAlias = Callable[[Any, Any], Tensor]
"""Similarities of some rows (queries) and columns (references) as float32, each an index array or a slice."""

_NOT_FINITE = "Some descriptors are NaN or infinite. Check the model and the images."
ROWS = 256
COLUMNS = 1 << 14  # 4 M pairs a step: 17 MB of similarities, and a few times that to ask what is near


@torch.inference_mode()
def search(
    queries: NDArray[np.floating],
    references: NDArray[np.floating] | Columns,
    k: int = 10,
    *,
    device: str | torch.device = "cpu",
    block: int | None = None,
) -> Matches:
    """The k most similar references of each query by cosine (both sides at unit length), best first.

    Equal similarities are ordered by the reference's row, so the result does not depend on ``block``. Codes
    in their own space (`Columns.beside`) are looked up for a few queries on the CPU, and decoded for many.

    >>> matches = search(np.array([[0.6, 0.8]]), np.eye(2), k=2)
    >>> matches.indices.tolist(), [f"{cosine:.1f}" for cosine in matches.similarities[0]]
    ([[1, 0]], ['0.8', '0.6'])
    """
    check_k(k, len(references))
    codes = isinstance(references, Columns) and references.turned
    block = (CODES_BLOCK if codes else REFERENCE_BLOCK) if block is None else block
    if block < 1:
        raise KappaPlaceError(f"References are compared in blocks of at least 1, not {block}.")
    try:
        device = torch.device(device)
    except RuntimeError:
        raise KappaPlaceError(f"There is no kind of device {device!r}; use cpu or cuda.") from None
    if queries.ndim != 2 or references.ndim != 2 or queries.shape[1] != references.shape[1]:
        raise KappaPlaceError(
            f"Queries of shape {queries.shape} and references of shape {references.shape} do not fit; "
            "both must be N×d with the same d, from the same model."
        )
    few = len(queries) <= FEW and device.type == "cpu"
    if isinstance(references, Columns) and codes and references.whole and few:
        return search_matrix(references.products(queries.astype(np.float32, copy=False)), k)

    def best(rows: slice) -> tuple[Tensor, Tensor]:
        return _best_of_blocks(_tensor(queries[rows], device), references, k, block)

    found = _in_steps(len(queries), QUERY_BLOCK, k, best)
    if not np.isfinite(found.similarities).all():
        raise KappaPlaceError(_NOT_FINITE)
    return found


@torch.inference_mode()
def search_matrix(similarities: NDArray[np.floating], k: int = 10) -> Matches:
    """The k highest columns of each row of a given N×R matrix, which may be a memory map; as ``search``."""
    queries, references = matrix_shape(similarities)
    check_k(k, references)

    def best(rows: slice) -> tuple[Tensor, Tensor]:
        return _first_top(_tensor(np.array(similarities[rows], np.float32)), k)

    found = _in_steps(queries, max(1, QUERY_BLOCK * REFERENCE_BLOCK // references), k, best)
    if not np.isfinite(found.similarities).all():
        raise KappaPlaceError("Some similarities are NaN or infinite; check how the matrix was made.")
    return found


def matrix_shape(similarities: NDArray[np.floating]) -> tuple[int, int]:
    """Return the number of queries and references of a similarity matrix."""
    if similarities.ndim != 2:
        raise KappaPlaceError(
            f"A similarity matrix has one row a query and one column a reference, got {similarities.shape}."
        )
    return similarities.shape[0], similarities.shape[1]


def check_k(k: int, references: int) -> None:
    if k < 1 or k > references:
        raise KappaPlaceError(f"k must be between 1 and {references}, the number of references, got {k}.")


def _tensor(values: NDArray[np.floating], device: str | torch.device = "cpu") -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values, np.float32), device=device)


def _in_steps(queries: int, step: int, k: int, best: Callable[[slice], tuple[Tensor, Tensor]]) -> Matches:
    """Similarities and references of all queries, so many at a time."""
    found = Matches(np.empty((queries, k), np.int64), np.empty((queries, k), np.float32))
    for start in range(0, queries, step):
        rows = slice(start, start + step)
        values, columns = best(rows)
        found.similarities[rows], found.indices[rows] = values.cpu().numpy(), columns.cpu().numpy()
    return found


def _best_of_blocks(
    queries: Tensor, references: NDArray[np.floating] | Columns, k: int, block: int
) -> tuple[Tensor, Tensor]:
    """Best similarities and rows of a block of queries over all references, block by block."""
    best = torch.empty((len(queries), 0), device=queries.device)
    rows = torch.empty((len(queries), 0), dtype=torch.int64, device=queries.device)
    for start in range(0, len(references), block):
        part = _tensor(references[start : start + block], queries.device)
        values, columns = _first_top(queries @ part.T, min(k, len(part)))
        best, rows = torch.cat([best, values], 1), torch.cat([rows, columns + start], 1)
        order = best.argsort(dim=1, descending=True, stable=True)[:, :k]  # earlier blocks come first
        best, rows = best.gather(1, order), rows.gather(1, order)
    return best, rows


def _first_top(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best columns in order; of equal ones the first, which `topk` alone does not promise.

    NaN counts as the largest, so it cannot slip away and is reported at the end.
    """
    values, columns = similarity.topk(min(k + 1, similarity.shape[1]), dim=1)
    # Where one more has the same value as the last, `topk` may have taken the wrong ones.
    torn = torch.nonzero(values[:, k - 1 : k] == values[:, k:])[:, 0]
    values = values[:, :k]
    columns = _sort_ties(values, columns[:, :k])
    if len(torn):
        columns[torn] = similarity[torn].argsort(dim=1, descending=True, stable=True)[:, :k]
    return values, columns


def _sort_ties(values: Tensor, columns: Tensor) -> Tensor:
    """Columns in ascending order within each run of equal values."""
    by_column = columns.argsort(dim=1, stable=True)
    order = values.gather(1, by_column).argsort(dim=1, descending=True, stable=True)
    return columns.gather(1, by_column).gather(1, order)


def of_descriptors(
    queries: NDArray[np.floating] | Columns,
    references: NDArray[np.floating] | Columns,
    device: str | torch.device = "cpu",
) -> Similarities:
    """Cosine of unit vectors, multiplied out block by block; either side may be a memory map."""

    def block(rows: Any, columns: Any) -> Tensor:
        return _tensor(queries[rows], device) @ _tensor(references[columns], device).T

    return block


def of_matrix(matrix: NDArray[np.floating]) -> Similarities:
    """Blocks of a given N×R matrix, which may be a memory map."""

    def block(rows: Any, columns: Any) -> Tensor:
        return _tensor(matrix[rows, columns])

    return block


@torch.inference_mode()
def best_outside(
    similarities: Similarities,
    rows: NDArray[np.int64],
    centres: NDArray[np.int64],
    references: int,
    near: IsNear,
    *,
    columns: int = COLUMNS,
) -> NDArray[np.float32]:
    """For each row the highest similarity to a reference that is not near its centre; −inf if all are near.

    ``centres`` holds one reference a row, ``references`` says how many there are.
    """
    best = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), ROWS):
        part = slice(start, start + ROWS)
        best[part] = _best_of_rows(similarities, rows[part], centres[part], references, near, columns)
    return best


def _best_of_rows(
    similarities: Similarities,
    rows: NDArray[np.int64],
    centres: NDArray[np.int64],
    references: int,
    near: IsNear,
    columns: int,
) -> NDArray[np.float32]:
    best = torch.full((len(rows),), -torch.inf)
    for start in range(0, references, columns):
        block = similarities(rows, slice(start, min(start + columns, references)))
        best = best.to(block.device)
        # Only what beats the best so far need be asked whether it is near: after the first block very little.
        row, column = (index.cpu().numpy() for index in torch.nonzero(block > best[:, None], as_tuple=True))
        excluded = np.flatnonzero(near(centres[row], column + start))
        block[torch.from_numpy(row[excluded]), torch.from_numpy(column[excluded])] = -torch.inf
        best = torch.maximum(best, block.amax(1))
    return best.cpu().numpy()


@torch.inference_mode()
def row_moments(
    similarities: Similarities, rows: int, columns: NDArray[np.int64] | int, *, step: int = COLUMNS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each row over some columns: given ones, or all of so many."""
    total = columns if isinstance(columns, int) else len(columns)
    mean, deviation = np.empty(rows), np.empty(rows)
    for start in range(0, rows, ROWS):
        part = slice(start, min(start + ROWS, rows))
        first, second = (torch.zeros(part.stop - part.start, dtype=torch.float64) for _ in range(2))
        for at in range(0, total, step):
            chosen = slice(at, min(at + step, total))
            wide = similarities(part, chosen if isinstance(columns, int) else columns[chosen]).double().cpu()
            first, second = first + wide.sum(1), second + wide.square().sum(1)
        mean[part] = first.numpy() / total
        deviation[part] = np.sqrt(np.maximum(second.numpy() / total - mean[part] ** 2, 0.0))
    return mean, deviation


class BaseEngine:
    """Checks the input once, so that an engine writes only its own search."""

    name = ""
    exact = True
    why = "asked for"
    dim: int

    def __len__(self) -> int:
        raise NotImplementedError

    def search(
        self,
        queries: NDArray[np.float32],
        k: int,
        *,
        area: Circle | None = None,
        near: Circle | None = None,
    ) -> Matches:
        if near is not None:
            warnings.warn("near= is now area=.", DeprecationWarning, stacklevel=2)
        area = near if area is None else area
        area = None if area is None else checked_circle(area)
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise KappaPlaceError(
                f"Queries of shape {queries.shape} do not fit references of {self.dim} dimensions. "
                "Both must come from the same model."
            )
        if not np.isfinite(queries).all():
            raise KappaPlaceError(_NOT_FINITE)
        if area is None or k < 1:
            check_k(k, len(self))
        if len(queries) == 0:
            return Matches(np.empty((0, k), np.int64), np.empty((0, k), np.float32))
        return self._search(queries, k, area)

    def _search(self, queries: NDArray[np.float32], k: int, area: Circle | None) -> Matches:
        raise NotImplementedError

    def close(self) -> None:
        """Free what is held; the engine must not be used afterwards."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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

    def _search(self, queries: NDArray[np.float32], k: int, area: Circle | None) -> Matches:
        if area is None:
            return search(*self.columns.beside(queries), k, device=self.device)
        chosen = self.nearby.within(area)
        if len(chosen) == 0:
            return no_matches(len(queries))
        inside = self.columns.only(chosen).beside(queries)
        found = search(*inside, min(k, len(chosen)), device=self.device)
        return Matches(chosen[found.indices], found.similarities)  # ascending rows: ties stay in order
