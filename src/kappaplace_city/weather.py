"""Conditions of images and their effects: light and air by depth and material, then lens, then sensor.

Every condition has a level: 0 is no effect, 1 the strongest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from PIL import Image, ImageFilter

from kappaplace.checks import choice
from kappaplace.errors import KappaPlaceError
from kappaplace_city.facades import LEAF, LEDGE, LIT, PAVED, ROAD, SKY

# Degradation by each condition at level 1, for `Conditions.damage`.
WEIGHTS = {
    "night": 0.8,
    "fog": 0.9,
    "rain": 0.6,
    "blur": 0.8,
    "exposure": 0.8,
    "occlusion": 0.8,
    "season": 0.4,
}
CONDITION_NAMES = tuple(WEIGHTS)


@dataclass(frozen=True, eq=False)
class Conditions:
    """One level in [0, 1] per image and condition, each a float32 array of length N."""

    night: np.ndarray
    fog: np.ndarray
    rain: np.ndarray
    blur: np.ndarray
    exposure: np.ndarray  # over- or under-exposed, by the image seed
    occlusion: np.ndarray  # by vehicles in front of the camera
    season: np.ndarray  # 0 summer, 0.5 autumn, 1 winter with snow

    def __post_init__(self) -> None:
        lengths = set()
        for item in fields(self):
            levels = np.asarray(getattr(self, item.name), np.float32)
            if levels.ndim != 1 or not np.all((levels >= 0) & (levels <= 1)):
                raise KappaPlaceError(f"'{item.name}' must be a 1-D array of levels from 0 to 1.")
            lengths.add(len(levels))
            object.__setattr__(self, item.name, levels)
        if len(lengths) > 1:
            raise KappaPlaceError(f"Conditions must have one level per image, got lengths {sorted(lengths)}.")

    def __len__(self) -> int:
        return len(self.night)

    @property
    def damage(self) -> np.ndarray:
        """Degradation of each image in [0, 1]: 1 - Π (1 - weight · level), with `WEIGHTS`."""
        remainder = np.ones(len(self), np.float32)
        for name, weight in WEIGHTS.items():
            remainder *= 1 - np.float32(weight) * getattr(self, name)
        return np.asarray(1 - remainder)

    def levels(self) -> np.ndarray:
        """Return all levels, N × 7 float32, in the order of `CONDITION_NAMES`.

        Returns:
            The levels.
        """
        return np.stack([getattr(self, name) for name in CONDITION_NAMES], axis=1)

    def take(self, rows: np.ndarray | slice) -> Conditions:
        """Return the conditions of some images.

        Args:
            rows: Row numbers, a mask or a slice.

        Returns:
            The conditions.
        """
        return Conditions(**{name: getattr(self, name)[rows] for name in CONDITION_NAMES})

    @classmethod
    def clear(cls, count: int, **levels: float) -> Conditions:
        """Return conditions of a clear summer day, except for the named ones: `Conditions.clear(5, fog=0.4)`.

        Args:
            count: Number of images.
            **levels: Level of a condition for all images.

        Returns:
            The conditions.

        Raises:
            KappaPlaceError: If a condition is unknown or a level is not between 0 and 1.
        """
        for name in levels:
            choice(name, CONDITION_NAMES, "condition")
        return cls(**{name: np.full(count, levels.get(name, 0.0), np.float32) for name in CONDITION_NAMES})

    @classmethod
    def from_levels(cls, levels: np.ndarray) -> Conditions:
        """Return conditions from an array of levels.

        Args:
            levels: N × 7 levels, in the order of `CONDITION_NAMES`.

        Returns:
            The conditions.
        """
        return cls(**{name: levels[:, number] for number, name in enumerate(CONDITION_NAMES)})

    @classmethod
    def concatenate(cls, parts: Iterable[Conditions]) -> Conditions:
        """Join conditions of several sets of images.

        Args:
            parts: Conditions, in order.

        Returns:
            The conditions of all images.
        """
        return cls.from_levels(np.concatenate([part.levels() for part in parts]))


def mild(count: int, rng: np.random.Generator, strength: float = 0.5) -> Conditions:
    """Sample conditions of a usual survey.

    Each condition affects three in ten images, mostly at a low level.

    Args:
        count: Number of images.
        rng: Random generator.
        strength: Highest level.

    Returns:
        The conditions.
    """
    levels = strength * rng.random((count, len(CONDITION_NAMES)), np.float32) ** 2
    return Conditions.from_levels(levels * (rng.random(levels.shape) < 0.3))


def harsh(count: int, rng: np.random.Generator, strength: float = 1.0) -> Conditions:
    """Sample hard conditions: three in ten images are clear, the others have one to three conditions.

    Args:
        count: Number of images.
        rng: Random generator.
        strength: Highest level.

    Returns:
        The conditions.
    """
    kinds = len(CONDITION_NAMES)
    number = rng.choice([0, 1, 2, 3], size=count, p=[0.3, 0.45, 0.2, 0.05])
    rank = rng.random((count, kinds)).argsort(axis=1)
    levels = strength * rng.random((count, kinds), np.float32) ** 1.3
    return Conditions.from_levels(np.where(rank < number[:, None], levels, 0))


_FOG_COLOR = np.array([196, 200, 204], np.float32)
_NIGHT_TINT = np.array([0.75, 0.85, 1.15], np.float32)
_LAMP_LIGHT = np.array([255, 214, 140], np.float32)
_RAIN_GRAY = np.array([140, 145, 150], np.float32)
_AUTUMN = np.array([205, 120, 30], np.float32)
_SNOW = np.array([236, 240, 246], np.float32)

# Fraction of each material that is covered by snow in winter.
_SNOW_COVER = np.zeros(256, np.float32)
_SNOW_COVER[[LEDGE, ROAD, PAVED]] = [0.95, 0.6, 0.95]


def _column(level: np.ndarray) -> np.ndarray:
    return level.astype(np.float32)[:, None, None, None]


def season(rgb: np.ndarray, material: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Colour the leaves up to level 0.5, then add snow on ground, ledges and roofs; `render` drops leaves."""
    turn = np.clip(2 * _column(level), 0, 1) * (material >= LEAF)[..., None]
    light = np.maximum(rgb[..., :1], rgb[..., 1:2]) / np.float32(160)
    rgb = rgb + turn * (_AUTUMN * light - rgb)
    snow = np.clip(2 * _column(level) - 1, 0, 1) * _SNOW_COVER[material][..., None]
    rgb += snow * (_SNOW - rgb)
    gray = (rgb[..., :1] + rgb[..., 1:2] + rgb[..., 2:]) / np.float32(3)
    return np.asarray(rgb + np.float32(0.35) * _column(level) * (gray - rgb))


