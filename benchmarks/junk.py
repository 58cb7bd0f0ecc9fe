"""Images that no map can know: what a guard of accepted answers must never let through.

images = junk_images(12)      # {"black": [PIL images], "noise": [...], ...}, twelve of each kind
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

WIDTH, HEIGHT = 320, 240
WORDS = (
    "place",
    "map",
    "route",
    "light",
    "window",
    "street",
    "table",
    "model",
    "image",
    "number",
    "bridge",
    "tower",
)
Rng = np.random.Generator


def junk_images(count: int, seed: int = 0) -> dict[str, list[Image.Image]]:
    """Draw ``count`` images of every kind; the same for the same seed.

    Args:
        count: Images per kind.
        seed: Random seed.

    Returns:
        Lists of RGB images by the name of their kind.
    """
    return {
        kind: [draw(np.random.default_rng([seed, number, i])) for i in range(count)]
        for number, (kind, draw) in enumerate(KINDS.items())
    }


def altered(photos: Sequence[Image.Image]) -> dict[str, list[Image.Image]]:
    """Return the photos mirrored and turned, which a person would still call the same place or not."""
    turns = {
        "mirrored": Image.Transpose.FLIP_LEFT_RIGHT,
        "turned by 90 degrees": Image.Transpose.ROTATE_90,
        "turned by 180 degrees": Image.Transpose.ROTATE_180,
    }
    return {name: [photo.transpose(turn) for photo in photos] for name, turn in turns.items()}


def _black(rng: Rng) -> Image.Image:
    return _flat(rng.integers(0, 12) * np.ones(3))


def _white(rng: Rng) -> Image.Image:
    return _flat(255 - rng.integers(0, 12) * np.ones(3))


def _gray(rng: Rng) -> Image.Image:
    return _flat(rng.integers(40, 216) * np.ones(3))


def _one_color(rng: Rng) -> Image.Image:
    return _flat(rng.integers(0, 256, 3))


def _gradient(rng: Rng) -> Image.Image:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    angle = rng.uniform(0, 2 * np.pi)
    ramp = np.cos(angle) * x / WIDTH + np.sin(angle) * y / HEIGHT
    ramp = (ramp - ramp.min()) / np.ptp(ramp)
    return _image(rng.integers(0, 256, 3) * (1 - ramp[..., None]) + rng.integers(0, 256, 3) * ramp[..., None])


def _noise(rng: Rng) -> Image.Image:
    size = int(rng.choice([1, 2, 4, 8]))
    small = rng.integers(0, 256, (HEIGHT // size, WIDTH // size, int(rng.choice([1, 3]))))
    return _image(np.broadcast_to(small, (*small.shape[:2], 3))).resize(
        (WIDTH, HEIGHT), Image.Resampling.NEAREST
    )


def _clouds(rng: Rng) -> Image.Image:
    total = np.zeros((HEIGHT, WIDTH, 3))
    for octave in range(2, 7):
        small = rng.integers(0, 256, (2**octave, 2**octave, 3))
        total += np.asarray(_image(small).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)) / 2.0 ** (
            octave - 1
        )
    return _image(255 * (total - total.min()) / np.ptp(total))


def _stripes(rng: Rng) -> Image.Image:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    angle, period = rng.uniform(0, np.pi), rng.uniform(6, 60)
    band = (np.sin(2 * np.pi * (np.cos(angle) * x + np.sin(angle) * y) / period) > 0)[..., None]
    return _image(np.where(band, rng.integers(0, 256, 3), rng.integers(0, 256, 3)))


def _checkers(rng: Rng) -> Image.Image:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    side = int(rng.integers(4, 50))
    return _image(
        np.where(((x // side + y // side) % 2)[..., None], rng.integers(0, 256, 3), rng.integers(0, 256, 3))
    )


def _text_page(rng: Rng) -> Image.Image:
    page = Image.new("RGB", (WIDTH, HEIGHT), tuple(int(v) for v in rng.integers(225, 256, 3)))
    draw, size = ImageDraw.Draw(page), int(rng.integers(8, 22))
    font = ImageFont.load_default(size)
    for top in range(8, HEIGHT - size, int(size * 1.4)):
        line = " ".join(rng.choice(WORDS, 14))
        draw.text((10, top), line, fill=tuple(int(v) for v in rng.integers(0, 70, 3)), font=font)
    return page


def _screenshot(rng: Rng) -> Image.Image:
    page = Image.new("RGB", (WIDTH, HEIGHT), tuple(int(v) for v in rng.integers(200, 256, 3)))
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(10)
    draw.rectangle((0, 0, WIDTH, 24), fill=tuple(int(v) for v in rng.integers(20, 140, 3)))
    draw.rectangle(
        (0, 24, int(rng.integers(40, 90)), HEIGHT), fill=tuple(int(v) for v in rng.integers(150, 220, 3))
    )
    for _ in range(int(rng.integers(5, 12))):
        left, top = int(rng.integers(90, 260)), int(rng.integers(30, 210))
        box = (left, top, left + int(rng.integers(20, 120)), top + int(rng.integers(8, 30)))
        draw.rounded_rectangle(box, 4, fill=tuple(int(v) for v in rng.integers(60, 250, 3)))
        draw.text((left + 4, top + 2), str(rng.choice(WORDS)), fill=(0, 0, 0), font=font)
    return page


def _lens_cap(rng: Rng) -> Image.Image:
    y, x = np.mgrid[-1 : 1 : HEIGHT * 1j, -1 : 1 : WIDTH * 1j]
    glow = rng.uniform(2, 30) * np.exp(-((x - rng.uniform(-1, 1)) ** 2 + (y - rng.uniform(-1, 1)) ** 2))
    return _image(
        glow[..., None] * rng.uniform(0.6, 1, 3) + rng.normal(0, rng.uniform(0.5, 4), (HEIGHT, WIDTH, 3))
    )


def _blobs(rng: Rng) -> Image.Image:
    page = _flat(rng.integers(0, 256, 3))
    draw = ImageDraw.Draw(page)
    for _ in range(int(rng.integers(3, 25))):
        x, y, r = rng.integers(0, WIDTH), rng.integers(0, HEIGHT), rng.integers(5, 70)
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape(
            (int(x - r), int(y - r), int(x + r), int(y + r)),
            fill=tuple(int(v) for v in rng.integers(0, 256, 3)),
        )
    return page.filter(ImageFilter.GaussianBlur(rng.uniform(0, 6)))


def _rings(rng: Rng) -> Image.Image:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    radius = np.hypot(x - rng.uniform(0, WIDTH), y - rng.uniform(0, HEIGHT))
    wave = (0.5 + 0.5 * np.sin(radius / rng.uniform(2, 15)))[..., None]
    return _image(rng.integers(0, 256, 3) * wave + rng.integers(0, 256, 3) * (1 - wave))


KINDS: Mapping[str, Callable[[Rng], Image.Image]] = {
    "black": _black,
    "white": _white,
    "gray": _gray,
    "one color": _one_color,
    "gradient": _gradient,
    "noise": _noise,
    "clouds": _clouds,
    "stripes": _stripes,
    "checkers": _checkers,
    "text page": _text_page,
    "screenshot": _screenshot,
    "lens cap": _lens_cap,
    "blobs": _blobs,
    "rings": _rings,
}


def _flat(color: np.ndarray) -> Image.Image:
    return Image.new("RGB", (WIDTH, HEIGHT), tuple(int(v) for v in color))


def _image(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.clip(np.broadcast_to(values, (*values.shape[:2], 3)), 0, 255).astype(np.uint8))
