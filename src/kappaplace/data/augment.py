"""CosPlace's training augmentation on whole batches: colour jitter, then a random resized crop.

Parameters differ per sample. They come from a generator, or from one key per image: the same image with the
same key is then augmented alike in any batch, order or process. They are drawn away from the images and sent
to them without waiting, so keys and CPU generators give the same augmentation wherever the images live.
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
    """Colour changes of each sample."""

    amount: Tensor
    """N×4: factors of brightness, contrast and saturation, and the hue shift in turns."""
    order: Tensor
    """N×4: the operations in the order of application."""


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
    """Factors uniform in [max(0, 1 − x), 1 + x], hue in [−hue, hue], the order of the four at random."""
    spread = torch.tensor([brightness, contrast, saturation, hue])
    low = torch.cat([(1 - spread[:3]).clamp(min=0), -spread[3:]])
    high = torch.cat([1 + spread[:3], spread[3:]])
    uniform = Uniforms(count, generator, keys, Stream.JITTER)
    amount = uniform(4) * (high - low) + low
    return Jitter(amount.float(), uniform(4).argsort(dim=1))


def colour_jitter(images: Tensor, jitter: Jitter, compiled: bool = False) -> Tensor:
    """Apply the four colour operations to each image, N×3×H×W in [0, 1], in its own order.

    ``compiled`` computes every operation for all images and takes what each asked for: more arithmetic, but
    far fewer passes over memory.
    """
    amount = jitter.amount.to(images.dtype).to(images.device, non_blocking=True)
    if compiled:
        return _compiled_jitter()(images, amount, jitter.order.to(images.device, non_blocking=True))
    out = images.clone()
    # Samples sorted by operation, step by step: the groups are cut on the CPU, and indices travel only once.
    ranked = jitter.order.argsort(dim=0, stable=True).to(images.device, non_blocking=True)
    sizes = F.one_hot(jitter.order, 4).sum(dim=0).tolist()
    for step in range(4):
        # A few samples share an operation at each step, so every pixel is still touched only four times.
        for op, chosen in enumerate(ranked[:, step].split(sizes[step])):
            if len(chosen):
                out[chosen] = _colour_op(op, out[chosen], amount[chosen, op].view(-1, 1, 1, 1))
    return out


@cache
def _compiled_jitter() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return torch.compile(_jitter_at_once, dynamic=True)


def _jitter_at_once(images: Tensor, amount: Tensor, order: Tensor) -> Tensor:
    """`colour_jitter` without sorting: all operations at every step, of which one is kept."""
    for step in range(4):
        op = order[:, step].view(-1, 1, 1, 1)
        own = amount.gather(1, order[:, step : step + 1]).view(-1, 1, 1, 1)
        grey = greyscale(images)
        # Less brightness is a mixture with black.
        towards = torch.where(op == _CONTRAST, _mean(grey), torch.where(op == _SATURATION, grey, 0.0))
        images = torch.where(op == _HUE, shift_hue(images, own), _mixed(images, towards, own))
    return images


def _colour_op(op: int, images: Tensor, amount: Tensor) -> Tensor:
    if op == _HUE:
        return shift_hue(images, amount)
    if op == _BRIGHTNESS:
        return (images * amount).clamp(0, 1)
    grey = greyscale(images)
    return _mixed(images, _mean(grey) if op == _CONTRAST else grey, amount)


def _mixed(images: Tensor, towards: Tensor, amount: Tensor) -> Tensor:
    return (amount * images + (1 - amount) * towards).clamp(0, 1)


def _mean(grey: Tensor) -> Tensor:
    """Row by row, then over rows: an image's mean is then the same to the last bit in any batch."""
    return grey.mean(dim=3, keepdim=True).mean(dim=2, keepdim=True)


