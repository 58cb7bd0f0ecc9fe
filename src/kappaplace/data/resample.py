"""Pillow's resize in torch, to the bit: images can be shrunk on the device that will embed them.

Resizing takes more than half of the time of reading a photo, and a GPU does it in passing. A result that
differed, even by one grey level, would make a descriptor depend on the machine, so this follows Pillow's
arithmetic: along rows and along columns, weights in fixed point with 22 bits, each pass rounded to eight
bits. Which pass comes first depends on the version of Pillow and on the sizes: Pillow itself is asked.
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
"""So many times the pixels of the result an image may have to be resized later."""
_BITS = 22
_PIXELS_TRIED = 4096


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
"""Half the width of each filter, and its weights."""
ROWS, COLUMNS = 2, 1  # axes of N×H×W×3 to go along


def size_to_leave(paths: Sequence[Source], preprocessing: Preprocessing) -> tuple[int, int] | None:
    """The size that images may keep when they are decoded, as the first one suggests; None: resize them all.

    Worth it where all get one size, and the image is not so large that it would take much more memory.
    """
    if preprocessing.fixed_size is None or not paths:
        return None
    try:
        first = preprocessing.decoded(paths[0])
    except KappaPlaceError:  # whoever reads it in its turn will say so
        return None
    how = preprocessing.resizing(first.height, first.width)
    too_large = math.prod(how.before) > MOST_TIMES * math.prod(how.after)
    if how.before == how.after or too_large or axes_like_pillow(how) is None:
        return None
    return how.before


def resized(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """uint8 N×3×H×W of decoded images, as `preprocessing.resized` would have made them."""
    how = preprocessing.resizing(images.shape[2], images.shape[3])
    if how.before == how.after:
        return images
    axes = axes_like_pillow(how)
    assert axes is not None  # asked before images of this size were left as they are
    return resize(images, how, axes)


def resize(images: Tensor, how: Resize, axes: tuple[int, ...]) -> Tensor:
    """uint8 N×3×H×W resized, first along the first of these `axes`; channels-last memory, on its device."""
    pixels = images.permute(0, 2, 3, 1)
    (height, width), (new_height, new_width) = how.before, how.after
    left, top, right, bottom = how.box or (0, 0, width, height)
    along = {ROWS: (left, right, width, new_width), COLUMNS: (top, bottom, height, new_height)}
    for axis in axes:
        start, end, length, count = along[axis]
        if (start, end, length) != (0, count, count):
            taps = _taps((how.interpolation, length, start, end, count), pixels.device)
            pixels = _pass(pixels, axis, taps)
    return pixels.permute(0, 3, 1, 2)


@lru_cache(64)
def axes_like_pillow(how: Resize) -> tuple[int, ...] | None:
    """The order of axes in which `resize` gives what Pillow gives, tried on noise; None: in neither."""
    if how.interpolation not in _FILTERS:
        return None
    # The order shows in one pixel of some dozens: a few pixels could agree by chance.
    count = 1 + _PIXELS_TRIED // math.prod(how.after)
    noise = np.random.default_rng(0).integers(0, 256, (count, *how.before, 3), np.uint8)
    method = Image.Resampling[how.interpolation.upper()]
    expected = [np.asarray(Image.fromarray(one).resize(how.after[::-1], method, how.box)) for one in noise]
    images = torch.from_numpy(noise).permute(0, 3, 1, 2)
    for axes in ((ROWS, COLUMNS), (COLUMNS, ROWS)):
        found = resize(images, how, axes).permute(0, 2, 3, 1).numpy()
        if all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True)):
            return axes
    return None


@lru_cache(16)  # sent once: a GPU that is behind would hold up whoever sends it something with each batch
def _taps(row: tuple[str, int, float, float, int], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    taken, weights = weighting(*row)
    return [
        (torch.from_numpy(where).to(device), torch.from_numpy(weight).to(device))
        for where, weight in zip(taken, weights, strict=True)
    ]


def _pass(pixels: Tensor, axis: int, taps: list[tuple[Tensor, Tensor]]) -> Tensor:
    shape = [len(taps[0][0]) if i == axis else 1 for i in range(4)]
    total = None
    for where, weight in taps:
        tap = pixels.index_select(axis, where).to(torch.int32)
        tap *= weight.view(shape)
        total = tap if total is None else total.add_(tap)
    assert total is not None
    return total.add_(1 << (_BITS - 1)).bitwise_right_shift_(_BITS).clamp_(0, 255).to(torch.uint8)


def weighting(
    interpolation: str, length: int, start: float, end: float, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Which pixels of a row make each of `count` new ones, and with what weight: both taps × count."""
    # Pillow keeps the ends of the part in single precision and computes everything else in double.
    first, last = np.float32(start), np.float32(end)
    scale = float(last - first) / count
    half, weigh = _FILTERS[interpolation]
    stretch = max(scale, 1.0)  # a filter as wide as what becomes one pixel: that is antialiasing
    support = half * stretch
    centre = float(first) + (np.arange(count) + 0.5) * scale
    low = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + support + 0.5).astype(np.int64), length)
    taps = np.arange(2 * math.ceil(support) + 1)[:, None]
    taken = low + taps
    share = np.where(taken < high, weigh((taken - centre + 0.5) * (1 / stretch)), 0)
    whole = np.zeros(count)
    for row in share:  # one after the other, for the last bit of a sum depends on its order
        whole += row
    share = np.where(whole != 0, share / np.where(whole != 0, whole, 1), share) * (1 << _BITS)
    weights = np.trunc(share + np.copysign(0.5, share)).astype(np.int32)
    used = weights.any(1)
    return np.minimum(taken, length - 1)[used], weights[used]
