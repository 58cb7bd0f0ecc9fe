"""PA-score: how close the second neighbour comes to the first, d1/d2."""

import numpy as np

from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.needs import at_least


def _query(evidence: Evidence) -> Scores:
    first, second = evidence.distances[:, 0], evidence.distances[:, 1]
    # Two references at distance zero cannot be told apart at all: the ratio's limit is 1.
    return np.divide(first, second, out=np.ones_like(first), where=second > 0)


PA = Score("pa", "PA", _query, needs=(at_least(2),))
