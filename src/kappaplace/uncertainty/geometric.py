"""Geometric verification: do query and match share local features that one camera motion explains?

uncertainty = 1/(1 + n), where n counts the SIFT matches (mutual nearest, ratio test) that RANSAC finds to fit
one fundamental matrix: 1 where nothing fits, towards 0 the more does. The classic check of a retrieval,
thorough and dear: 0.06 s a pair of 320 pixels on one core. Of a query it looks at the top match only.

SIFT features of single images, and how many of them two images share under one epipolar geometry.

The optional look at the images themselves: local features that one camera motion explains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.uncertainty.base import IMAGES, OPENCV, Evidence, Score, Scores

if TYPE_CHECKING:
    from kappaplace.data.images import Source


CACHED_IMAGES = 2_000  # of 1,000 features with 128 bytes each: a quarter of a gigabyte
FEWEST_MATCHES = 8  # seven matches always fit a fundamental matrix: only the eighth says anything


@dataclass(frozen=True)
class Verification:
    """How two images are compared; the defaults suit street images of any size."""

    max_side: int = 640
    """Larger images are shrunk until their longer side has so many pixels; small ones stay."""
    features: int = 1000
    """The strongest so many of an image."""
    ratio: float = 0.8
    """Lowe's test: the best match must be this much closer than the second best."""
    threshold: float = 3.0
    """Pixels (after shrinking) between a point and its epipolar line."""
    confidence: float = 0.999
    """Of RANSAC to have drawn one sample without outliers."""
    seed: int = 0


class Features(NamedTuple):
    """Of one image."""

    points: NDArray[np.float32]
    """Pixels, n×2."""
    descriptors: NDArray[np.float32] | NDArray[np.uint8]
    """SIFT, n×128; kept as the bytes they are."""


class FeatureStore:
    """Features of listed images, each computed when first asked for; the latest are kept."""

    def __init__(self, image: Callable[[int], Source], settings: Verification) -> None:
        self._image = image
        self._settings = settings
        self.of = lru_cache(maxsize=CACHED_IMAGES)(self._extract)

    def _extract(self, index: int) -> Features:
        return extract(self._image(index), self._settings)


def extract(source: Source, settings: Verification) -> Features:
    """SIFT on the grey image, shrunk to the stated size."""
    import cv2

    from kappaplace.data.images import decode

    side = settings.max_side
    picture = decode(source, target=(side, side))
    scale = side / max(picture.size)
    if scale < 1.0:
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    grey = np.array(picture.convert("L"))
    sift = cv2.SIFT.create(nfeatures=settings.features)
    keypoints, descriptors = sift.detectAndCompute(grey, None)
    if descriptors is None:  # a blank image
        return Features(np.empty((0, 2), np.float32), np.empty((0, 128), np.uint8))
    points = np.array([keypoint.pt for keypoint in keypoints], np.float32)
    return Features(points, np.rint(descriptors).clip(0, 255).astype(np.uint8))


def count_inliers(a: Features, b: Features, settings: Verification) -> int:
    """Matches of a in b that agree on one fundamental matrix, found by RANSAC; 0 where too few match."""
    import cv2

    first, second = _mutual_matches(a, b, settings.ratio)
    if len(first) < FEWEST_MATCHES:
        return 0
    cv2.setRNGSeed(settings.seed)  # before every pair: the count does not depend on what came before
    _, mask = cv2.findFundamentalMat(
        a.points[first], b.points[second], cv2.FM_RANSAC, settings.threshold, settings.confidence
    )
    inliers = 0 if mask is None else int(np.count_nonzero(mask))
    return inliers if inliers >= FEWEST_MATCHES else 0


def _mutual_matches(a: Features, b: Features, ratio: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs that are each other's nearest and pass the ratio test seen from a."""
    if len(a.points) < 2 or len(b.points) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    squared = _squared_distances(a.descriptors, b.descriptors)
    nearest_two = np.argpartition(squared, 1, axis=1)[:, :2]
    low = np.take_along_axis(squared, nearest_two, axis=1)
    best = np.take_along_axis(nearest_two, low.argmin(axis=1)[:, None], axis=1)[:, 0]
    rows = np.arange(len(best))
    mutual = squared.argmin(axis=0)[best] == rows
    distinct = low.min(axis=1) < ratio**2 * low.max(axis=1)
    chosen = rows[mutual & distinct]
    return chosen, best[chosen]


def _squared_distances(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float32]:
    """All pairs by one product; integers below 2²⁴, hence exact in float32."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    lengths = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)
    return lengths - 2.0 * (a @ b.T)


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


class GeometricCheck:
    """Counts inliers of two images; features of the latest images are kept.

    Dear (some hundredths of a second a pair), so it is asked last, of proposals that passed everything else.
    Images that repeat each other pass it as well: it is no remedy for twins.
    """

    def __init__(self, settings: Verification | None = None, *, kept: int = 256) -> None:
        self.settings = settings or Verification()
        self._images: dict[int, Source] = {}
        self._features = lru_cache(maxsize=kept)(self._extract)

    def remember(self, number: int, image: Source | None) -> None:
        """Where the image of a frame is; give paths rather than arrays for a long drive."""
        if image is not None:
            self._images[number] = image

    def inliers(self, a: int, b: int) -> int | None:
        """Of two frames; None where an image is not known."""
        if a not in self._images or b not in self._images:
            return None
        return count_inliers(self._features(a), self._features(b), self.settings)

    def _extract(self, number: int) -> Features:
        return extract(self._images[number], self.settings)