def greyscale(images: Tensor) -> Tensor:
    """Luma of ITU-R BT.601, as in Pillow and torchvision: N×1×H×W."""
    red, green, blue = images.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of HSV, with saturation and value kept; `turns` broadcasts against N×1×H×W."""
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
    # Back: channel n is value − chroma·clamp(min(k, 4 − k), 0, 1) with k = (n + 6·hue) mod 6, n = 5, 3, 1.
    n = torch.arange(5, 0, -2, device=images.device, dtype=images.dtype).view(3, 1, 1)
    k = n + 6 * hue
    # torch.remainder rounds by where a pixel lies in memory, so it would depend on the batch.
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
    """Boxes (top, left, height, width), N×4: area share uniform in `scale`, aspect log-uniform in `ratio`.

    Of several attempts the first that fits into the image counts; if none does, the largest centred box with
    the nearest allowed aspect.
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
    return torch.where(fits.any(dim=1, keepdim=True), boxes, _centred(height, width, ratio))


def _centred(height: int, width: int, ratio: tuple[float, float]) -> Tensor:
    aspect = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(width, round(height * aspect)), min(height, round(width / aspect))
    return torch.tensor([(height - h) // 2, (width - w) // 2, h, w])


def crop_resize(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Each image's box, resized to (height, width) by antialiased bilinear interpolation."""
    enlarged = bool((boxes[:, 2:] <= torch.tensor(size)).all())
    if images.is_cuda and enlarged:
        return _enlarge(images, boxes, size)
    # Boxes differ in size, so each takes a call of its own; the work inside is the same as in one batch.
    parts = [
        F.interpolate(image[None, :, t : t + h, w0 : w0 + w], size, mode="bilinear", antialias=True)
        for image, (t, w0, h, w) in zip(images, boxes.tolist(), strict=True)
    ]
    return torch.cat(parts)


def _enlarge(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """`crop_resize` in one call, for boxes not larger than the result, where antialiasing does nothing."""
    axes = []
    for out, whole, start, length in zip(
        size, images.shape[2:], boxes[:, :2].T.double(), boxes[:, 2:].T.double(), strict=True
    ):
        # Pixel centres of the result, in pixels of the box; its border pixels reach outwards.
        inside = (torch.arange(out) + 0.5) * (length / out)[:, None] - 0.5
        pixel = start[:, None] + inside.clamp(min=0).minimum(length[:, None] - 1)
        axis = ((2 * pixel + 1) / whole - 1).float()
        if images.is_cuda:  # pinned, or the copy would wait for all that the device still has to do
            axis = axis.pin_memory()
        axes.append(axis.to(images.device, non_blocking=True))
    y, x = axes[0][:, :, None], axes[1][:, None, :]
    grid = torch.stack(torch.broadcast_tensors(x, y), dim=-1)
    enlarged = F.grid_sample(
        images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False
    )
    return enlarged.to(images.dtype)


@dataclass(frozen=True)
class CosPlaceAugmentation:
    """Colour jitter and random resized crop with the settings of the CosPlace recipe.

    Takes N×3×H×W, uint8 or float in [0, 1], on any device; gives float N×3×size in [0, 1], still to be
    normalised.
    """

    size: int | tuple[int, int] = 512
    """Side, or (height, width), of the result."""
    brightness: float = 0.7
    contrast: float = 0.7
    saturation: float = 0.7
    hue: float = 0.5
    scale: tuple[float, float] = (0.5, 1.0)
    """Share of the image's area that a crop keeps."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Aspect of a crop, width over height."""
    compiled: bool = False
    """Whether colour operations on a GPU go through torch.compile."""

    def __call__(
        self, images: Tensor, generator: torch.Generator | None = None, *, keys: Keys | None = None
    ) -> Tensor:
        """Augment with a generator, or with one key per image (see `kappaplace.data.randomness`)."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise KappaPlaceError(f"Augmentation needs images of N×3×H×W; got {tuple(images.shape)}.")
        count, _, height, width = images.shape
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        strength = (self.brightness, self.contrast, self.saturation, self.hue)
        jitter = sample_jitter(count, *strength, generator=generator, keys=keys)
        boxes = sample_crops(count, height, width, self.scale, self.ratio, generator, keys=keys)
        unit = images if images.is_floating_point() else images.float() / 255
        if any(strength):  # without it, crops alone cost a third
            unit = colour_jitter(unit, jitter, self.compiled and unit.is_cuda)
        return crop_resize(unit, boxes, size).clamp(0, 1)
