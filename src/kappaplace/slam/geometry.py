"""The optional look at the images themselves: local features that one camera motion explains."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kappaplace.uncertainty.local_features import Features, Verification, count_inliers, extract

if TYPE_CHECKING:
    from kappaplace.data.images import Source


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
