"""Place-aware margin: how far the top match stands above the best reference of any other place.

uncertainty = s_outside − s_1, never above 0, where s_outside is the highest similarity outside the
neighbourhood of the top match. PA compares with the second image, which mostly shows the same place; this
compares with the next place. Where the map has no other place, s_outside is −1, the far end of the sphere.
"""

import numpy as np

from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.needs import NEIGHBOURHOOD, OUTSIDE

NOTHING_OUTSIDE = -1.0


def _query(evidence: Evidence) -> Scores:
    outside = evidence.best_outside
    return np.where(np.isneginf(outside), NOTHING_OUTSIDE, outside) - evidence.cosines[:, 0]


MARGIN = Score("margin", "Margin", _query, needs=(NEIGHBOURHOOD, OUTSIDE), one_sided=False)
