"""Training augmentation of CosPlace for whole batches: color jitter, then a random resized crop.

Every image gets its own parameters, from a generator or from one key per image. With keys, an image is
augmented in the same way in any batch, order or process. Parameters are sampled on the CPU and copied
asynchronously, so keys and CPU generators give the same augmentation on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from kappaplace.data.randomness import Keys, Stream, Uniforms
from kappaplace.errors import KappaPlaceError

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)


class Jitter(NamedTuple):
    """Color changes of each image."""

    amount: Tensor
    """N×4: factors of brightness, contrast and saturation, and the hue shift in turns."""
    order: Tensor
    """N×4: the operations, in the order in which they are applied."""


def sample_jitter(
    count: int,
    brightness: float = 0.7,
    contrast: float = 0.7,
    saturation: float = 0.7,
    hue: float = 0.5,
    generator: torch.Generator | None = None,
    *,
    keys: Keys | None = None,
) -> Jitter:
    """Sample the parameters of a color jitter.

    Args:
        count: Number of images.
        brightness: Factors are uniform in [max(0, 1 − x), 1 + x].
        contrast: Range of the contrast factors, as for brightness.
        saturation: Range of the saturation factors, as for brightness.
        hue: Shifts are uniform in [−hue, hue], in turns.
        generator: Source of random numbers. Default: the global generator of torch.
        keys: One key per image, instead of a generator.

    Returns:
        The parameters, and a random order of the four operations for each image.

    Raises:
        KappaPlaceError: If there are both a generator and keys, or not one key per image.
    """
    spread = torch.tensor([brightness, contrast, saturation, hue])
    low = torch.cat([(1 - spread[:3]).clamp(min=0), -spread[3:]])
    high = torch.cat([1 + spread[:3], spread[3:]])
    uniform = Uniforms(count, generator, keys, Stream.JITTER)
    amount = uniform(4) * (high - low) + low
    return Jitter(amount.float(), uniform(4).argsort(dim=1))


def color_jitter(images: Tensor, jitter: Jitter, compiled: bool = False) -> Tensor:
    """Apply the four color operations to each image in its own order.

    Args:
        images: N×3×H×W in [0, 1].
        jitter: Parameters of each image.
        compiled: Compute every operation for all images, with torch.compile, and select the result for each.
            This is more arithmetic, but far fewer passes over memory.

    Returns:
        N×3×H×W in [0, 1].
    """
    amount = jitter.amount.to(images.dtype).to(images.device, non_blocking=True)
    if compiled:
        return _compiled_jitter()(images, amount, jitter.order.to(images.device, non_blocking=True))
    out = images.clone()
    # Images sorted by operation, for each step: group sizes are computed on the CPU, indices are copied once.
    ranked = jitter.order.argsort(dim=0, stable=True).to(images.device, non_blocking=True)
    sizes = F.one_hot(jitter.order, 4).sum(dim=0).tolist()
    for step in range(4):
        # Images with the same operation are changed together, so every pixel is read only four times.
        for op, rows in enumerate(ranked[:, step].split(sizes[step])):
            if len(rows):
                out[rows] = _color_op(op, out[rows], amount[rows, op].view(-1, 1, 1, 1))
    return out


@cache
def _compiled_jitter() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return torch.compile(_jitter_at_once, dynamic=True)


def _jitter_at_once(images: Tensor, amount: Tensor, order: Tensor) -> Tensor:
    """Apply `color_jitter` by computing all operations at every step and selecting one of them."""
    for step in range(4):
        op = order[:, step].view(-1, 1, 1, 1)
        factor = amount.gather(1, order[:, step : step + 1]).view(-1, 1, 1, 1)
        gray = grayscale(images)
        # Lower brightness is a mixture with black.
        target = torch.where(op == _CONTRAST, _mean(gray), torch.where(op == _SATURATION, gray, 0.0))
        images = torch.where(op == _HUE, shift_hue(images, factor), _mix(images, target, factor))
    return images


def _color_op(op: int, images: Tensor, amount: Tensor) -> Tensor:
    if op == _HUE:
        return shift_hue(images, amount)
    if op == _BRIGHTNESS:
        return (images * amount).clamp(0, 1)
    gray = grayscale(images)
    return _mix(images, _mean(gray) if op == _CONTRAST else gray, amount)


def _mix(images: Tensor, target: Tensor, amount: Tensor) -> Tensor:
    return (amount * images + (1 - amount) * target).clamp(0, 1)


def _mean(gray: Tensor) -> Tensor:
    """Average each row, then the rows: the mean of an image is then bit-identical in any batch."""
    return gray.mean(dim=3, keepdim=True).mean(dim=2, keepdim=True)


def grayscale(images: Tensor) -> Tensor:
    """Return the luma of ITU-R BT.601, as in Pillow and torchvision, N×1×H×W."""
    red, green, blue = images.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Shift the hue in HSV and preserve saturation and value; `turns` broadcasts against N×1×H×W."""
    value, top = images.max(dim=1, keepdim=True)
    chroma = value - images.amin(dim=1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    sixth = torch.where(
        top == 0,
        (green - blue) / safe,
        torch.where(top == 1, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    hue = sixth / 6 + turns
    # To RGB: channel n is value − chroma·clamp(min(k, 4 − k), 0, 1) with k = (n + 6·hue) mod 6, n = 5, 3, 1.
    n = torch.arange(5, 0, -2, device=images.device, dtype=images.dtype).view(3, 1, 1)
    k = n + 6 * hue
    # torch.remainder rounds differently by the memory address of a pixel, so it would depend on the batch.
    k = k - 6 * torch.floor(k / 6)
    return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)


def sample_crops(
    count: int,
    height: int,
    width: int,
    scale: tuple[float, float] = (0.5, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    generator: torch.Generator | None = None,
    attempts: int = 10,
    *,
    keys: Keys | None = None,
) -> Tensor:
    """Sample the boxes of random crops.

    The first attempt that fits into the image is used. If none fits, the box is the largest centered one with
    the nearest aspect that is allowed.

    Args:
        count: Number of images.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
        scale: Range of the fraction of the area, sampled uniformly.
        ratio: Range of the aspect (width over height), sampled log-uniformly.
        generator: Source of random numbers. Default: the global generator of torch.
        attempts: Number of attempts per image.
        keys: One key per image, instead of a generator.

    Returns:
        Top, left, height and width in pixels, N×4.

    Raises:
        KappaPlaceError: If there are both a generator and keys, or not one key per image.
    """
    uniform = Uniforms(count, generator, keys, Stream.CROPS)
    u = [uniform(attempts, torch.float64) for _ in range(4)]
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(low + (high - low) * u[1])
    w, h = torch.sqrt(area * aspect).round().long(), torch.sqrt(area / aspect).round().long()
    fits = (w > 0) & (h > 0) & (w <= width) & (h <= height)
    top, left = (u[2] * (height - h + 1)).floor().long(), (u[3] * (width - w + 1)).floor().long()
    first = fits.int().argmax(dim=1, keepdim=True)
    boxes = torch.stack([x.gather(1, first).squeeze(1) for x in (top, left, h, w)], dim=1)
    return torch.where(fits.any(dim=1, keepdim=True), boxes, _centered(height, width, ratio))


def _centered(height: int, width: int, ratio: tuple[float, float]) -> Tensor:
    aspect = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(width, round(height * aspect)), min(height, round(width / aspect))
    return torch.tensor([(height - h) // 2, (width - w) // 2, h, w])


def crop_resize(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop images and resize them by antialiased bilinear interpolation.

    Args:
        images: N×3×H×W.
        boxes: Top, left, height and width of each crop, N×4.
        size: (height, width) of the result.

    Returns:
        N×3×size.
    """
    enlarged = bool((boxes[:, 2:] <= torch.tensor(size)).all())
    if images.is_cuda and enlarged:
        return _enlarge(images, boxes, size)
    # Boxes differ in size, so each needs a separate call, with the same total work as one batch.
    parts = [
        F.interpolate(image[None, :, t : t + h, w0 : w0 + w], size, mode="bilinear", antialias=True)
        for image, (t, w0, h, w) in zip(images, boxes.tolist(), strict=True)
    ]
    return torch.cat(parts)


def _enlarge(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Apply `crop_resize` in one call, for boxes not larger than the result (no antialiasing needed)."""
    axes = []
    for out, whole, start, length in zip(
        size, images.shape[2:], boxes[:, :2].T.double(), boxes[:, 2:].T.double(), strict=True
    ):
        # Pixel centers of the result, in pixels of the box; border pixels are repeated outwards.
        inside = (torch.arange(out) + 0.5) * (length / out)[:, None] - 0.5
        pixel = start[:, None] + inside.clamp(min=0).minimum(length[:, None] - 1)
        axis = ((2 * pixel + 1) / whole - 1).float()
        if images.is_cuda:  # pinned memory: otherwise the copy would wait for all pending work of the device
            axis = axis.pin_memory()
        axes.append(axis.to(images.device, non_blocking=True))
    y, x = axes[0][:, :, None], axes[1][:, None, :]
    grid = torch.stack(torch.broadcast_tensors(x, y), dim=-1)
    crops = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return crops.to(images.dtype)


@dataclass(frozen=True)
class CosPlaceAugmentation:
    """Color jitter and random resized crop with the settings of CosPlace.

    A call augments images N×3×H×W (uint8, or float in [0, 1]) on any device. It returns float N×3×size in
    [0, 1], not normalized.
    """

    size: int | tuple[int, int] = 512
    """Side, or (height, width), of the result in pixels."""
    brightness: float = 0.7
    """Strength of brightness changes: factors are in [max(0, 1 − x), 1 + x]."""
    contrast: float = 0.7
    """Strength of contrast changes."""
    saturation: float = 0.7
    """Strength of saturation changes."""
    hue: float = 0.5
    """Largest shift of the hue, in turns."""
    scale: tuple[float, float] = (0.5, 1.0)
    """Range of the fraction of the image area in a crop."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Range of the aspect of a crop, width over height."""
    compiled: bool = False
    """Use torch.compile for color operations on a GPU."""

    def __call__(
        self, images: Tensor, generator: torch.Generator | None = None, *, keys: Keys | None = None
    ) -> Tensor:
        """Augment images with a generator, or with one key per image (see `kappaplace.data.randomness`)."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise KappaPlaceError(f"Images to augment must be N×3×H×W, got shape {tuple(images.shape)}.")
        count, _, height, width = images.shape
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        strength = (self.brightness, self.contrast, self.saturation, self.hue)
        jitter = sample_jitter(count, *strength, generator=generator, keys=keys)
        boxes = sample_crops(count, height, width, self.scale, self.ratio, generator, keys=keys)
        unit = images if images.is_floating_point() else images.float() / 255
        if any(strength):  # crops without jitter take a third of the time
            unit = color_jitter(unit, jitter, self.compiled and unit.is_cuda)
        return crop_resize(unit, boxes, size).clamp(0, 1)
