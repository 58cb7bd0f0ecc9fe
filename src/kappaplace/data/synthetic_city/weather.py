"""What conditions do to the pixels: light and air by depth and material, then the lens, then the sensor."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from kappaplace.data.synthetic_city.conditions import CONDITION_NAMES, Conditions
from kappaplace.data.synthetic_city.facades import LEAF, LEDGE, LIT, PAVED, ROAD, SKY

_FOG_COLOUR = np.array([196, 200, 204], np.float32)
_NIGHT_TINT = np.array([0.75, 0.85, 1.15], np.float32)
_LAMP_LIGHT = np.array([255, 214, 140], np.float32)
_RAIN_GREY = np.array([140, 145, 150], np.float32)
_AUTUMN = np.array([205, 120, 30], np.float32)
_SNOW = np.array([236, 240, 246], np.float32)

# Share of snow that lies on each material in deep winter.
_SNOW_HOLD = np.zeros(256, np.float32)
_SNOW_HOLD[[LEDGE, ROAD, PAVED]] = [0.95, 0.6, 0.95]


def _column(level: np.ndarray) -> np.ndarray:
    return level.astype(np.float32)[:, None, None, None]


def season(rgb: np.ndarray, material: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Leaves turn until one half; then snow gathers on ground, ledges and roofs. (`render` drops leaves.)"""
    turn = np.clip(2 * _column(level), 0, 1) * (material >= LEAF)[..., None]
    light = np.maximum(rgb[..., :1], rgb[..., 1:2]) / np.float32(160)
    rgb = rgb + turn * (_AUTUMN * light - rgb)
    snow = np.clip(2 * _column(level) - 1, 0, 1) * _SNOW_HOLD[material][..., None]
    rgb += snow * (_SNOW - rgb)
    grey = (rgb[..., :1] + rgb[..., 1:2] + rgb[..., 2:]) / np.float32(3)
    return np.asarray(rgb + np.float32(0.35) * _column(level) * (grey - rgb))


def night(rgb: np.ndarray, material: np.ndarray, level: np.ndarray) -> np.ndarray:
    """The day goes, lamps and lit windows stay."""
    dark = _column(level)
    dimmed = rgb * (1 - dark + np.float32(0.13) * dark * _NIGHT_TINT)
    glow = (material == LIT)[..., None] * np.float32(0.75) * dark
    dimmed += glow * (np.float32(0.6) * _LAMP_LIGHT + np.float32(0.4) * rgb - dimmed)
    sky = (material == SKY)[..., None] * dark
    return np.asarray(dimmed - np.float32(0.7) * sky * dimmed)


def fog(rgb: np.ndarray, depth: np.ndarray, level: np.ndarray, brightness: np.ndarray) -> np.ndarray:
    """Distance fades into grey; at level 1 little is left beyond eight metres."""
    density = np.float32(0.22) * level.astype(np.float32)[:, None, None] ** 2
    share = 1 - np.exp(-density * depth)
    return np.asarray(rgb + share[..., None] * (_FOG_COLOUR * _column(brightness) - rgb))


def rain(image: np.ndarray, level: float, brightness: float, rng: np.random.Generator) -> np.ndarray:
    """A grey veil, bright streaks, and drops on the lens that smear what is behind them."""
    height, width = image.shape[:2]
    image = image + np.float32(0.45 * level) * (_RAIN_GREY * np.float32(brightness) - image)
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
    """Even seeds burn out, odd seeds sink into black."""
    stops = 3.0 * level if seed % 2 == 0 else -4.0 * level
    return image * np.float32(2.0**stops)


def _sensor(image: np.ndarray, levels: dict[str, float], seed: int) -> np.ndarray:
    """Per-image effects that draw random numbers or need a filter; returns uint8."""
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
    """uint8 N × H × W × 4 (colour, material) and depth N × H × W → the photograph, uint8 N × H × W × 3."""
    out = np.ascontiguousarray(pixels[..., :3])
    material = pixels[..., 3]
    in_air = [getattr(conditions, name) for name in CONDITION_NAMES if name != "occlusion"]  # drawn before
    changed = np.flatnonzero(np.any(in_air, axis=0))
    if not len(changed):
        return out
    now = conditions.take(changed)
    rgb = out[changed].astype(np.float32)
    material = material[changed]
    for part, effect in ((now.season, season), (now.night, night)):
        some = np.flatnonzero(part)
        if len(some):
            rgb[some] = effect(rgb[some], material[some], part[some])
    some = np.flatnonzero(now.fog)
    if len(some):
        brightness = 1 - np.float32(0.85) * now.night[some]
        rgb[some] = fog(rgb[some], depth[changed[some]], now.fog[some], brightness)
    for number, row in enumerate(changed):
        levels = {name: float(getattr(now, name)[number]) for name in ("night", "rain", "blur", "exposure")}
        out[row] = _sensor(rgb[number], levels, int(seeds[row]))
    return out
