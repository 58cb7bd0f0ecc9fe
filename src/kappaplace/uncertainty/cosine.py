"""Cosine: one minus the similarity of query and match, half the squared L2 distance of unit vectors."""

from kappaplace.uncertainty.base import Evidence, Score, Scores


def _query(evidence: Evidence) -> Scores:
    return 1.0 - evidence.cosines[:, 0]


def _match(evidence: Evidence) -> Scores:
    return 1.0 - evidence.cosines


COSINE = Score("cosine", "Cosine", _query, _match)
