"""Exact search in blocks of references: bounded memory, CPU or GPU, no index to build."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.types import Matches

REFERENCE_BLOCK = 1 << 16
QUERY_BLOCK = 1 << 10  # 65,536 × 1,024 similarities are 268 MB: what one step may hold


@torch.inference_mode()
def search(
    queries: NDArray[np.floating],
    references: NDArray[np.floating],
    k: int = 10,
    *,
    device: str | torch.device = "cpu",
    block: int = REFERENCE_BLOCK,
) -> Matches:
    """The k most similar references of each query by cosine (both sides at unit length), best first.

    Equal similarities are ordered by the reference's row, so the result does not depend on ``block``.

    >>> matches = search(np.array([[0.6, 0.8]]), np.eye(2), k=2)
    >>> matches.indices.tolist(), [f"{cosine:.1f}" for cosine in matches.similarities[0]]
    ([[1, 0]], ['0.8', '0.6'])
    """
    if k < 1 or k > len(references):
        raise KappaPlaceError(
            f"Cannot retrieve {k} matches: there are {len(references)} references; choose k from 1 to that."
        )
    if block < 1:
        raise KappaPlaceError(f"References are compared in blocks of at least 1, not {block}.")
    device = _device(device)
    if queries.ndim != 2 or references.ndim != 2 or queries.shape[1] != references.shape[1]:
        raise KappaPlaceError(
            f"Queries of shape {queries.shape} and references of shape {references.shape} do not fit; "
            "both must be N×d with the same d, from the same model."
        )
    indices = np.empty((len(queries), k), np.int64)
    similarities = np.empty((len(queries), k), np.float32)
    for start in range(0, len(queries), QUERY_BLOCK):
        rows = slice(start, start + QUERY_BLOCK)
        best, found = _search_block(_tensor(queries[rows], device), references, k, block, device)
        similarities[rows], indices[rows] = best.cpu().numpy(), found.cpu().numpy()
    if not np.isfinite(similarities).all():
        raise KappaPlaceError("Some descriptors are NaN or infinite; check the model and the images.")
    return Matches(indices, similarities)


@torch.inference_mode()
def search_matrix(similarities: NDArray[np.floating], k: int = 10) -> Matches:
    """The k highest columns of each row of a given N×R matrix, which may be a memory map; as ``search``."""
    if similarities.ndim != 2:
        raise KappaPlaceError(
            f"A similarity matrix has one row a query and one column a reference, got {similarities.shape}."
        )
    queries, references = similarities.shape
    if k < 1 or k > references:
        raise KappaPlaceError(
            f"Cannot retrieve {k} matches: there are {references} references; choose k from 1 to that."
        )
    indices = np.empty((queries, k), np.int64)
    best = np.empty((queries, k), np.float32)
    step = max(1, QUERY_BLOCK * REFERENCE_BLOCK // references)
    for start in range(0, queries, step):
        rows = slice(start, start + step)
        values, columns = _first_top(torch.from_numpy(np.array(similarities[rows], np.float32)), k)
        best[rows], indices[rows] = values.numpy(), columns.numpy()
    if not np.isfinite(best).all():
        raise KappaPlaceError("Some similarities are NaN or infinite; check how the matrix was made.")
    return Matches(indices, best)


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError:
        raise KappaPlaceError(f"There is no kind of device {device!r}; use cpu or cuda.") from None


def _tensor(descriptors: NDArray[np.floating], device: str | torch.device) -> Tensor:
    return torch.as_tensor(np.asarray(descriptors, np.float32), device=device)


def _search_block(
    queries: Tensor, references: NDArray[np.floating], k: int, block: int, device: str | torch.device
) -> tuple[Tensor, Tensor]:
    """Best similarities and rows of a block of queries over all references, block by block."""
    best = torch.empty((len(queries), 0), device=device)
    rows = torch.empty((len(queries), 0), dtype=torch.int64, device=device)
    for start in range(0, len(references), block):
        part = _tensor(references[start : start + block], device)
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
