"""Bytes from strangers into pixels of the size that the model wants, in memory and within limits."""

from __future__ import annotations

from PIL import Image

from kappaplace.data.images import Preprocessing, decode
from kappaplace.serve.settings import Settings


def prepared(data: bytes, preprocessing: Preprocessing, settings: Settings) -> Image.Image:
    """The image as `Preprocessing` makes it of a file; only this small copy waits for its turn."""
    size = preprocessing.size
    target = (size, size) if isinstance(size, int) else size
    # The same reduction while decoding as a file gets: an answer shall not depend on the way it was asked.
    picture = decode(data, max_pixels=settings.max_pixels, target=target, formats=settings.formats)
    return preprocessing.image(picture)
