"""Agreement of patches: the part of two images that shows the same objects in the same arrangement.

The similarity of two cells is averaged with the similarities of their neighbors in the same directions (3×3),
because cells that show the same object have corresponding neighbors. Cells that are then each other's most
similar cell vote for the shift between them, with their similarity as weight. The agreement is the sum of the
votes near the best shift, relative to two identical images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

AGREEMENT = 2
"""Version of the agreement. Calibrations of another version were fitted on other values."""
KERNEL = np.array([1.0, 2.0, 3.0, 2.0, 1.0]) / 3
"""Weight of a vote by its distance from the best shift, in cells along each axis. Objects at different
distances shift by different amounts."""
_LEAST = -9.0  # less than any sum of nine cosines
Floats = NDArray[np.float64]
Grid = tuple[int, int]
"""Height and width of a grid of cells."""


@dataclass(frozen=True, eq=False)
class PatchMatches:
    """Pairs of patches of two images that agree on one shift, the evidence behind an agreement."""

    query: Floats
    """x and y of the patch centers in the query image, M×2, as fractions of its width and height."""
    reference: Floats
    """x and y of the patch centers in the reference image, M×2."""
    weights: Floats
    """Part of the agreement that each pair contributes (M); the sum is the agreement."""


@dataclass(frozen=True, eq=False)
class CellPairs:
    """Corresponding cells of pairs of images."""

    partner: NDArray[np.int64]
    """Most similar cell of the other image, B×HW."""
    weight: Floats
    """Similarity of both neighborhoods, relative to identical images, B×HW; 0 if the cells are not each
    other's most similar cell."""
    size: Grid

    def agreement(self) -> Floats:
        """Return the agreement of each pair of images (B), in [0, 1]."""
        return np.minimum(self._votes().max((1, 2)), 1.0)

    def matches(self) -> PatchMatches:
        """Return the pairs of cells behind the agreement of the first pair of images."""
        height, width = self.size
        votes = self._votes()[0]
        reach = len(KERNEL) // 2
        taps = np.zeros(2 * max(self.size))
        taps[: reach + 1] = KERNEL[reach:][: len(taps)]
        down, right = (
            np.abs(shifts[0] - best)
            for shifts, best in zip(
                self._shifts(), np.unravel_index(votes.argmax(), votes.shape), strict=True
            )
        )
        weights = self.weight[0] * taps[down] * taps[right]
        cells = np.flatnonzero(weights)
        query, reference = (
            np.stack([(at % width + 0.5) / width, (at // width + 0.5) / height], 1)
            for at in (cells, self.partner[0, cells])
        )
        return PatchMatches(query, reference, weights[cells])

    def _shifts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shift of each pair of cells, down and right, counted from the largest negative shift."""
        height, width = self.size
        cell = np.arange(height * width)
        down = self.partner // width - cell // width + height - 1
        return down, self.partner % width - cell % width + width - 1

    def _votes(self) -> Floats:
        """Return the votes near each shift, B×(2H−1)×(2W−1)."""
        down, right = self._shifts()
        shape = (len(down), 2 * self.size[0] - 1, 2 * self.size[1] - 1)
        bins = (np.arange(len(down))[:, None] * shape[1] + down) * shape[2] + right
        votes = np.bincount(bins.ravel(), self.weight.ravel(), int(np.prod(shape))).reshape(shape)
        reach = len(KERNEL) // 2
        padded = np.pad(votes, ((0, 0), (reach, reach), (reach, reach)))
        rows = sum(tap * padded[:, at : at + shape[1]] for at, tap in enumerate(KERNEL))
        return np.asarray(sum(tap * rows[:, :, at : at + shape[2]] for at, tap in enumerate(KERNEL)))


def corresponding_cells(a: Tensor, b: Tensor, size: Grid) -> CellPairs:
    """Find the corresponding cells of pairs of images.

    Args:
        a: Unit vectors of the cells, B×HW×d, or 1×HW×d for one image that is compared with all others.
        b: Unit vectors of the cells, B×HW×d.
        size: Height and width of the grid of cells.

    Returns:
        The corresponding cells.
    """
    height, width = size
    table = np.arange((height + 1) * (width + 1)).reshape(height + 1, width + 1)
    cells = table[:-1, :-1].ravel()
    border = np.concatenate([table[-1], table[:-1, -1]])
    match = _match_on_cpu if b.device.type == "cpu" else _match_on_gpu
    best, top, back = match(_padded(a, size), _padded(b, size), (width + 1, border))
    best, top = best[:, cells], top[:, cells]
    mutual = np.take_along_axis(back, best, 1) <= top
    most = (3 * height - 2) * (
        3 * width - 2
    )  # sum over identical images: cells at the border have fewer neighbors
    weight = np.where(mutual, np.maximum(top, 0), 0).astype(np.float64) / most
    return CellPairs(best // (width + 1) * width + best % (width + 1), weight, size)


def _padded(cells: Tensor, size: Grid) -> Tensor:
    """Add a row and a column of zeros below and right of the grid.

    All neighbors in one direction then have the same distance in a table of similarities, and similarities
    beyond the border are 0.
    """
    grid = cells.new_zeros(len(cells), size[0] + 1, size[1] + 1, cells.shape[2])
    grid[:, :-1, :-1] = cells.view(len(cells), *size, -1)
    return grid.view(len(cells), -1, cells.shape[2])


Found = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]
"""For each padded cell: the best cell of the other image, and its similarity; and for each cell of the other
image its best similarity."""


def _match_on_cpu(a: Tensor, b: Tensor, layout: tuple[int, NDArray[np.int64]]) -> Found:
    """Match pair by pair, so that the tables stay in the cache; NumPy is faster than torch here."""
    (wide, border), count = layout, b.shape[1]
    first, second = np.empty((2, count * count), np.float32)
    table, rows = first.reshape(count, count), np.arange(count)
    best = np.empty((len(b), count), np.int64)
    top, back = np.empty((2, len(b), count), np.float32)
    one, others = a.numpy(), b.numpy()
    for pair, other in enumerate(others):
        np.matmul(one[pair if len(one) > 1 else 0], other.T, out=table)
        for step, source, target in ((wide * (count + 1), first, second), (count + 1, second, first)):
            target[:step] = source[:step]
            np.add(source[step:], source[:-step], out=target[step:])
            target[:-step] += source[step:]
        table[:, border] = _LEAST
        table[border] = _LEAST
        best[pair] = table.argmax(1)
        top[pair], back[pair] = table[rows, best[pair]], table.max(0)
    return best, top, back


def _match_on_gpu(a: Tensor, b: Tensor, layout: tuple[int, NDArray[np.int64]]) -> Found:
    """Match all pairs at once."""
    (wide, border), count = layout, b.shape[1]
    table = (a @ b.transpose(1, 2)).flatten(1)
    for step in (wide * (count + 1), count + 1):
        total = table.clone()
        total[:, step:] += table[:, :-step]
        total[:, :-step] += table[:, step:]
        table = total
    table = table.view(-1, count, count)
    table[:, :, border] = _LEAST
    table[:, border] = _LEAST
    top, best = table.max(2)
    back = table.amax(1)
    return best.cpu().numpy(), top.cpu().numpy(), back.cpu().numpy()
