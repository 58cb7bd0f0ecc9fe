"""Patches: do query and match show the same things in the same arrangement, as the encoder itself sees it?

uncertainty = 1 − agreement, the share of cells of two feature maps that are each other's nearest and agree
on one shift (`kappaplace.uncertainty.patch_matching`). Patch margin asks the same of the runner-up: the best
agreement with a match of another place among the first ten, minus that with the top match. Needs no second
network and no keypoints, only the images once more.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.needs import IMAGES, NEIGHBOURHOOD, PATCH_MAPS
from kappaplace.uncertainty.patch_matching import patch_agreement

DEEP = 10
"""Matches that compete for the patch margin; deeper ones hardly ever agree."""
AGREEMENT = "patch agreement"
"""Where an evidence keeps what was computed, or known before."""
COMPARED = "matches compared"
"""Where an evidence says how many of its first matches compete, if fewer than all: more may be shown."""
QUERIES = 16  # at a time: their maps and those of their matches are in memory together


def agreements(evidence: Evidence, count: int) -> Scores:
    """Agreement of each query with its first ``count`` matches, N×count; computed once an evidence."""
    known = evidence.memo.get(AGREEMENT)
    if known is None or known.shape[1] < count:
        rows = range(0, len(evidence.matches.indices), QUERIES)
        parts = [_block(evidence, slice(start, start + QUERIES), count) for start in rows]
        known = evidence.memo[AGREEMENT] = np.concatenate(parts)
    return known[:, :count]


def _block(evidence: Evidence, rows: slice, count: int) -> Scores:
    assert evidence.patch_maps is not None
    assert evidence.query_images is not None
    assert evidence.reference_images is not None
    indices = evidence.matches.indices[rows, :count]
    needed, place = np.unique(indices, return_inverse=True)
    queries = range(*rows.indices(len(evidence.matches.indices)))
    asked = evidence.patch_maps([evidence.query_images[i] for i in queries])
    known = _reference_maps(evidence, needed)
    of_match = known[torch.from_numpy(place.reshape(indices.shape))]
    columns = [patch_agreement(asked, of_match[:, rank]) for rank in range(indices.shape[1])]
    return torch.stack(columns, 1).double().cpu().numpy()


def _reference_maps(evidence: Evidence, rows: NDArray[np.int64]) -> Tensor:
    """Neighbouring queries share their matches, so the last maps are kept."""
    assert evidence.patch_maps is not None
    assert evidence.reference_images is not None
    kept: dict[int, Tensor] = evidence.memo.get("reference maps", {})
    missing = [row for row in rows.tolist() if row not in kept]
    if missing:
        made = evidence.patch_maps([evidence.reference_images[row] for row in missing])
        kept |= dict(zip(missing, made, strict=True))
    evidence.memo["reference maps"] = {row: kept[row] for row in rows.tolist()}
    return torch.stack([kept[row] for row in rows.tolist()])


def _query(evidence: Evidence) -> Scores:
    return 1.0 - agreements(evidence, _competing(evidence))[:, 0]


def _match(evidence: Evidence) -> Scores:
    return 1.0 - agreements(evidence, evidence.matches.indices.shape[1])


def _competing(evidence: Evidence) -> int:
    return min(DEEP, evidence.matches.indices.shape[1], evidence.memo.get(COMPARED, DEEP))


def _margin(evidence: Evidence) -> Scores:
    count = _competing(evidence)
    found = agreements(evidence, count)
    near = evidence.is_near(evidence.top[:, None], evidence.matches.indices[:, :count])
    return np.where(near, 0.0, found).max(axis=1) - found[:, 0]


PATCHES = Score("patches", "Patches", _query, _match, needs=(IMAGES, PATCH_MAPS))
PATCH_MARGIN = Score(
    "patch-margin", "Patch margin", _margin, needs=(IMAGES, PATCH_MAPS, NEIGHBOURHOOD), one_sided=False
)
