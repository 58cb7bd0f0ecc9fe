"""Exact search in blocks: the k best references, and the best reference of another place.

Only one block of similarities is in memory, so millions of references fit on a CPU or GPU without an index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.checks import within
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.codes import NOT_FINITE
from kappaplace.retrieval.columns import Columns, Rows
from kappaplace.types import Matches

REFERENCE_BLOCK = 1 << 16
QUERY_BLOCK = 1 << 10  # 65,536 × 1,024 similarities are 268 MB, the limit of one step
FEW = 4  # up to this many queries, table lookups are faster than decoding the codes
CODES_BLOCK = 1 << 13  # codes per block: 16 MB of 512 numbers, in memory that is reused

IsNear: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]
"""Function that returns whether references ``a`` and ``b`` (rows, broadcast) show the same place, such as
`PlaceImages.is_near`."""
Similarities: TypeAlias = Callable[[Rows, Rows], Tensor]
"""Function that returns the similarities of rows (queries) and columns (references) as float32. Both are
index arrays or slices."""

ROWS = 256
# 4 million pairs per step: 17 MB of similarities, and a few times that to find which are near.
COLUMNS = 1 << 14


@torch.inference_mode()
def search(
    queries: NDArray[np.floating],
    references: NDArray[np.floating] | Columns,
    k: int = 10,
    *,
    device: str | torch.device = "cpu",
    block: int | None = None,
) -> Matches:
    """Return the k most similar references of each query by cosine, best first.

    Equal similarities are ordered by the row of the reference, so the result does not depend on ``block``.

    Args:
        queries: Unit descriptors N×d.
        references: Unit descriptors R×d: an array, a memory map or `Columns`.
        k: Number of matches per query.
        device: Device that computes the similarities.
        block: References per step. Default: 65,536, or 8,192 for codes.

    Returns:
        Rows and cosines of the matches, N×k.

    Raises:
        KappaPlaceError: If k, the device or a shape is invalid, or if a descriptor is not finite.

    >>> matches = search(np.array([[0.6, 0.8]]), np.eye(2), k=2)
    >>> matches.indices.tolist(), [f"{cosine:.1f}" for cosine in matches.similarities[0]]
    ([[1, 0]], ['0.8', '0.6'])
    """
    check_k(k, len(references))
    codes = isinstance(references, Columns) and references.turned
    block = (CODES_BLOCK if codes else REFERENCE_BLOCK) if block is None else block
    within(block, "block", 1)
    try:
        device = torch.device(device)
    except RuntimeError:
        raise KappaPlaceError(f"Unknown device {device!r}. Choose cpu or cuda.") from None
    if queries.ndim != 2 or references.ndim != 2 or queries.shape[1] != references.shape[1]:
        raise KappaPlaceError(
            f"Queries of shape {queries.shape} and references of shape {references.shape} do not fit. "
            "Both must be N×d with the same d, from the same model."
        )
    few = len(queries) <= FEW and device.type == "cpu"
    if isinstance(references, Columns) and codes and references.whole and few:
        return search_matrix(references.products(queries.astype(np.float32, copy=False)), k)

    def best(rows: slice) -> tuple[Tensor, Tensor]:
        return _best_of_blocks(_tensor(queries[rows], device), references, k, block)

    matches = _in_steps(len(queries), QUERY_BLOCK, k, best)
    if not np.isfinite(matches.similarities).all():
        raise KappaPlaceError(NOT_FINITE)
    return matches


@torch.inference_mode()
def search_matrix(similarities: NDArray[np.floating], k: int = 10, *, gaps: bool = False) -> Matches:
    """Return the k highest columns of each row of a similarity matrix, best first.

    Args:
        similarities: Similarities N×R; a memory map works.
        k: Number of matches per query.
        gaps: Accept −inf, which excludes a reference for a query: it comes last.

    Returns:
        Columns and similarities of the matches, N×k.

    Raises:
        KappaPlaceError: If k or the shape is invalid, or if a similarity is not finite.
    """
    queries, references = matrix_shape(similarities)
    check_k(k, references)

    def best(rows: slice) -> tuple[Tensor, Tensor]:
        return _first_top(_tensor(np.array(similarities[rows], np.float32)), k)

    matches = _in_steps(queries, max(1, QUERY_BLOCK * REFERENCE_BLOCK // references), k, best)
    if not (np.isfinite(matches.similarities) | (gaps & np.isneginf(matches.similarities))).all():
        raise KappaPlaceError("Some similarities are NaN or infinite. Check how the matrix was computed.")
    return matches


def matrix_shape(similarities: NDArray[np.floating]) -> tuple[int, int]:
    """Return the number of queries and references of a similarity matrix."""
    if similarities.ndim != 2:
        raise KappaPlaceError(
            "A similarity matrix must have one row per query and one column per reference, got shape "
            f"{similarities.shape}."
        )
    return similarities.shape[0], similarities.shape[1]


def check_k(k: int, references: int) -> None:
    """Raise an error if there are not k references."""
    if k < 1 or k > references:
        raise KappaPlaceError(f"k must be between 1 and {references}, the number of references, got {k}.")


def _tensor(values: NDArray[np.floating], device: str | torch.device = "cpu") -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values, np.float32), device=device)


def _in_steps(queries: int, step: int, k: int, best: Callable[[slice], tuple[Tensor, Tensor]]) -> Matches:
    """Collect the similarities and references of all queries, ``step`` queries at a time."""
    matches = Matches(np.empty((queries, k), np.int64), np.empty((queries, k), np.float32))
    for start in range(0, queries, step):
        rows = slice(start, start + step)
        values, columns = best(rows)
        matches.similarities[rows], matches.indices[rows] = values.cpu().numpy(), columns.cpu().numpy()
    return matches


def _best_of_blocks(
    queries: Tensor, references: NDArray[np.floating] | Columns, k: int, block: int
) -> tuple[Tensor, Tensor]:
    """Return the best similarities and rows of some queries over all references, block by block."""
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
    """Return the k best columns, best first. Equal columns keep their order, which `topk` alone does not
    guarantee.

    NaN counts as the largest value, so it is never lost and is reported at the end.
    """
    values, columns = similarity.topk(min(k + 1, similarity.shape[1]), dim=1)
    # If one more column equals the last, `topk` may have chosen the wrong ones.
    torn = torch.nonzero(values[:, k - 1 : k] == values[:, k:])[:, 0]
    values = values[:, :k]
    columns = _sort_ties(values, columns[:, :k])
    if len(torn):
        columns[torn] = similarity[torn].argsort(dim=1, descending=True, stable=True)[:, :k]
    return values, columns


def _sort_ties(values: Tensor, columns: Tensor) -> Tensor:
    """Sort the columns within each run of equal values."""
    by_column = columns.argsort(dim=1, stable=True)
    order = values.gather(1, by_column).argsort(dim=1, descending=True, stable=True)
    return columns.gather(1, by_column).gather(1, order)


def of_descriptors(
    queries: NDArray[np.floating] | Columns,
    references: NDArray[np.floating] | Columns,
    device: str | torch.device = "cpu",
) -> Similarities:
    """Return the cosines of unit vectors, computed block by block.

    Args:
        queries: Unit descriptors N×d; a memory map works.
        references: Unit descriptors R×d; a memory map works.
        device: Device that computes the products.

    Returns:
        A function that returns the cosines of rows and columns.
    """

    def block(rows: Rows, columns: Rows) -> Tensor:
        return _tensor(queries[rows], device) @ _tensor(references[columns], device).T

    return block


def of_matrix(matrix: NDArray[np.floating]) -> Similarities:
    """Return a function that returns blocks of an N×R similarity matrix, which may be a memory map."""

    def block(rows: Rows, columns: Rows) -> Tensor:
        return _tensor(matrix[rows, columns])

    return block


@torch.inference_mode()
def best_outside(
    similarities: Similarities,
    rows: NDArray[np.int64],
    centers: NDArray[np.int64],
    references: int,
    near: IsNear,
    *,
    columns: int = COLUMNS,
) -> NDArray[np.float32]:
    """Return the highest similarity of each row to a reference that is not near its center.

    Args:
        similarities: Similarities of queries and references.
        rows: Rows of the queries.
        centers: One reference per row, whose neighbors are excluded.
        references: Number of references.
        near: Whether two references show the same place.
        columns: References per step.

    Returns:
        Similarities, one per row; −inf if all references are near.
    """
    parts = []
    for start in range(0, len(rows), ROWS):
        part = slice(start, start + ROWS)
        best = torch.full((len(rows[part]),), -torch.inf)
        for first in range(0, references, columns):
            block = similarities(rows[part], slice(first, min(first + columns, references)))
            best = best.to(block.device)
            # Only similarities above the best so far are checked for nearness: few after the first block.
            better = torch.nonzero(block > best[:, None], as_tuple=True)
            row, column = (index.cpu().numpy() for index in better)
            excluded = np.flatnonzero(near(centers[part][row], column + first))
            block[torch.from_numpy(row[excluded]), torch.from_numpy(column[excluded])] = -torch.inf
            best = torch.maximum(best, block.amax(1))
        parts.append(best.cpu().numpy())
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


@torch.inference_mode()
def row_moments(
    similarities: Similarities, rows: int, columns: NDArray[np.int64] | int, *, step: int = COLUMNS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and standard deviation of each row over columns.

    Args:
        similarities: Similarities of queries and references.
        rows: Number of queries.
        columns: Column numbers, or the number of columns for all.
        step: Columns per step.

    Returns:
        Mean and standard deviation, one per row.
    """
    total = columns if isinstance(columns, int) else len(columns)
    mean, deviation = np.empty(rows), np.empty(rows)
    for start in range(0, rows, ROWS):
        part = slice(start, min(start + ROWS, rows))
        first, second = (torch.zeros(part.stop - part.start, dtype=torch.float64) for _ in range(2))
        for offset in range(0, total, step):
            block = slice(offset, min(offset + step, total))
            wide = similarities(part, block if isinstance(columns, int) else columns[block]).double().cpu()
            first, second = first + wide.sum(1), second + wide.square().sum(1)
        mean[part] = first.numpy() / total
        deviation[part] = np.sqrt(np.maximum(second.numpy() / total - mean[part] ** 2, 0.0))
    return mean, deviation
