"""Small images for pages, reports and people who label: cut to a card, shrunk whole, or side by side."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.errors import KappaPlaceError

THUMBNAIL_SIZE = (240, 180)
"""Width and height: a card of the gallery on a phone, at twice its pixels."""
QUALITY = 78


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """One picture, as pixels for a figure and as bytes for a page."""

    pixels: NDArray[np.uint8]
    jpeg: bytes

    @property
    def data(self) -> str:
        """The picture as an address that holds it."""
        return "data:image/jpeg;base64," + base64.b64encode(self.jpeg).decode("ascii")


def thumbnail(path: str) -> Thumbnail | None:
    """The image, cut to the shape of a card; None where it cannot be opened."""
    from kappaplace.data.images import decode  # brings torch, which a report of numbers can do without

    if not path:
        return None
    try:
        picture = decode(path, target=THUMBNAIL_SIZE[::-1])
    except KappaPlaceError:
        return None
    width, height = THUMBNAIL_SIZE
    scale = min(picture.width / width, picture.height / height)
    left, top = (picture.width - width * scale) / 2, (picture.height - height * scale) / 2
    box = (left, top, min(left + width * scale, picture.width), min(top + height * scale, picture.height))
    card = picture.convert("RGB").resize(THUMBNAIL_SIZE, Image.Resampling.BILINEAR, box=box)
    buffer = io.BytesIO()
    card.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return Thumbnail(np.asarray(card), buffer.getvalue())


LABEL_QUALITY = 80
GAP = 12
PAPER, EMPTY = (255, 255, 255), (138, 138, 138)


def small_picture(path: str, most: int) -> bytes | None:
    """The whole image as a JPEG of at most ``most`` pixels a side; None where it cannot be opened."""
    from kappaplace.data.images import decode  # brings torch, which a report of numbers can do without

    if not path:
        return None
    try:
        picture = decode(path, target=(most, most)).convert("RGB")
    except KappaPlaceError:
        return None
    picture.thumbnail((most, most), Image.Resampling.LANCZOS)
    return jpeg_of(picture)


def side_by_side(left: bytes | None, right: bytes | None, height: int = 480) -> bytes:
    """Two JPEGs as one, of the same height; grey where one is missing."""
    pictures = [_of_height(each, height) for each in (left, right)]
    width = sum(picture.width for picture in pictures) + GAP
    both = Image.new("RGB", (width, height), PAPER)
    both.paste(pictures[0], (0, 0))
    both.paste(pictures[1], (pictures[0].width + GAP, 0))
    return jpeg_of(both)


def jpeg_of(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=LABEL_QUALITY, optimize=True)
    return buffer.getvalue()


def _of_height(data: bytes | None, height: int) -> Image.Image:
    if data is None:
        return Image.new("RGB", (height * 4 // 3, height), EMPTY)
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    return picture.resize((max(round(picture.width * height / picture.height), 1), height))
