"""What images look like, against loops, and which of them are copies."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.appearance import APPEARANCE, appearance, copies


def photo(seed: int = 0) -> Image.Image:
    """A smooth image with edges: neither noise nor flat."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    return small.resize((320, 240), Image.Resampling.BICUBIC)


def test_against_loops() -> None:
    image = photo()
    small = np.asarray(image.resize((64, 64), Image.Resampling.BOX), float) / 255
    gray = [[0.299 * r + 0.587 * g + 0.114 * b for r, g, b in row] for row in small]
    flat = [value for row in gray for value in row]
    mean = sum(flat) / 4096
    across = sum(abs(row[x + 1] - row[x]) for row in gray for x in range(63)) / (64 * 63)
    down = sum(abs(gray[y + 1][x] - gray[y][x]) for y in range(63) for x in range(64)) / (64 * 63)
    inner = 0.0
    for y in range(1, 63):
        for x in range(1, 63):
            inner += abs(4 * gray[y][x] - gray[y - 1][x] - gray[y + 1][x] - gray[y][x - 1] - gray[y][x + 1])
    counts = [0] * 32
    for value in flat:
        counts[min(int(value * 32), 31)] += 1
    entropy = -sum(c / 4096 * math.log(c / 4096) for c in counts if c)
    saturation = sum(max(pixel) - min(pixel) for row in small for pixel in row) / 4096
    expected = [
        mean,
        math.sqrt(sum((value - mean) ** 2 for value in flat) / 4096),
        math.log(across + 1e-3),
        math.log(down + 1e-3),
        math.log(inner / 62**2 + 1e-3),
        entropy,
        math.log(saturation + 1e-3),
    ]
    assert appearance([image])[0] == pytest.approx(expected, rel=1e-6)


def test_flat_images_and_no_images() -> None:
    rows = appearance([Image.new("RGB", (50, 40), value) for value in ("black", "white")])
    assert np.isfinite(rows).all()
    assert rows[:, 0] == pytest.approx([0.0, 1.0])
    assert appearance([]).shape == (0, len(APPEARANCE))


def test_copies_are_found_whatever_their_size_and_quality(tmp_path) -> None:
    image, other = photo(0), photo(1)
    buffer = io.BytesIO()
    image.resize((160, 120)).save(buffer, "JPEG", quality=40)
    brighter = image.point(lambda value: int(0.7 * value) + 40)
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    flat = Image.new("RGB", (320, 240), "gray")
    others = [buffer.getvalue(), brighter, other, mirrored, flat, str(tmp_path / "missing.png")]
    assert copies([image] * 6, others).tolist() == [True, True, False, False, False, False]
    assert copies([flat], [flat]).tolist() == [False]  # every flat image looks like every other
