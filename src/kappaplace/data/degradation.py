"""Degrade images by a kind and a level: night, fog, rain, blur, noise, occlusion, compression.

Every image has its own level in [0, 1]. Level 0 does not change the image, and at level 1 it is barely
recognizable. For the same random numbers, a higher level always degrades more. Sizes are relative to the
image, so a level means the same at every resolution. Images are N×3×H×W in [0, 1], on any device.

Random numbers come from a generator or from one key per image. With a CPU generator, the result is the same
on every device; a generator of the device is faster. With keys, the result does not depend on the batch: kind
and level are the same everywhere, noise and drops on the same type of device. Formulas in this module must
therefore not round an image differently in another batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kappaplace.checks import choice, within
from kappaplace.data.augment import grayscale
from kappaplace.data.randomness import Keys, Stream, Uniforms, checked_keys, item_key, item_uniforms
from kappaplace.errors import KappaPlaceError

Draw: TypeAlias = Callable[..., Tensor]
"""Function that returns new uniform numbers in [0, 1), for a shape."""
Degradation: TypeAlias = Callable[[Tensor, Tensor, Draw], Tensor]
"""Function of one kind of degradation. Its arguments are images N×3×H×W in [0, 1], levels N×1×1×1 and a
source of random numbers. The degraded images may be outside [0, 1]."""


class Degraded(NamedTuple):
    """Degraded images with their kinds and levels."""

    images: Tensor
    """N×3×H×W in [0, 1]."""
    kind: Tensor
    """Index into `DEGRADATIONS`, N; −1 for unchanged images."""
    level: Tensor
    """Level in [0, 1], N; 0 for unchanged images."""


def night(images: Tensor, level: Tensor, draw: Draw) -> Tensor:
    """Reduce the light, down to 1/30, and add a cold tint, darker corners and sensor noise."""
    shade, grain = draw(len(images), 1, 1, 1), _gaussian(draw, images.shape)
    linear = _power(images, 2.2)
    tint = _constant([0.85, 0.95, 1.2], images).view(3, 1, 1)
    faded = (1 - 0.7 * level) * linear + 0.7 * level * grayscale(linear) * tint
    y, x = _grid(images)
    corners = 1 - 0.6 * level * (0.5 + 0.5 * shade) * (x**2 + y**2) / 2
    light = faded * torch.exp(-math.log(30) * level) * corners
    # Shot noise grows with the square root of the light, read noise is constant.
    noise = grain * level * (0.02 * light.clamp(min=0).sqrt() + 0.004)
    return _power((light + noise).clamp(min=0), 1 / 2.2)


def fog(images: Tensor, level: Tensor, draw: Draw) -> Tensor:
    """Add fog by Koschmieder's law, denser towards the top, where scenes are usually farther away."""
    air, patches = 0.7 + 0.25 * draw(len(images), 1, 1, 1), draw(len(images), 1, 4, 4)
    y, _ = _grid(images)
    depth = (0.7 - 0.5 * y) * (0.7 + 0.6 * _stretch(patches, images))
    visible = torch.exp(-5.0 * level * depth)
    return images * visible + air * (1 - visible)


def rain(images: Tensor, level: Tensor, draw: Draw) -> Tensor:
    """Add slanted bright streaks and a grey veil; a higher level adds streaks."""
    n, _, height, width = images.shape
    rows = 192
    columns = max(1, round(rows * width / height))
    drops, slant = draw(n, 1, rows, columns), 0.6 * draw(n, 1, 1, 1) - 0.3
    # Drops of a lower level also appear at a higher level, which only adds more.
    falling = (drops < 0.03 * level).to(images.dtype)
    streaks = 15 * F.avg_pool2d(falling, (15, 1), stride=1, padding=(7, 0))
    y, x = _grid(images)
    grid = torch.stack(torch.broadcast_tensors(x + slant * y * height / width, y), dim=-1).squeeze(1)
    opacity = F.grid_sample(streaks, grid, padding_mode="reflection", align_corners=False).clamp(0, 1)
    veil = 0.6 * level
    return (images * (1 - veil) + 0.5 * veil) * (1 - 0.6 * opacity) + 0.85 * 0.6 * opacity


