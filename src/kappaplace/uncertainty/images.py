"""Patch matching: whether query and match show the same things in the same arrangement.

*Patches* is 1 − agreement: the fraction of patches of two feature maps of the encoder that are mutual nearest
neighbors and agree on one shift (`kappaplace.retrieval.patches`). *Patch margin* is the best agreement with a
match of another place among the first ten, minus the agreement with the top match. Both need the images, but
no second network and no keypoints.
"""

from __future__ import annotations

import numpy as np

from kappaplace.uncertainty.base import IMAGES, NEIGHBORHOOD, PATCH_MAPS, Evidence, Score, Scores


def _query(evidence: Evidence) -> Scores:
    return 1.0 - evidence.competing_agreement[:, 0]


def _match(evidence: Evidence) -> Scores:
    return 1.0 - evidence.match_agreement


def _margin(evidence: Evidence) -> Scores:
    agreement = evidence.competing_agreement
    competing = evidence.matches.indices[:, : agreement.shape[1]]
    near = evidence.references.near(evidence.top[:, None], competing)
    return np.where(near, 0.0, agreement).max(axis=1) - agreement[:, 0]


PATCHES = Score("patches", "Patches", _query, _match, needs=(IMAGES, PATCH_MAPS))
PATCH_MARGIN = Score(
    "patch-margin", "Patch margin", _margin, needs=(IMAGES, PATCH_MAPS, NEIGHBORHOOD), one_sided=False
)
