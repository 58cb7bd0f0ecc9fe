"""Geometric verification: counts the local features of query and match that fit one camera motion.

The uncertainty is 1/(1 + n), which is 1 if no match fits and close to 0 if many do. Here n is the number of
SIFT matches that fit one fundamental matrix, found by RANSAC. Matches are mutual nearest neighbors that pass
the ratio test. It is accurate but slow: 0.06 s per pair of images with 320 pixels on one core. It checks only
the top match of each query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.uncertainty.base import IMAGES, OPENCV, Evidence, Score, Scores

if TYPE_CHECKING:
    from kappaplace.data.images import Source


Numbers: TypeAlias = NDArray[np.float32] | NDArray[np.uint8]

CACHED_IMAGES = 2_000  # with 1,000 features of 128 bytes each, these take a quarter of a gigabyte
FEWEST_MATCHES = 8  # seven matches always fit a fundamental matrix


@dataclass(frozen=True)
class Verification:
    """Settings for comparing two images; the defaults suit street images of any size."""

    max_side: int = 640
    """Largest side of an image in pixels; larger images are reduced."""
    features: int = 1000
    """Maximum number of features per image; the strongest are used."""
    ratio: float = 0.8
    """Largest ratio of the distances to the best and the second best match, for Lowe's test."""
    threshold: float = 3.0
    """Maximum distance between a point and its epipolar line, in pixels of the reduced image."""
    confidence: float = 0.999
    """Probability that RANSAC tries at least one sample without outliers."""
    seed: int = 0


class Features(NamedTuple):
    """Local features of one image."""

    points: NDArray[np.float32]
    """Positions in pixels, n×2."""
    descriptors: NDArray[np.float32] | NDArray[np.uint8]
    """SIFT descriptors, n×128, as bytes."""


Lookup: TypeAlias = Callable[[int], Features]
"""Function that returns the features of an image by its number."""


def cached_features(image: Callable[[int], Source], settings: Verification, cached: int) -> Lookup:
    """Return a function that computes features on first use, and caches those of the latest images.

    Args:
        image: Function that returns an image by its number.
        settings: Settings of the features.
        cached: Number of images whose features are cached.

    Returns:
        The function.
    """
    return lru_cache(maxsize=cached)(lambda number: extract(image(number), settings))


def extract(source: Source, settings: Verification) -> Features:
    """Return the SIFT features of the gray image, reduced to ``settings.max_side``."""
    import cv2

    from kappaplace.data.images import decode

    side = settings.max_side
    image = decode(source, target=(side, side))
    scale = side / max(image.size)
    if scale < 1.0:
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.BILINEAR)
    sift = cv2.SIFT.create(nfeatures=settings.features)
    keypoints, descriptors = sift.detectAndCompute(np.array(image.convert("L")), None)
    if descriptors is None:  # a blank image
        return Features(np.empty((0, 2), np.float32), np.empty((0, 128), np.uint8))
    points = np.array([keypoint.pt for keypoint in keypoints], np.float32)
    return Features(points, np.rint(descriptors).clip(0, 255).astype(np.uint8))


def count_inliers(a: Features, b: Features, settings: Verification) -> int:
    """Return the number of feature matches that fit one fundamental matrix (RANSAC); 0 if too few match."""
    import cv2

    first, second = _mutual_matches(a, b, settings.ratio)
    if len(first) < FEWEST_MATCHES:
        return 0
    cv2.setRNGSeed(settings.seed)  # set for every pair, so that earlier pairs do not change the result
    _, mask = cv2.findFundamentalMat(
        a.points[first], b.points[second], cv2.FM_RANSAC, settings.threshold, settings.confidence
    )
    inliers = 0 if mask is None else int(np.count_nonzero(mask))
    return inliers if inliers >= FEWEST_MATCHES else 0