def blur(images: Tensor, level: Tensor, draw: Draw) -> Tensor:
    """Blur by a Gaussian with σ up to 2.5% of the shorter side."""
    n, _, height, width = images.shape
    most = 0.025 * min(height, width)
    radius = math.ceil(3 * most) + 1
    kernel = discrete_gaussian((most * level.view(n, 1)) ** 2, radius).view(n, 1, 1, -1)
    # All channels of all images are groups of one convolution, because each image has its own kernel. (With
    # one group per image, a single image would use another algorithm, which rounds differently.)
    kernel = kernel.repeat_interleave(3, dim=0)
    out = images.reshape(1, 3 * n, height, width)
    out = F.conv2d(F.pad(out, (radius, radius, 0, 0), mode="replicate"), kernel, groups=3 * n)
    out = F.conv2d(F.pad(out, (0, 0, radius, radius), mode="replicate"), kernel.transpose(2, 3), groups=3 * n)
    return out.view_as(images)


def discrete_gaussian(variance: Tensor, radius: int) -> Tensor:
    """Return the kernels N×(2·radius + 1) of the discrete Gaussian, exp(−t) I_n(t), for variances N×1.

    Unlike a sampled Gaussian, it blurs by the correct amount even if σ is a fraction of a pixel. It is
    computed from its transfer function exp(t (cos θ − 1)).
    """
    points = 4 * radius + 4
    theta = 2 * math.pi / points * torch.arange(points, device=variance.device, dtype=variance.dtype)
    offset = torch.arange(-radius, radius + 1, device=variance.device)
    transfer = torch.exp(variance * (torch.cos(theta) - 1))
    # A plain sum: a matrix product uses another algorithm for a single row, which rounds differently.
    kernel = (transfer[:, :, None] * torch.cos(theta[:, None] * offset)).sum(dim=1)
    return kernel / kernel.sum(dim=1, keepdim=True)


def noise(images: Tensor, level: Tensor, draw: Draw) -> Tensor:
    """Add Gaussian noise with σ up to 0.4 to every channel."""
    return images + 0.4 * level * _gaussian(draw, images.shape)


def occlusion(images: Tensor, level: Tensor, draw: Draw) -> Tensor:
    """Cover up to 70% of the image by a plain rectangle; a higher level extends the covered area."""
    n = len(images)
    corner, aspect, color = draw(n, 2, 1, 1), draw(n, 1, 1, 1), 0.6 * draw(n, 3, 1, 1)
    area = 0.7 * level
    tall = (area * torch.exp(aspect - 0.5)).sqrt().clamp(max=1.0).maximum(area)
    wide = area / tall.clamp(min=1e-6)
    y, x = ((axis + 1) / 2 for axis in _grid(images))
    top, left = corner[:, :1] * (1 - tall), corner[:, 1:] * (1 - wide)
    hidden = (y >= top) & (y <= top + tall) & (x >= left) & (x <= left + wide)
    return torch.where(hidden, color, images)


def compression(images: Tensor, level: Tensor, draw: Draw) -> Tensor:
    """Compress like JPEG, from quality 100 to about 3: round the DCT coefficients of 8×8 blocks."""
    height, width = images.shape[2:]
    to_ycc, to_rgb = (_constant(matrix, images) for matrix in (_YCC, torch.linalg.inv(torch.tensor(_YCC))))
    padded = F.pad(images, (0, -width % 8, 0, -height % 8), mode="replicate")
    ycc = torch.einsum("ij,njhw->nihw", to_ycc, padded * 255 - 128)
    blocks = ycc.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)
    dct = _dct_matrix(images.device)
    luma, chroma = (_constant(table, images).view(8, 8) for table in (_LUMA, _CHROMA))
    # Quality q below 50 multiplies the tables by 50/q.
    steps = torch.stack([luma, chroma, chroma]).view(1, 3, 1, 1, 8, 8)
    steps = (steps * (16 * level**2).view(-1, 1, 1, 1, 1, 1)).clamp(min=1e-3)
    coded = torch.round(dct @ blocks @ dct.T / steps) * steps
    ycc = (dct.T @ coded @ dct).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    rgb = torch.einsum("ij,njhw->nihw", to_rgb, ycc)
    return ((rgb + 128) / 255)[:, :, :height, :width]


