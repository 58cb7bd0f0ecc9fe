"""Pillow's resize in torch, bit-identical: images can be resized on the device that embeds them.

Resizing takes more than half of the time to read a photo, and almost none on a GPU. A result that differs by
even one grey level would make descriptors depend on the machine. This module therefore uses the arithmetic of
Pillow: along rows and along columns, weights in fixed point with 22 bits, each pass rounded to eight bits.
Which pass comes first depends on the version of Pillow and on the sizes, so it is found by a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from kappaplace.data.decoding import Source
from kappaplace.data.images import Preprocessing, Resize
from kappaplace.errors import KappaPlaceError

MOST_TIMES = 4
"""Largest ratio of pixels before and after; larger images are resized when they are decoded."""
_BITS = 22
_PIXELS_COMPARED = 4096


def _triangle(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x, a = np.abs(x), -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where((x >= -3) & (x < 3), np.sinc(x) * np.sinc(x / 3), 0)


_FILTERS: dict[str, tuple[float, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    "bilinear": (1, _triangle),
    "bicubic": (2, _cubic),
    "lanczos": (3, _lanczos),
}
"""Half the width of each filter, and the function of its weights."""
ROWS, COLUMNS = 2, 1  # axes of N×H×W×3 to resize along


def size_to_leave(paths: Sequence[Source], preprocessing: Preprocessing) -> tuple[int, int] | None:
    """Return the size of images that should be resized on the device, which is the size of the first image.

    Args:
        paths: The images.
        preprocessing: Preprocessing that resizes them.

    Returns:
        (height, width). None if the device should not resize them, because sizes differ, memory would be
        short, or the result would not be identical.
    """
    if preprocessing.fixed_size is None or not paths:
        return None
    try:
        first = preprocessing.decoded(paths[0])
    except KappaPlaceError:  # the loader reports it when it reads the image
        return None
    resizing = preprocessing.resizing(first.height, first.width)
    too_large = math.prod(resizing.before) > MOST_TIMES * math.prod(resizing.after)
    if resizing.before == resizing.after or too_large or axes_like_pillow(resizing) is None:
        return None
    return resizing.before


def resized(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Resize decoded images as `Preprocessing.resized` does.

    Args:
        images: uint8 N×3×H×W, of the size that `size_to_leave` returned, or of the output size.
        preprocessing: Preprocessing that resizes them.

    Returns:
        uint8 N×3×H×W on the same device.
    """
    resizing = preprocessing.resizing(images.shape[2], images.shape[3])
    if resizing.before == resizing.after:
        return images
    axes = axes_like_pillow(resizing)
    assert axes is not None  # checked by size_to_leave
    return resize(images, resizing, axes)


def resize(images: Tensor, resizing: Resize, axes: tuple[int, ...]) -> Tensor:
    """Resize images along one axis after the other.

    Args:
        images: uint8 N×3×H×W.
        resizing: Sizes, part and interpolation.
        axes: `ROWS` and `COLUMNS`, in the order of the passes.

    Returns:
        uint8 N×3×H×W in channels-last memory, on the same device.
    """
    pixels = images.permute(0, 2, 3, 1)
    (height, width), (new_height, new_width) = resizing.before, resizing.after
    left, top, right, bottom = resizing.box or (0, 0, width, height)
    along = {ROWS: (left, right, width, new_width), COLUMNS: (top, bottom, height, new_height)}
    for axis in axes:
        start, end, length, count = along[axis]
        if (start, end, length) != (0, count, count):
            taps = _taps((resizing.interpolation, length, start, end, count), pixels.device)
            pixels = _pass(pixels, axis, taps)
    return pixels.permute(0, 3, 1, 2)


@lru_cache(64)
def axes_like_pillow(resizing: Resize) -> tuple[int, ...] | None:
    """Return the order of axes for which `resize` equals Pillow on noise; None if neither order does."""
    if resizing.interpolation not in _FILTERS:
        return None
    # The order affects one pixel of a few dozen, so a few pixels might agree by chance.
    count = 1 + _PIXELS_COMPARED // math.prod(resizing.after)
    noise = np.random.default_rng(0).integers(0, 256, (count, *resizing.before, 3), np.uint8)
    method = Image.Resampling[resizing.interpolation.upper()]
    size = resizing.after[::-1]
    expected = [np.asarray(Image.fromarray(each).resize(size, method, resizing.box)) for each in noise]
    images = torch.from_numpy(noise).permute(0, 3, 1, 2)
    for axes in ((ROWS, COLUMNS), (COLUMNS, ROWS)):
        result = resize(images, resizing, axes).permute(0, 2, 3, 1).numpy()
        if np.array_equal(result, expected):
            return axes
    return None


@lru_cache(16)  # copied once: a copy per batch would wait for a busy GPU
def _taps(row: tuple[str, int, float, float, int], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    return [
        (torch.from_numpy(pixel).to(device), torch.from_numpy(weight).to(device))
        for pixel, weight in zip(*weighting(*row), strict=True)
    ]


def _pass(pixels: Tensor, axis: int, taps: list[tuple[Tensor, Tensor]]) -> Tensor:
    shape = [len(taps[0][0]) if i == axis else 1 for i in range(4)]
    total = None
    for pixel, weight in taps:
        tap = pixels.index_select(axis, pixel).to(torch.int32)
        tap *= weight.view(shape)
        total = tap if total is None else total.add_(tap)
    assert total is not None
    return total.add_(1 << (_BITS - 1)).bitwise_right_shift_(_BITS).clamp_(0, 255).to(torch.uint8)


def weighting(
    interpolation: str, length: int, start: float, end: float, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return which pixels of a row contribute to each new pixel, and their weights.

    Args:
        interpolation: "bilinear", "bicubic" or "lanczos".
        length: Number of pixels in the row.
        start: Start of the part to resize, in pixels.
        end: End of that part.
        count: Number of new pixels.

    Returns:
        Indices of pixels and fixed-point weights, each taps×count.
    """
    # Pillow stores the ends of the part in single precision and computes everything else in double precision.
    first, last = np.float32(start), np.float32(end)
    scale = float(last - first) / count
    half, weigh = _FILTERS[interpolation]
    stretch = max(scale, 1.0)  # antialiasing: the filter is as wide as the pixels that become one
    support = half * stretch
    center = float(first) + (np.arange(count) + 0.5) * scale
    low = np.maximum((center - support + 0.5).astype(np.int64), 0)
    high = np.minimum((center + support + 0.5).astype(np.int64), length)
    taps = np.arange(2 * math.ceil(support) + 1)[:, None]
    pixels = low + taps
    weights = np.where(pixels < high, weigh((pixels - center + 0.5) * (1 / stretch)), 0)
    total = np.zeros(count)
    for row in weights:  # one after the other, because the last bit of a sum depends on its order
        total += row
    weights = np.where(total != 0, weights / np.where(total != 0, total, 1), weights) * (1 << _BITS)
    fixed = np.trunc(weights + np.copysign(0.5, weights)).astype(np.int32)
    used = fixed.any(1)
    return np.minimum(pixels, length - 1)[used], fixed[used]
