"""TLD: three training-free scores from the K similarities alone, in a reading of our own.

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

import numpy as np

from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.needs import at_least


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
