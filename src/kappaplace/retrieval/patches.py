"""Patch matching: re-rank matches by how well the patches of both images agree.

Patches are cells of the encoder's feature maps, see `kappaplace.retrieval.agreement`. This is a geometric
check without keypoints or a second network, but it needs the images or stored codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.agreement import PatchMatches, corresponding_cells
from kappaplace.retrieval.patch_codes import CODE_BYTES, LocalFeatures, PatchCodebook, learn_patch_codebook
from kappaplace.retrieval.references import Floats, Queries, References
from kappaplace.retrieval.references import PatchMaps as PatchMaps
from kappaplace.types import Matches

Pair = tuple[int, int]
GAIN_IMAGES = 32
"""Number of images on which exact patches are compared with their codes."""
QUERIES = 16  # queries per step: their maps and the maps of their matches are in memory together
CACHED_MAPS = 2000
"""Number of feature maps in memory, about 90 KB each. Older ones are computed again from their images."""


def patch_agreement(a: Tensor, b: Tensor) -> Tensor:
    """Compare pairs of feature maps.

    Args:
        a: Feature maps B×C×H×W.
        b: Feature maps of the same shape, one for each of ``a``.

    Returns:
        Agreement of each pair in [0, 1], B.

    >>> same = torch.randn(1, 8, 5, 5)
    >>> round(float(patch_agreement(same, same)), 5)
    1.0
    """
    one, other = LocalFeatures.of(a), LocalFeatures.of(b)
    return cell_agreement(one.cells, other.cells, one.size)


def cell_agreement(a: Tensor, b: Tensor, size: tuple[int, int]) -> Tensor:
    """Compare pairs of local features, see `patch_agreement`.

    Args:
        a: Unit vectors of the cells, B×HW×d, or 1×HW×d for one image that is compared with all others.
        b: Unit vectors of the cells, B×HW×d.
        size: Height and width of the grid of cells.

    Returns:
        Agreement of each pair in [0, 1], B, on the CPU.
    """
    return torch.from_numpy(corresponding_cells(a, b, size).agreement())


def patch_matches(query: LocalFeatures, reference: LocalFeatures) -> PatchMatches:
    """Return the pairs of patches behind the agreement of two images.

    Args:
        query: Features of the query, one image, in the channels of its feature map.
        reference: Features of the reference, one image, exact or decoded.

    Returns:
        The pairs, in the order of the patches of the query.

    Raises:
        KappaPlaceError: If there is more than one image, or the grids differ.
    """
    if len(query.cells) != 1 or len(reference.cells) != 1 or query.size != reference.size:
        raise KappaPlaceError(
            f"Patch matches need one query and one reference with the same grid, got {len(query.cells)} "
            f"queries on {query.size} and {len(reference.cells)} references on {reference.size}."
        )
    own = query.within(reference.basis).cells.to(reference.cells)
    return corresponding_cells(own, reference.cells, query.size).matches()


@torch.inference_mode()
def learn_codes(maps: Tensor, *, code_bytes: int = CODE_BYTES) -> PatchCodebook:
    """Fit the codebook of a map, and measure how much less its patches agree than exact ones.

    Args:
        maps: Patch maps N×C×H×W of images of the map, of different places if possible.
        code_bytes: Largest number of bytes per image.

    Returns:
        The codebook.
    """
    book, some = learn_patch_codebook(maps, code_bytes=code_bytes), maps[:GAIN_IMAGES].cpu()
    exact, decoded = LocalFeatures.of(some), book.decode(book.encode(some))
    turned, totals = exact.within(decoded.basis).cells, np.zeros(2)
    for distance in (1, 2):  # between different images: an image agrees too well with its own code
        other = np.roll(np.arange(len(some)), distance)
        for start in range(0, len(some), QUERIES):
            own, rows = slice(start, start + QUERIES), other[start : start + QUERIES]
            totals += [
                float(cell_agreement(exact.cells[own], exact.cells[rows], exact.size).sum()),
                float(cell_agreement(turned[own], decoded.cells[rows], exact.size).sum()),
            ]
    return replace(book, gain=float(totals[0] / max(totals[1], 1e-6)))


def compare(queries: Queries, references: References, indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compare each query with references.

    Args:
        queries: The queries, with images and patch maps.
        references: The references.
        indices: Row numbers of the references to compare, N×K.

    Returns:
        Agreement of each pair, N×K.
    """
    agreement = np.empty(indices.shape)
    rows, local = np.empty(0, np.int64), list[LocalFeatures]()
    for start in range(0, len(indices), QUERIES):
        block = indices[start : start + QUERIES]
        # Neighboring queries share matches, so the features of the last block are reused.
        again = np.isin(rows, block)
        new = block[0] if len(block) == 1 else np.setdiff1d(block, rows[again])
        local = [features.take(np.flatnonzero(again)) for features in local if again.any()]
        local += [references.local(new)] if len(new) else []
        rows, local = np.concatenate([rows[again], new]), [LocalFeatures.join(local)]
        maps = _query_maps(queries, slice(start, start + len(block)))
        own = LocalFeatures.of(maps.to(local[0].cells.device)).within(local[0].basis)
        order = np.argsort(rows)
        places = order[np.searchsorted(rows, block, sorter=order)]
        for row, place in enumerate(places):
            others = local[0].take(place)
            values = cell_agreement(own.cells[row : row + 1], others.cells, others.size)
            agreement[start + row] = others.scaled(values).double().cpu().numpy()
    return agreement


def _query_maps(queries: Queries, rows: slice) -> Tensor:
    """Return the feature maps of some queries, from the pass that computed their descriptors if possible."""
    if queries.embeddings is not None and queries.embeddings.patches is not None:
        return torch.from_numpy(queries.embeddings.patches[rows])
    if queries.images is None or queries.patch_maps is None:
        raise KappaPlaceError(
            "Patch matching needs the query images and a model that provides patch maps. Pass images instead "
            "of embeddings."
        )
    return queries.patch_maps(queries.images[rows])


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
    """Sort the first matches by agreement (N×count, stable), and return the sorted matches and agreement."""
    order = np.argsort(-agreement, axis=1, kind="stable")
    return reordered(matches, order), np.take_along_axis(agreement, order, 1)


def reordered(matches: Matches, order: NDArray[np.int64]) -> Matches:
    """Return the matches with their first columns in another order, N×count."""
    indices, similarities = matches.indices.copy(), matches.similarities.copy()
    count = order.shape[1]
    indices[:, :count] = np.take_along_axis(indices[:, :count], order, 1)
    similarities[:, :count] = np.take_along_axis(similarities[:, :count], order, 1)
    return Matches(indices, similarities)


class CellCheck:
    """Patch matching of frames with earlier frames; every pair is compared once.

    Args:
        patch_maps: Function that returns the feature maps of images.
        agreements: Agreement of each pair (frame, earlier frame) in an earlier run.
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
            Agreement with each earlier frame, in [0, 1].
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
