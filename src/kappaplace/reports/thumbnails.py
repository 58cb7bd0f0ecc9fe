"""Small pictures inside a page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.errors import KappaPlaceError

SIZE = (240, 180)
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
        picture = decode(path, target=SIZE[::-1])
    except KappaPlaceError:
        return None
    width, height = SIZE
    scale = min(picture.width / width, picture.height / height)
    left, top = (picture.width - width * scale) / 2, (picture.height - height * scale) / 2
    box = (left, top, min(left + width * scale, picture.width), min(top + height * scale, picture.height))
    card = picture.convert("RGB").resize(SIZE, Image.Resampling.BILINEAR, box=box)
    buffer = io.BytesIO()
    card.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return Thumbnail(np.asarray(card), buffer.getvalue())
