"""Draw the evidence behind an answer: the patches of two images that agree, joined by lines."""

from __future__ import annotations

import colorsys
import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from kappaplace.data import Source, decode

if TYPE_CHECKING:
    from kappaplace.retrieval import PatchMatches

HEIGHT = 360
"""Height of the picture in pixels."""
GAP = 12
SCALE = 3
"""Lines are drawn larger by this factor and reduced, which smooths them."""
MOST_LINES = 80
"""Largest number of lines, evenly over the pairs of patches; more would hide the images."""
OPACITY = (60, 210)
"""Opacity of the weakest and the strongest line, of 255."""


def draw_evidence(a: Source, b: Source, evidence: PatchMatches) -> Image.Image:
    """Draw two images side by side, with a line between each pair of patches that agree.

    Colors show the horizontal position in the first image, and stronger pairs are more opaque. Many parallel
    lines, in the same order of colors on both sides, are typical of the same place.

    Args:
        a: First image: a path, encoded bytes, a Pillow image or an array.
        b: Second image.
        evidence: Pairs of patches of `kappaplace.retrieval.patch_matches`, a as the query.

    Returns:
        The picture.

    Raises:
        KappaPlaceError: If an image cannot be read.
    """
    left, right = (_sized(source) for source in (a, b))
    picture = Image.new("RGB", (left.width + GAP + right.width, HEIGHT), "white")
    picture.paste(left, (0, 0))
    picture.paste(right, (left.width + GAP, 0))
    rows = np.linspace(0, len(evidence.weights) - 1, min(len(evidence.weights), MOST_LINES)).round()
    rows = np.unique(rows.astype(np.int64))
    start = evidence.query[rows] * left.size
    end = evidence.reference[rows] * right.size + [left.width + GAP, 0]
    strength = evidence.weights[rows] / max(float(evidence.weights.max(initial=0.0)), 1e-9)
    layer = Image.new("RGBA", (picture.width * SCALE, HEIGHT * SCALE))
    pen = ImageDraw.Draw(layer)
    for (x, y), (u, v), part in sorted(
        zip(start.tolist(), end.tolist(), strength.tolist(), strict=True), key=lambda line: line[2]
    ):
        red, green, blue = (
            round(255 * value) for value in colorsys.hsv_to_rgb(0.8 * x / left.width, 0.9, 1.0)
        )
        color = (red, green, blue, round(OPACITY[0] + (OPACITY[1] - OPACITY[0]) * part))
        points = [SCALE * value for value in (x, y, u, v)]
        pen.line(points, fill=color, width=round(1.2 * SCALE))
        for center in (points[:2], points[2:]):
            pen.circle(center, 2.4 * SCALE, fill=(*color[:3], 255))
    smooth = layer.resize(picture.size, Image.Resampling.BOX)
    picture.paste(smooth, (0, 0), smooth)
    return picture


def evidence_jpeg(a: Source, b: Source, evidence: PatchMatches) -> bytes:
    """Return the picture of `draw_evidence` as JPEG.

    Args:
        a: First image.
        b: Second image.
        evidence: Pairs of patches that agree.

    Returns:
        The encoded picture.
    """
    stream = io.BytesIO()
    draw_evidence(a, b, evidence).save(stream, "JPEG", quality=85)
    return stream.getvalue()


def _sized(source: Source) -> Image.Image:
    image = decode(source, target=(HEIGHT, HEIGHT)).convert("RGB")
    return image.resize(
        (max(1, round(image.width * HEIGHT / image.height)), HEIGHT), Image.Resampling.BICUBIC
    )
