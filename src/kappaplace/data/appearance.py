"""Describe the appearance of an image by seven numbers, and find images that are copies of each other.

Seven numbers are enough to notice a lens cap, a screenshot or noise. They are computed on a thumbnail of
64×64 pixels, which takes about three milliseconds per image.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from kappaplace.checks import Bools, Floats
from kappaplace.data.images import Source, decode
from kappaplace.errors import KappaPlaceError

APPEARANCE = (
    "brightness",
    "contrast",
    "horizontal detail",
    "vertical detail",
    "fine detail",
    "variety of tones",
    "color",
)
"""Names of the seven numbers, in the order of the columns."""
SIDE = 64
TONES = 32
LUMA = np.array([0.299, 0.587, 0.114])
COPY = 0.95
"""Smallest correlation of two copies. Re-encoded photos have 0.985 or more, and the same place in another
drive has 0.83 or less. Neighboring frames of one drive have 0.96 in the median."""
TWIN_SECONDS = 60.0
"""Images taken within this many seconds of a reference are not independent of it."""
FLAT = 1e-6
LEAST = 1e-3
"""Constant added to detail and color before the logarithm, so that a flat image has a finite value."""


def appearance(images: Sequence[Source]) -> Floats:
    """Measure the appearance of images.

    Args:
        images: Paths, encoded bytes, Pillow images or arrays.

    Returns:
        One row per image, N×7 in the order of `APPEARANCE`. Brightness and contrast are in [0, 1], gradients
        and saturation are logarithms, and the variety of tones is an entropy in nats.
    """
    return np.array([_measured(image) for image in images]).reshape(-1, len(APPEARANCE))


def copies(images: Sequence[Source], others: Sequence[Source]) -> Bools:
    """Return which images are near-copies of another image: the same photo, or the next frame of a drive.

    Args:
        images: N images.
        others: Image to compare each one with, N; an image that cannot be read is not a copy.

    Returns:
        Whether the correlation of the thumbnails is at least `COPY`, N.
    """
    return np.array([_correlation(a, b) >= COPY for a, b in zip(images, others, strict=True)], bool)


def taken_together(times: Floats, others: Floats) -> Bools:
    """Return which times are at most `TWIN_SECONDS` from one of the others.

    Args:
        times: N times in seconds; NaN if unknown.
        others: Times of the references.

    Returns:
        One boolean per time; False if it is unknown.
    """
    sorted_times = np.sort(others[np.isfinite(others)])
    if not len(sorted_times):
        return np.zeros(len(times), bool)
    at = np.searchsorted(sorted_times, times)
    gaps = [np.abs(sorted_times[np.clip(at + step, 0, len(sorted_times) - 1)] - times) for step in (-1, 0)]
    return np.asarray(np.minimum(*gaps) <= TWIN_SECONDS)


def _correlation(first: Source, second: Source) -> float:
    try:
        a, b = (_gray(_thumbnail(image)) for image in (first, second))
    except KappaPlaceError:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / norm if norm > FLAT else 0.0


def _thumbnail(source: Source) -> Floats:
    small = decode(source, target=(SIDE, SIDE)).resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(small, np.float64) / 255


def _gray(color: Floats) -> Floats:
    return np.asarray(color @ LUMA)


def _measured(source: Source) -> list[float]:
    color = _thumbnail(source)
    gray = _gray(color)
    across, down = np.abs(np.diff(gray, axis=1)).mean(), np.abs(np.diff(gray, axis=0)).mean()
    inner = 4 * gray[1:-1, 1:-1] - gray[:-2, 1:-1] - gray[2:, 1:-1] - gray[1:-1, :-2] - gray[1:-1, 2:]
    frequency = np.histogram(gray, TONES, (0, 1))[0] / gray.size
    entropy = -float(np.sum(frequency * np.log(np.where(frequency > 0, frequency, 1))))
    saturation = float((color.max(2) - color.min(2)).mean())
    logs = np.log(np.array([across, down, np.abs(inner).mean(), saturation]) + LEAST)
    return [gray.mean(), gray.std(), *logs[:3], entropy, logs[3]]
