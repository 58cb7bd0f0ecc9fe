"""How many patches of two images show the same things in the same arrangement, and reranking by it.

Cells of two feature maps that are each other's nearest vote for the shift between them; the agreement is the
fraction of cells that agree on one shift, give or take ``tolerance`` cells. A check of geometry with what the
encoder has computed anyway: no keypoints, no second network.

The optional look at two images through the encoder's own eyes: how many of their cells agree on one shift.

The same comparison that a map makes (`kappaplace.uncertainty.images`): as a score of the probability, or as
a check that an accepted closure must pass. Needs the images once more, but no keypoints and no second
network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import embed_patches
from kappaplace.models.exported import ExportedModel
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.references import Floats as Scores
from kappaplace.retrieval.references import Queries, References
from kappaplace.types import Matches

if TYPE_CHECKING:
    from kappaplace.data.images import Source


TOLERANCE = 2  # cells: objects at other distances shift by other amounts
QUERIES = 16  # at a time: their maps and those of their matches are in memory together


def patch_agreement(a: Tensor, b: Tensor, tolerance: int = TOLERANCE) -> Tensor:
    """Return the fraction of cells in [0, 1] that agree, B, of maps B×C×H×W of one size.

    >>> same = torch.randn(1, 8, 5, 5)
    >>> float(patch_agreement(same, same))
    1.0
    """
    count, _, height, width = a.shape
    cells = height * width
    similarity = _cells(a) @ _cells(b).transpose(1, 2)
    forth, back = similarity.argmax(2), similarity.argmax(1)
    here = torch.arange(cells, device=a.device)
    mutual = back.gather(1, forth) == here
    down = forth // width - here // width + height - 1
    right = forth % width - here % width + width - 1
    wide = 2 * width - 1
    votes = torch.zeros(count, (2 * height - 1) * wide, device=a.device)
    votes.scatter_add_(1, down * wide + right, mutual.float())
    plane = votes.view(count, 1, 2 * height - 1, wide)
    side = 2 * tolerance + 1
    together = F.avg_pool2d(plane, side, stride=1, padding=tolerance) * side**2
    return together.amax((1, 2, 3)) / cells


def compare(queries: Queries, references: References, indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the agreement of each query with each of these references, N×K."""
    if queries.images is None or queries.patch_maps is None:
        raise KappaPlaceError(
            "Comparing patches needs the query images and a model that shows its stages; give images, not "
            "embeddings."
        )
    agreement = np.empty(indices.shape)
    known: dict[int, Tensor] = {}
    for start in range(0, len(indices), QUERIES):
        block = indices[start : start + QUERIES]
        rows, place = np.unique(block, return_inverse=True)
        # Neighboring queries share their matches, so the maps of the last block are kept.
        missing = [row for row in rows.tolist() if row not in known]
        own = queries.patch_maps([queries.images[start + i] for i in range(len(block))])
        if missing:
            local = references.local(np.array(missing, np.int64))
            known |= dict(zip(missing, local, strict=True))
        known = {row: known[row] for row in rows.tolist()}
        maps = torch.stack(list(known.values()))[torch.from_numpy(place.reshape(block.shape))]
        columns = [patch_agreement(own, maps[:, rank]) for rank in range(block.shape[1])]
        agreement[start : start + QUERIES] = torch.stack(columns, 1).double().cpu().numpy()
    return agreement


def rerank(
    queries: Queries, references: References, matches: Matches, count: int
) -> tuple[Matches, NDArray[np.float64]]:
    """Order the first ``count`` matches by agreement, the others behind; return both, best first."""
    count = min(count, matches.indices.shape[1])
    agreement = compare(queries, references, matches.indices[:, :count])
    order = np.argsort(-agreement, axis=1, kind="stable")
    return reordered(matches, order), np.take_along_axis(agreement, order, 1)


def reordered(matches: Matches, order: NDArray[np.int64]) -> Matches:
    """Return the matches with the first columns, as many as ``order`` has, in another order."""
    indices, similarities = matches.indices.copy(), matches.similarities.copy()
    count = order.shape[1]
    indices[:, :count] = np.take_along_axis(indices[:, :count], order, 1)
    similarities[:, :count] = np.take_along_axis(similarities[:, :count], order, 1)
    return Matches(indices, similarities)


def _cells(maps: Tensor) -> Tensor:
    """Unit vectors B×HW×C of what sets each cell apart from the image's mean."""
    flat = maps.flatten(2).transpose(1, 2).float()
    return F.normalize(flat - flat.mean(1, keepdim=True), dim=2)


PatchMaps = Callable[["Sequence[Source]"], Tensor]
Pair = tuple[int, int]
KEPT = 2000
"""Feature maps that are kept, some 90 KB each; older ones are made anew from their images."""


def patch_maps_of(model: AnyModel) -> PatchMaps | None:
    """Feature maps of images by the model that made the descriptors; None where it does not show its
    stages.
    """
    if isinstance(model, ExportedModel) or (isinstance(model, PlaceModel) and model.shows_patches):
        return partial(embed_patches, model, model.preprocessing)
    return None


class CellCheck:
    """Agreement of frames with earlier ones; every pair is compared once."""

    def __init__(
        self, patch_maps: PatchMaps, known: Mapping[Pair, float] | None = None, *, kept: int = KEPT
    ) -> None:
        """``known`` are pairs of (frame, earlier frame) that were compared before."""
        self.patch_maps = patch_maps
        self.known: dict[Pair, float] = dict(known or {})
        self.images: list[Any] = []
        """Of all frames, None where unknown; give paths rather than arrays for a long drive."""
        self._map = lru_cache(maxsize=kept)(self._made)

    def agreement(self, number: int, matches: Sequence[int]) -> Scores:
        """Share of cells of a frame that agree with each of some earlier ones, in [0, 1]."""
        missing = [match for match in matches if (number, match) not in self.known]
        if missing:
            others = torch.stack([self._map(match) for match in missing])
            found = patch_agreement(self._map(number)[None].expand_as(others), others)
            pairs = [(number, match) for match in missing]
            self.known |= dict(zip(pairs, found.double().cpu().tolist(), strict=True))
        return np.array([self.known[number, match] for match in matches])

    def _made(self, number: int) -> Tensor:
        if self.images[number] is None:
            raise KappaPlaceError(
                f"Comparing cells needs the image of every frame, number {number} has none; give it, or "
                f"leave the comparison out (verify=0, with a calibration that was fitted so)."
            )
        return self.patch_maps([self.images[number]])[0]
