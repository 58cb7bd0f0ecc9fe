"""SIFT features of single images, and how many of them two images share under one epipolar geometry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

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