_KIND_FUNCTIONS: dict[str, Degradation] = {
    function.__name__: function for function in (night, fog, rain, blur, noise, occlusion, compression)
}
DEGRADATIONS: tuple[str, ...] = tuple(_KIND_FUNCTIONS)

# Up to this many numbers per image, hashing all images at once is faster than a seeded generator for each.
_FEW = 64


def degrade(
    images: Tensor,
    kinds: str | Sequence[str] | Tensor,
    levels: float | Sequence[float] | Tensor,
    generator: torch.Generator | None = None,
    *,
    keys: Keys | None = None,
) -> Tensor:
    """Degrade each image by its kind and level.

    Args:
        images: N×3×H×W, float in [0, 1].
        kinds: Name of the kind for all images, one name per image, or indices into `DEGRADATIONS` (−1 for
            no degradation), N.
        levels: Level in [0, 1], for all images or for each.
        generator: Source of random numbers. Default: the global generator of torch.
        keys: One key per image, instead of a generator, so that the result does not depend on the batch.

    Returns:
        Degraded images, N×3×H×W.

    Raises:
        KappaPlaceError: If an argument has another shape or is out of range.
    """
    if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
        raise KappaPlaceError(
            "Images to degrade must be N×3×H×W of float in [0, 1], "
            f"got shape {tuple(images.shape)} of {images.dtype}."
        )
    kind = _kind_indices(kinds, len(images))
    level = torch.as_tensor(levels, dtype=torch.float32).cpu().expand(len(images))
    for extreme in (level.min(), level.max()) if len(level) else ():
        within(float(extreme), "levels", 0, 1)
    if keys is not None:
        keys = checked_keys(keys, len(images), generator)
    out = images.clone()

    def draw(*shape: int) -> Tensor:
        device = generator.device if generator is not None else images.device
        return torch.rand(shape, generator=generator, device=device).to(images.device)

    for index, name in enumerate(DEGRADATIONS):
        rows = torch.nonzero((kind == index) & (level > 0)).flatten()
        if len(rows):
            source = draw if keys is None else _keyed_draw(keys[rows.numpy()], images.device)
            strength = level[rows].to(images.device, non_blocking=True).view(-1, 1, 1, 1)
            rows = rows.to(images.device, non_blocking=True)
            degraded = _KIND_FUNCTIONS[name](images[rows].float(), strength, source)
            out[rows] = degraded.clamp(0, 1).to(images.dtype)
    return out


def random_degradation(
    images: Tensor,
    generator: torch.Generator | None = None,
    p: float = 0.6,
    kinds: Sequence[str] = DEGRADATIONS,
    *,
    max_level: float = 1.0,
    keys: Keys | None = None,
) -> Degraded:
    """Degrade each image with some probability, by a random kind and level.

    Args:
        images: N×3×H×W, float in [0, 1].
        generator: Source of random numbers. Default: the global generator of torch.
        p: Probability to degrade an image.
        kinds: Names of the kinds to choose from.
        max_level: Largest level; levels are uniform in (0, max_level].
        keys: One key per image, instead of a generator, so that the result does not depend on the batch.

    Returns:
        Images, kinds and levels.

    Raises:
        KappaPlaceError: If an argument has another shape or is out of range.
    """
    if not 0 < max_level <= 1:
        raise KappaPlaceError(f"max_level must be above 0 and at most 1, got {max_level}.")
    uniform = Uniforms(len(images), generator, keys, Stream.DEGRADATION)
    chance, choice, strength = (uniform(1).squeeze(1) for _ in range(3))
    allowed = _kind_indices(kinds, len(kinds))
    degraded = chance < p
    kind = torch.where(degraded, allowed[(choice * len(allowed)).long()], -1)
    level = torch.where(degraded, max_level * (1 - strength), 0.0).float()
    out = degrade(images, kind, level, generator, keys=keys)
    device = images.device
    return Degraded(out, kind.to(device, non_blocking=True), level.to(device, non_blocking=True))


