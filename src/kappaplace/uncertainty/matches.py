"""L2: distance of the query to its match. The baseline that every system already has.

Cosine: one minus the similarity of query and match, half the squared L2 distance of unit vectors.

PA-score: how close the second neighbour comes to the first, d1/d2.

TLD: three training-free scores from the K similarities alone, in a reading of our own.

"Through the lens of doubt" (arXiv 2510.13464) names three quantities: similarity distribution (how the top
score is separated from the other candidates), ratio spread (how the top-scoring places compete) and
statistical uncertainty (both combined). We had its description, not its formulas; these are ours, so
published numbers need not come out. With similarities s_1 ≥ … ≥ s_K, and mean m and standard deviation σ
of s_2 … s_K:

- similarity distribution: σ/(σ + s_1 − m) = 1/(1 + z), z = (s_1 − m)/σ;
- ratio spread: mean of (1 + s_i)/(1 + s_1) over i = 2 … K, cosines shifted so that no ratio is negative;
- statistical uncertainty: the geometric mean of the two.

All lie in [0, 1]; 1 where the top match is no better than the others.
"""

from __future__ import annotations

import numpy as np

from kappaplace.uncertainty.base import Evidence, Score, Scores, at_least


def _l2(evidence: Evidence) -> Scores:
    return evidence.distances[:, 0]


def _l2_of_matches(evidence: Evidence) -> Scores:
    return evidence.distances


L2 = Score("l2", "L2", _l2, _l2_of_matches)


def _cosine(evidence: Evidence) -> Scores:
    return 1.0 - evidence.cosines[:, 0]


def _cosine_of_matches(evidence: Evidence) -> Scores:
    return 1.0 - evidence.cosines


COSINE = Score("cosine", "Cosine", _cosine, _cosine_of_matches)


def _pa(evidence: Evidence) -> Scores:
    first, second = evidence.distances[:, 0], evidence.distances[:, 1]
    # Two references at distance zero cannot be told apart at all: the ratio's limit is 1.
    return np.divide(first, second, out=np.ones_like(first), where=second > 0)


PA = Score("pa", "PA", _pa, needs=(at_least(2),))


def _similarity_distribution(evidence: Evidence) -> Scores:
    top, others = evidence.cosines[:, 0], evidence.cosines[:, 1:]
    spread = others.std(axis=1)
    gap = np.maximum(top - others.mean(axis=1), 0.0)
    # All equal: nothing is separated from anything.
    return np.divide(spread, spread + gap, out=np.ones_like(spread), where=spread + gap > 0)


def _ratio_spread(evidence: Evidence) -> Scores:
    top, others = 1.0 + evidence.cosines[:, 0], 1.0 + evidence.cosines[:, 1:].mean(axis=1)
    return np.divide(others, top, out=np.ones_like(top), where=top > 0)


def _statistical_uncertainty(evidence: Evidence) -> Scores:
    return np.sqrt(np.maximum(_similarity_distribution(evidence) * _ratio_spread(evidence), 0.0))


# Three matches: the deviation of one other candidate is nothing.
TLD_DISTRIBUTION = Score(
    "tld-distribution", "TLD distribution", _similarity_distribution, needs=(at_least(3),), one_sided=False
)
TLD_RATIO_SPREAD = Score(
    "tld-ratio-spread", "TLD ratio spread", _ratio_spread, needs=(at_least(2),), one_sided=False
)
TLD_STATISTICAL = Score(
    "tld-statistical", "TLD statistical", _statistical_uncertainty, needs=(at_least(3),), one_sided=False
)
