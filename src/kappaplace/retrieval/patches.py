"""Patch matching: the fraction of patches of two images that show the same objects in the same arrangement.

Patches are cells of the encoder's feature maps. Cells of two maps that are mutual nearest neighbors vote for
the shift between them. The agreement is the fraction of cells that vote for the same shift, within a
tolerance. This is a geometric check without keypoints or a second network, but it needs the images again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.references import Floats, Queries, References
from kappaplace.retrieval.references import PatchMaps as PatchMaps
from kappaplace.types import Matches

Pair = tuple[int, int]
TOLERANCE = 2  # cells: objects at different distances shift by different amounts
QUERIES = 16  # queries per step: their maps and the maps of their matches are in memory together
CACHED_MAPS = 2000
"""Feature maps in memory, about 90 KB each; older ones are computed again from their images."""


def patch_agreement(a: Tensor, b: Tensor, tolerance: int = TOLERANCE) -> Tensor:
    """Compare pairs of feature maps.

    Args:
        a: Feature maps B×C×H×W.
        b: Feature maps of the same shape, one for each of ``a``.
        tolerance: Largest difference of shifts that agree, in cells.

    Returns:
        Fraction of cells that agree, in [0, 1], B.

    >>> same = torch.randn(1, 8, 5, 5)
    >>> float(patch_agreement(same, same))
    1.0
    """
    count, _, height, width = a.shape
    cells = height * width
    similarity = _cells(a) @ _cells(b).transpose(1, 2)
    forth, back = similarity.argmax(2), similarity.argmax(1)
    cell = torch.arange(cells, device=a.device)
    mutual = back.gather(1, forth) == cell
    down = forth // width - cell // width + height - 1
    right = forth % width - cell % width + width - 1
    wide = 2 * width - 1
    votes = torch.zeros(count, (2 * height - 1) * wide, device=a.device)
    votes.scatter_add_(1, down * wide + right, mutual.float())
    plane = votes.view(count, 1, 2 * height - 1, wide)
    side = 2 * tolerance + 1
    together = F.avg_pool2d(plane, side, stride=1, padding=tolerance) * side**2
    return together.amax((1, 2, 3)) / cells


def compare(queries: Queries, references: References, indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compare each query with references.

    Args:
        queries: The queries, with images and patch maps.
        references: The references.
        indices: Row numbers of the references to compare, N×K.

    Returns:
        Fraction of cells that agree, N×K.
    """
    if queries.images is None or queries.patch_maps is None:
        raise KappaPlaceError(
            "Patch matching needs the query images and a model that provides patch maps. Pass images instead "
            "of embeddings."
        )
    agreement = np.empty(indices.shape)
    cache: dict[int, Tensor] = {}
    for start in range(0, len(indices), QUERIES):
        block = indices[start : start + QUERIES]
        rows, place = np.unique(block, return_inverse=True)
        # Neighboring queries share matches, so the maps of the last block are reused.
        missing = [row for row in rows.tolist() if row not in cache]
        own = queries.patch_maps([queries.images[start + i] for i in range(len(block))])
        if missing:
            local = references.local(np.array(missing, np.int64))
            cache |= dict(zip(missing, local, strict=True))
        cache = {row: cache[row] for row in rows.tolist()}
        maps = torch.stack(list(cache.values()))[torch.from_numpy(place.reshape(block.shape))]
        columns = [patch_agreement(own, maps[:, rank]) for rank in range(block.shape[1])]
        agreement[start : start + QUERIES] = torch.stack(columns, 1).double().cpu().numpy()
    return agreement


def rerank(
    queries: Queries, references: References, matches: Matches, count: int
) -> tuple[Matches, NDArray[np.float64]]:
    """Sort the first matches by agreement.

    Args:
        queries: The queries, with images and patch maps.
        references: The references.
        matches: Matches of the queries, best first.
        count: Number of matches per query to compare; the others keep their order behind them.

    Returns:
        The sorted matches, and the agreement of the first ones, N×count.
    """
    count = min(count, matches.indices.shape[1])
    return by_agreement(matches, compare(queries, references, matches.indices[:, :count]))


def by_agreement(matches: Matches, agreement: Floats) -> tuple[Matches, Floats]:
    """Sort the first matches by an agreement N×count, ties in their order; return both sorted."""
    order = np.argsort(-agreement, axis=1, kind="stable")
    return reordered(matches, order), np.take_along_axis(agreement, order, 1)


def reordered(matches: Matches, order: NDArray[np.int64]) -> Matches:
    """Return the matches with their first columns in another order, N×count."""
    indices, similarities = matches.indices.copy(), matches.similarities.copy()
    count = order.shape[1]
    indices[:, :count] = np.take_along_axis(indices[:, :count], order, 1)
    similarities[:, :count] = np.take_along_axis(similarities[:, :count], order, 1)
    return Matches(indices, similarities)


def _cells(maps: Tensor) -> Tensor:
    """Return the difference of each cell from the mean of its image, as unit vectors B×HW×C."""
    flat = maps.flatten(2).transpose(1, 2).float()
    return F.normalize(flat - flat.mean(1, keepdim=True), dim=2)


class CellCheck:
    """Patch matching of frames with earlier frames; every pair is compared once.

    Args:
        patch_maps: Function that returns the feature maps of images.
        agreements: Agreement of pairs (frame, earlier frame) of an earlier run.
        cached: Number of feature maps to keep in memory.
    """

    def __init__(
        self,
        patch_maps: PatchMaps,
        agreements: Mapping[Pair, float] | None = None,
        *,
        cached: int = CACHED_MAPS,
    ) -> None:
        self.patch_maps = patch_maps
        self.agreements: dict[Pair, float] = dict(agreements or {})
        self.images: list[Any] = []
        """Image of each frame, None if unknown; use paths instead of arrays for a long drive."""
        self._map = lru_cache(maxsize=cached)(self._compute_map)

    def agreement(self, number: int, matches: Sequence[int]) -> Floats:
        """Compare a frame with earlier frames.

        Args:
            number: Number of the frame.
            matches: Numbers of the earlier frames.

        Returns:
            Fraction of cells that agree with each earlier frame, in [0, 1].
        """
        missing = [match for match in matches if (number, match) not in self.agreements]
        if missing:
            others = torch.stack([self._map(match) for match in missing])
            agreement = patch_agreement(self._map(number)[None].expand_as(others), others)
            pairs = [(number, match) for match in missing]
            self.agreements |= dict(zip(pairs, agreement.double().cpu().tolist(), strict=True))
        return np.array([self.agreements[number, match] for match in matches])

    def _compute_map(self, number: int) -> Tensor:
        image = self.images[number]
        if image is None:
            raise KappaPlaceError(
                f"Patch matching needs the image of every frame, but frame {number} has none. Pass it, or "
                "use a calibration without patch matching."
            )
        return self.patch_maps([image])[0]
