"""Geometric verification: do query and match share local features that one camera motion explains?

uncertainty = 1/(1 + n), where n counts the SIFT matches (mutual nearest, ratio test) that RANSAC finds to fit
one fundamental matrix: 1 where nothing fits, towards 0 the more does. The classic check of a retrieval,
thorough and dear: 0.06 s a pair of 320 pixels on one core. Of a query it looks at the top match only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.uncertainty.local_features import FeatureStore, Verification, count_inliers
from kappaplace.uncertainty.needs import IMAGES, OPENCV

if TYPE_CHECKING:
    from numpy.typing import NDArray

# SIFT is dear: what was counted for one evidence is kept as long as the evidence itself.
_COUNTED: WeakKeyDictionary[Evidence, dict[tuple[int, Verification], NDArray[np.int64]]] = WeakKeyDictionary()
_STORES: WeakKeyDictionary[Evidence, dict[Verification, tuple[FeatureStore, FeatureStore]]] = (
    WeakKeyDictionary()
)


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
    images, references = evidence.queries.images, evidence.references
    assert images is not None  # a need of this score
    counted = _COUNTED.setdefault(evidence, {})
    if (rank, settings) not in counted:
        stores = _STORES.setdefault(evidence, {})
        if settings not in stores:
            stores[settings] = (
                FeatureStore(lambda i: images[i], settings),
                FeatureStore(lambda r: references.images(np.array([r]))[0], settings),
            )
        own, other = stores[settings]
        rows = enumerate(evidence.matches.indices[:, rank].tolist())
        counted[rank, settings] = np.array([count_inliers(own.of(i), other.of(r), settings) for i, r in rows])
    return counted[rank, settings]


GEOMETRIC = geometric()