def night(rgb: np.ndarray, material: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Darken the image, except lamps and lit windows."""
    dark = _column(level)
    dimmed = rgb * (1 - dark + np.float32(0.13) * dark * _NIGHT_TINT)
    glow = (material == LIT)[..., None] * np.float32(0.75) * dark
    dimmed += glow * (np.float32(0.6) * _LAMP_LIGHT + np.float32(0.4) * rgb - dimmed)
    sky = (material == SKY)[..., None] * dark
    return np.asarray(dimmed - np.float32(0.7) * sky * dimmed)


def fog(rgb: np.ndarray, depth: np.ndarray, level: np.ndarray, brightness: np.ndarray) -> np.ndarray:
    """Blend distant pixels into grey; at level 1 little is visible beyond eight metres."""
    density = np.float32(0.22) * level.astype(np.float32)[:, None, None] ** 2
    blend = 1 - np.exp(-density * depth)
    return np.asarray(rgb + blend[..., None] * (_FOG_COLOR * _column(brightness) - rgb))


def rain(image: np.ndarray, level: float, brightness: float, rng: np.random.Generator) -> np.ndarray:
    """Add a grey veil, bright streaks, and drops on the lens that blur the image behind them."""
    height, width = image.shape[:2]
    image = image + np.float32(0.45 * level) * (_RAIN_GRAY * np.float32(brightness) - image)
    length = max(3, height // 10)
    drops = rng.random((height + length, width), np.float32) < np.float32(0.012 * level)
    total = np.cumsum(drops, axis=0, dtype=np.float32)
    streak = np.minimum(total[length:] - total[:-length], 1)[..., None]
    image += np.float32(0.35) * streak * (np.float32(225 * brightness) - image)
    places = rng.random((30, 3))  # always drawn, so that a higher level only adds drops
    for y, x, size in places[: round(30 * level)]:
        radius = height * (0.02 + 0.05 * size * level)
        top, left = max(0, int(y * height - radius)), max(0, int(x * width - radius))
        patch = image[top : int(y * height + radius) + 2, left : int(x * width + radius) + 2]
        rows, columns = np.ogrid[top : top + patch.shape[0], left : left + patch.shape[1]]
        inside = ((rows - y * height) ** 2 + (columns - x * width) ** 2 < radius**2)[..., None]
        patch += np.float32(0.75) * inside * (patch.mean(axis=(0, 1)) - patch)
    return image


def exposure(image: np.ndarray, level: float, seed: int) -> np.ndarray:
    """Overexpose images with an even seed, and underexpose those with an odd seed."""
    stops = 3.0 * level if seed % 2 == 0 else -4.0 * level
    return image * np.float32(2.0**stops)


def _sensor(image: np.ndarray, levels: dict[str, float], seed: int) -> np.ndarray:
    """Apply the effects that need random numbers or filters to one image; the result is uint8."""
    rng = np.random.default_rng([seed, 2])
    brightness = 1 - 0.85 * levels["night"]
    if levels["rain"] > 0:
        image = rain(image, levels["rain"], brightness, rng)
    if levels["blur"] > 0:
        sharp = Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))
        radius = 0.05 * image.shape[1] * levels["blur"] ** 1.3
        image = np.asarray(sharp.filter(ImageFilter.GaussianBlur(radius)), np.float32)
    if levels["exposure"] > 0:
        image = exposure(image, levels["exposure"], seed)
    under = levels["exposure"] if seed % 2 else 0.0
    noise = 14 * levels["night"] + 5 * under
    if noise > 0:
        grain = np.random.default_rng([seed, 3]).standard_normal(image.shape, np.float32)
        image = image + np.float32(noise) * grain
    return np.clip(image, 0, 255).astype(np.uint8)


def apply(pixels: np.ndarray, depth: np.ndarray, conditions: Conditions, seeds: np.ndarray) -> np.ndarray:
    """Apply conditions to rendered images.

    Args:
        pixels: Colour and material, uint8 N × H × W × 4.
        depth: Metres, N × H × W.
        conditions: Levels per image.
        seeds: Random seed per image.

    Returns:
        Photographs, uint8 N × H × W × 3.
    """
    out = np.ascontiguousarray(pixels[..., :3])
    material = pixels[..., 3]
    # `render` draws occlusion.
    in_air = [getattr(conditions, name) for name in CONDITION_NAMES if name != "occlusion"]
    changed = np.flatnonzero(np.any(in_air, axis=0))
    if not len(changed):
        return out
    weather = conditions.take(changed)
    rgb = out[changed].astype(np.float32)
    material = material[changed]
    for part, effect in ((weather.season, season), (weather.night, night)):
        rows = np.flatnonzero(part)
        if len(rows):
            rgb[rows] = effect(rgb[rows], material[rows], part[rows])
    rows = np.flatnonzero(weather.fog)
    if len(rows):
        brightness = 1 - np.float32(0.85) * weather.night[rows]
        rgb[rows] = fog(rgb[rows], depth[changed[rows]], weather.fog[rows], brightness)
    for number, row in enumerate(changed):
        names = ("night", "rain", "blur", "exposure")
        levels = {name: float(getattr(weather, name)[number]) for name in names}
        out[row] = _sensor(rgb[number], levels, int(seeds[row]))
    return out
