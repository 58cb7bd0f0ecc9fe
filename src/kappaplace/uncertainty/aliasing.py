"""Aliasing: whether the query is closer to its match than the match is to the rest of its own map.

uncertainty = a(R_1) − s_1, where a(R) is the highest similarity of reference R to references outside its
neighbourhood: how easily this place is confused, known from the map alone. Where the map has no other place,
a is −1, the far end of the sphere.
"""

import numpy as np

from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.margin import NOTHING_OUTSIDE
from kappaplace.uncertainty.needs import NEIGHBOURHOOD, REFERENCE_DESCRIPTORS


def _query(evidence: Evidence) -> Scores:
    alias = evidence.best_alias
    return np.where(np.isneginf(alias), NOTHING_OUTSIDE, alias) - evidence.cosines[:, 0]


ALIASING = Score(
    "aliasing", "Aliasing", _query, needs=(REFERENCE_DESCRIPTORS, NEIGHBOURHOOD), one_sided=False
)
