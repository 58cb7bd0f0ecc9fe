"""What lies beyond the top K: similarities in blocks, and the best reference outside a neighbourhood.

Nothing here holds more than one block of similarities, so millions of references fit in little memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Near: TypeAlias = Callable[[Any, Any], NDArray[np.bool_]]
"""Whether references ``a`` and ``b`` (rows, broadcast) show one place; `PlaceImages.is_near` is one."""
Similarities: TypeAlias = Callable[[Any, Any], Tensor]
"""Similarities of some rows (queries) and columns (references) as float32, each an index array or a slice."""

ROWS = 256
COLUMNS = 1 << 14  # 4 M pairs a step: 17 MB of similarities, and a few times that to ask what is near


def of_descriptors(
    queries: NDArray[np.floating], references: NDArray[np.floating], device: str | torch.device = "cpu"
) -> Similarities:
    """Cosine of unit vectors, multiplied out block by block; either side may be a memory map."""

    def block(rows: Any, columns: Any) -> Tensor:
        return _tensor(queries[rows], device) @ _tensor(references[columns], device).T

    return block


def of_matrix(matrix: NDArray[np.floating]) -> Similarities:
    """Blocks of a given N×R matrix, which may be a memory map."""

    def block(rows: Any, columns: Any) -> Tensor:
        return _tensor(matrix[rows, columns], "cpu")

    return block


def _tensor(values: NDArray[np.floating], device: str | torch.device) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values, np.float32), device=device)


@torch.inference_mode()
def best_outside(
    similarities: Similarities,
    rows: NDArray[np.int64],
    centres: NDArray[np.int64],
    references: int,
    near: Near,
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
    near: Near,
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
