"""Geometric verification: do query and match share local features that one camera motion explains?

uncertainty = 1/(1 + n), where n counts the SIFT matches (mutual nearest, ratio test) that RANSAC finds to fit
one fundamental matrix: 1 where nothing fits, towards 0 the more does. The classic check of a retrieval,
thorough and dear: 0.06 s a pair of 320 pixels on one core. Of a query it looks at the top match only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.local_features import FeatureStore, Verification, count_inliers
from kappaplace.uncertainty.needs import IMAGES, OPENCV

if TYPE_CHECKING:
    from numpy.typing import NDArray


def geometric(settings: Verification | None = None, *, name: str = "geometric") -> Score:
    """Geometric verification with these settings."""
    chosen = settings or Verification()

    def query(evidence: Evidence) -> Scores:
        return _inverse(_inliers(evidence, 0, chosen))

    def match(evidence: Evidence) -> Scores:
        columns = [_inliers(evidence, rank, chosen) for rank in range(evidence.matches.indices.shape[1])]
        return _inverse(np.stack(columns, axis=1))

    label = "Geometric" if name == "geometric" else name
    return Score(name, label, query, match, needs=(IMAGES, OPENCV))


def _inverse(inliers: NDArray[np.int64]) -> Scores:
    return 1.0 / (1.0 + inliers.astype(np.float64))


def _inliers(evidence: Evidence, rank: int, settings: Verification) -> NDArray[np.int64]:
    """Inliers of each query and its match of this rank, N; counted once an evidence."""
    key = ("inliers", rank, settings)
    if key not in evidence.memo:
        query_features, reference_features = _stores(evidence, settings)
        references = evidence.matches.indices[:, rank].tolist()
        counts = [
            count_inliers(query_features.of(i), reference_features.of(r), settings)
            for i, r in enumerate(references)
        ]
        evidence.memo[key] = np.array(counts, np.int64)
    return evidence.memo[key]


def _stores(evidence: Evidence, settings: Verification) -> tuple[FeatureStore, FeatureStore]:
    key = ("local features", settings)
    if key not in evidence.memo:
        assert evidence.query_images is not None  # a need of this score
        assert evidence.reference_images is not None
        evidence.memo[key] = (
            FeatureStore(evidence.query_images, settings),
            FeatureStore(evidence.reference_images, settings),
        )
    return evidence.memo[key]


GEOMETRIC = geometric()
