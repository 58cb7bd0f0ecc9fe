"""Small images for web pages, reports and labelling: cropped to a card, reduced, or side by side."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.data.decoding import decode
from kappaplace.errors import KappaPlaceError

THUMBNAIL_SIZE = (240, 180)
"""Width and height in pixels: a card of the gallery on a phone with two pixels per point."""
QUALITY, LABEL_QUALITY = 78, 80
GAP = 12
PAPER, EMPTY = (255, 255, 255), (138, 138, 138)


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """One small image, as pixels for a figure and as bytes for a page."""

    pixels: NDArray[np.uint8]
    """H×W×3."""
    jpeg: bytes
    """The image as an encoded JPEG."""

    @property
    def data(self) -> str:
        """Data URL of the JPEG."""
        return "data:image/jpeg;base64," + base64.b64encode(self.jpeg).decode("ascii")


def thumbnail(path: str) -> Thumbnail | None:
    """Load an image and crop it to the shape of a card.

    Args:
        path: The image.

    Returns:
        The image at `THUMBNAIL_SIZE`; None if it cannot be decoded.
    """
    width, height = THUMBNAIL_SIZE
    image = _decoded(path, (height, width))
    if image is None:
        return None
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
    box = (left, top, min(left + width * scale, image.width), min(top + height * scale, image.height))
    card = image.resize(THUMBNAIL_SIZE, Image.Resampling.BILINEAR, box=box)
    return Thumbnail(np.asarray(card), jpeg_of(card, QUALITY))


def small_picture(path: str, most: int) -> bytes | None:
    """Load an image and reduce it.

    Args:
        path: The image.
        most: Longest side of the result in pixels.

    Returns:
        The whole image as a JPEG; None if it cannot be decoded.
    """
    image = _decoded(path, (most, most))
    if image is None:
        return None
    image.thumbnail((most, most), Image.Resampling.LANCZOS)
    return jpeg_of(image)


def side_by_side(left: bytes | None, right: bytes | None, height: int = 480) -> bytes:
    """Join two JPEGs into one.

    Args:
        left: Left image; None for a grey area.
        right: Right image; None for a grey area.
        height: Height of the result in pixels.

    Returns:
        The JPEG.
    """
    images = [_of_height(each, height) for each in (left, right)]
    width = sum(image.width for image in images) + GAP
    both = Image.new("RGB", (width, height), PAPER)
    both.paste(images[0], (0, 0))
    both.paste(images[1], (images[0].width + GAP, 0))
    return jpeg_of(both)


def jpeg_of(image: Image.Image, quality: int = LABEL_QUALITY) -> bytes:
    """Return an image as an encoded JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


def _decoded(path: str, target: tuple[int, int]) -> Image.Image | None:
    try:
        return decode(path, target=target) if path else None
    except KappaPlaceError:
        return None


def _of_height(data: bytes | None, height: int) -> Image.Image:
    if data is None:
        return Image.new("RGB", (height * 4 // 3, height), EMPTY)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return image.resize((max(round(image.width * height / image.height), 1), height))
