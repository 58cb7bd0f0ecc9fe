"""Scores from the list of matches: their similarities, and how many patches of their images agree.

**L2** is the distance of query and match, the baseline that every system has. **Cosine** is 1 − similarity,
half of the squared L2 distance of unit vectors. **PA** is the ratio d1/d2 of the distances to the best and
the second match.

**TLD** are three scores based on "Through the lens of doubt" (arXiv 2510.13464): similarity distribution,
ratio spread and statistical uncertainty. The first measures how well the top match is separated, the second
how much other matches compete, and the third combines both. The paper has no formulas, so these are our own,
and results may differ from published ones. With similarities s_1 ≥ … ≥ s_K, and mean m and standard deviation
σ of s_2 … s_K:

- similarity distribution: σ/(σ + s_1 − m) = 1/(1 + z), z = (s_1 − m)/σ;
- ratio spread: mean of (1 + s_i)/(1 + s_1) over i = 2 … K, cosines shifted so that no ratio is negative;
- statistical uncertainty: the geometric mean of the two.

All are between 0 and 1, and 1 if the top match is not better than the others.

**Patches** is 1 − agreement: how many patches of two feature maps of the encoder are mutual nearest neighbors
and agree on one shift, weighted by their similarity (`kappaplace.retrieval.agreement`). **Patch margin** is
the best agreement with a match of another place among the first ten, minus the agreement with the top match.
Both need the images, but no second network and no keypoints.
"""

from __future__ import annotations

import numpy as np

from kappaplace.uncertainty.base import IMAGES, NEIGHBORHOOD, PATCH_MAPS, Evidence, Score, Scores, at_least

L2 = Score("l2", "L2", lambda e: e.distances[:, 0], lambda e: e.distances)
COSINE = Score("cosine", "Cosine", lambda e: 1.0 - e.cosines[:, 0], lambda e: 1.0 - e.cosines)


def _pa(evidence: Evidence) -> Scores:
    first, second = evidence.distances[:, 0], evidence.distances[:, 1]
    # Two references at distance 0 cannot be distinguished, so the ratio is 1.
    return np.divide(first, second, out=np.ones_like(first), where=second > 0)


PA = Score("pa", "PA", _pa, needs=(at_least(2),))


def _similarity_distribution(evidence: Evidence) -> Scores:
    top, others = evidence.cosines[:, 0], evidence.cosines[:, 1:]
    spread = others.std(axis=1)
    gap = np.maximum(top - others.mean(axis=1), 0.0)
    # If all similarities are equal, the top match is not separated and the score is 1.
    return np.divide(spread, spread + gap, out=np.ones_like(spread), where=spread + gap > 0)


def _ratio_spread(evidence: Evidence) -> Scores:
    top, others = 1.0 + evidence.cosines[:, 0], 1.0 + evidence.cosines[:, 1:].mean(axis=1)
    return np.divide(others, top, out=np.ones_like(top), where=top > 0)


def _statistical_uncertainty(evidence: Evidence) -> Scores:
    return np.sqrt(np.maximum(_similarity_distribution(evidence) * _ratio_spread(evidence), 0.0))


# Three matches are required, because a single other match has no standard deviation.
TLD_DISTRIBUTION = Score(
    "tld-distribution", "TLD distribution", _similarity_distribution, needs=(at_least(3),), one_sided=False
)
TLD_RATIO_SPREAD = Score(
    "tld-ratio-spread", "TLD ratio spread", _ratio_spread, needs=(at_least(2),), one_sided=False
)
TLD_STATISTICAL = Score(
    "tld-statistical", "TLD statistical", _statistical_uncertainty, needs=(at_least(3),), one_sided=False
)


def _patch_margin(evidence: Evidence) -> Scores:
    agreement = evidence.competing_agreement
    competing = evidence.matches.indices[:, : agreement.shape[1]]
    near = evidence.references.near(evidence.top[:, None], competing)
    return np.where(near, 0.0, agreement).max(axis=1) - agreement[:, 0]


PATCHES = Score(
    "patches",
    "Patches",
    lambda e: 1.0 - e.competing_agreement[:, 0],
    lambda e: 1.0 - e.match_agreement,
    needs=(IMAGES, PATCH_MAPS),
)
PATCH_MARGIN = Score(
    "patch-margin", "Patch margin", _patch_margin, needs=(IMAGES, PATCH_MAPS, NEIGHBORHOOD), one_sided=False
)
