"""Variance of the query's own descriptor, as its model states it: STUN, BTL, GNLL and MC-dropout alike.

Each of these puts one scalar a descriptor into ``Embeddings.variance`` (the mean σ² of STUN's student, BTL's
radius, the spread over dropout passes …); the score is that scalar and nothing else.
"""

from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.needs import QUERY_VARIANCE


def _query(evidence: Evidence) -> Scores:
    return evidence.query_variance


VARIANCE = Score("variance", "Variance", _query, needs=(QUERY_VARIANCE,), one_sided=False)
