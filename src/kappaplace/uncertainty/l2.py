"""L2: distance of the query to its match. The baseline that every system already has."""

from kappaplace.uncertainty.base import Evidence, Score, Scores


def _query(evidence: Evidence) -> Scores:
    return evidence.distances[:, 0]


def _match(evidence: Evidence) -> Scores:
    return evidence.distances


L2 = Score("l2", "L2", _query, _match)