def _keyed_draw(keys: Keys, device: torch.device) -> Draw:
    """Return a source of uniform numbers that depend only on the key of each image, new in every call."""
    generator = torch.Generator(device)
    calls = itertools.count()

    def draw(*shape: int) -> Tensor:
        seeds = item_key(keys, Stream.FIELDS, next(calls))
        each = math.prod(shape[1:])
        if each <= _FEW:
            few = torch.from_numpy(item_uniforms(seeds, each).astype(np.float32))
            return few.view(shape).to(device, non_blocking=True)
        fields = torch.empty(shape, device=device)
        for field, seed in zip(fields, seeds.tolist(), strict=True):
            field.uniform_(generator=generator.manual_seed(seed))
        return fields

    return draw


def _kind_indices(kinds: str | Sequence[str] | Tensor, count: int) -> Tensor:
    if isinstance(kinds, Tensor):
        indices = kinds.cpu().long()
    else:
        names = [kinds] * count if isinstance(kinds, str) else list(kinds)
        for name in names:
            choice(name, DEGRADATIONS, "degradation")
        indices = torch.tensor([DEGRADATIONS.index(name) for name in names], dtype=torch.long)
    if indices.shape != (count,) or not bool(((indices >= -1) & (indices < len(DEGRADATIONS))).all()):
        raise KappaPlaceError(f"Expected one degradation per image ({count}), as names or indices.")
    return indices


def _gaussian(draw: Draw, shape: Sequence[int]) -> Tensor:
    return math.sqrt(2) * torch.erfinv((2 * draw(*shape) - 1).clamp(-0.9999999, 0.9999999))


def _power(base: Tensor, exponent: float) -> Tensor:
    # torch.pow rounds differently by the memory address of a pixel, so it would depend on the batch.
    return torch.exp(exponent * torch.log(base))


def _constant(values: Sequence[float] | Sequence[Sequence[float]] | Tensor, images: Tensor) -> Tensor:
    """Copy a small table to the device of the images, asynchronously."""
    return torch.as_tensor(values).to(images.device, non_blocking=True)


def _grid(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return pixel centers in [−1, 1]: y as 1×1×H×1 and x as 1×1×1×W."""
    y, x = (
        (2 * torch.arange(size, device=images.device, dtype=torch.float32) + 1) / size - 1
        for size in images.shape[2:]
    )
    return y.view(1, 1, -1, 1), x.view(1, 1, 1, -1)


def _stretch(field: Tensor, images: Tensor) -> Tensor:
    return F.interpolate(field, images.shape[2:], mode="bicubic", align_corners=False).clamp(0, 1)


def _dct_matrix(device: torch.device) -> Tensor:
    """Return the orthonormal DCT-II of eight points."""
    k = torch.arange(8, device=device, dtype=torch.float32)
    matrix = torch.cos(math.pi / 8 * (k + 0.5) * k[:, None]) / 2
    matrix[0] /= math.sqrt(2)
    return matrix


# JFIF color transform. Its offset of 128 is applied to all channels, and the chroma rows cancel it.
_YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
# Quantization tables of ITU-T T.81, annex K.
# fmt: off
_LUMA = (
    16., 11., 10., 16., 24., 40., 51., 61., 12., 12., 14., 19., 26., 58., 60., 55.,
    14., 13., 16., 24., 40., 57., 69., 56., 14., 17., 22., 29., 51., 87., 80., 62.,
    18., 22., 37., 56., 68., 109., 103., 77., 24., 35., 55., 64., 81., 104., 113., 92.,
    49., 64., 78., 87., 103., 121., 120., 101., 72., 92., 95., 98., 112., 100., 103., 99.,
)
_CHROMA = (
    17., 18., 24., 47., 99., 99., 99., 99., 18., 21., 26., 66., 99., 99., 99., 99.,
    24., 26., 56., 99., 99., 99., 99., 99., 47., 66., 99., 99., 99., 99., 99., 99.,
    *(99.,) * 32,
)
# fmt: on
