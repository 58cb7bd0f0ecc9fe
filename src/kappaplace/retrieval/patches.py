"""How many patches of two images show the same things in the same arrangement, and reranking by it.

Cells of two feature maps that are each other's nearest vote for the shift between them; the agreement is the
fraction of cells that agree on one shift, give or take ``tolerance`` cells. A check of geometry with what the
encoder has computed anyway: no keypoints, no second network.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.references import Queries, References
from kappaplace.types import Matches

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