def _mutual_matches(a: Features, b: Features, ratio: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return indices of mutual nearest neighbors that pass the ratio test of a."""
    if len(a.points) < 2 or len(b.points) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    squared = _squared_distances(a.descriptors, b.descriptors)
    nearest_two = np.argpartition(squared, 1, axis=1)[:, :2]
    low = np.take_along_axis(squared, nearest_two, axis=1)
    best = np.take_along_axis(nearest_two, low.argmin(axis=1)[:, None], axis=1)[:, 0]
    rows = np.arange(len(best))
    mutual = squared.argmin(axis=0)[best] == rows
    distinct = low.min(axis=1) < ratio**2 * low.max(axis=1)
    pairs = rows[mutual & distinct]
    return pairs, best[pairs]


def _squared_distances(a: Numbers, b: Numbers) -> NDArray[np.float32]:
    """Return all squared distances, computed by one matrix product. Integers below 2²⁴ are exact in
    float32."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    lengths = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)
    return lengths - 2.0 * (a @ b.T)


# SIFT is slow, so results are cached as long as the evidence exists.
_COUNTED: WeakKeyDictionary[Evidence, dict[tuple[int, Verification], NDArray[np.int64]]] = WeakKeyDictionary()
_STORES: WeakKeyDictionary[Evidence, dict[Verification, tuple[Lookup, Lookup]]] = WeakKeyDictionary()


def geometric(settings: Verification | None = None, *, name: str = "geometric") -> Score:
    """Return the score of geometric verification with these settings."""
    options = settings or Verification()

    def query(evidence: Evidence) -> Scores:
        return _inverse(_inliers(evidence, 0, options))

    def match(evidence: Evidence) -> Scores:
        columns = [_inliers(evidence, rank, options) for rank in range(evidence.matches.indices.shape[1])]
        return _inverse(np.stack(columns, axis=1))

    label = "Geometric" if name == "geometric" else name
    return Score(name, label, query, match, needs=(IMAGES, OPENCV))


def _inverse(inliers: NDArray[np.int64]) -> Scores:
    return 1.0 / (1.0 + inliers.astype(np.float64))


def _inliers(evidence: Evidence, rank: int, settings: Verification) -> NDArray[np.int64]:
    """Return the inliers of each query and its match of this rank (N); counted once per evidence."""
    images, references = evidence.queries.images, evidence.references
    assert images is not None  # guaranteed, because `IMAGES` is a need of this score
    counted = _COUNTED.setdefault(evidence, {})
    if (rank, settings) not in counted:
        stores = _STORES.setdefault(evidence, {})
        if settings not in stores:
            stores[settings] = (
                cached_features(images.__getitem__, settings, CACHED_IMAGES),
                cached_features(lambda r: references.images(np.array([r]))[0], settings, CACHED_IMAGES),
            )
        own, other = stores[settings]
        rows = enumerate(evidence.matches.indices[:, rank].tolist())
        counted[rank, settings] = np.array([count_inliers(own(i), other(r), settings) for i, r in rows])
    return counted[rank, settings]


GEOMETRIC = geometric()


class GeometricCheck:
    """Counts the inliers of pairs of images, and caches the features of the latest images.

    A pair takes a few hundredths of a second, so call it last, for proposals that passed all other checks.
    Different places that look the same pass this check, too.
    """

    def __init__(self, settings: Verification | None = None, *, cached: int = 256) -> None:
        self.settings = settings or Verification()
        self._images: dict[int, Source] = {}
        self._features = cached_features(self._images.__getitem__, self.settings, cached)

    def remember(self, number: int, image: Source | None) -> None:
        """Register the image of a frame; pass paths instead of arrays on a long drive, to save memory."""
        if image is not None:
            self._images[number] = image

    def inliers(self, a: int, b: int) -> int | None:
        """Return the number of inliers of two frames; None if the image of one is unknown."""
        if a not in self._images or b not in self._images:
            return None
        return count_inliers(self._features(a), self._features(b), self.settings)
