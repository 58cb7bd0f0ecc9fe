"""JPEG files that cost what photos cost to decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_photos(folder: Path, count: int, size: tuple[int, int]) -> list[Path]:
    """JPEGs with the detail of photos: noise on several scales, about 100 KB each at 640×480."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(count):
        layers = [
            Image.fromarray(rng.integers(0, 256, (n, n, 3), dtype=np.uint8)).resize(
                size, Image.Resampling.BICUBIC
            )
            for n in (6, 40, 200)
        ]
        weights = (0.5, 0.3, 0.2)
        photo = sum(w * np.asarray(layer, np.float32) for w, layer in zip(weights, layers, strict=True))
        paths.append(folder / f"{i:05d}.jpg")
        Image.fromarray(np.asarray(photo, np.uint8)).save(paths[-1], quality=90)
    return paths
