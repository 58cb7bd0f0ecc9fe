"""HEIC photos, as phones write them: opened through an optional extra, asked for only when one comes."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from PIL import Image, UnidentifiedImageError

from kappaplace.errors import KappaPlaceError

# Brands of an ISO file (bytes 8 to 12) that hold HEIF pictures.
_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"heif", b"mif1", b"msf1")


HEIF = "HEIF"
"""What Pillow calls the format."""


def open_image(source: str | os.PathLike[str] | bytes, formats: Sequence[str] | None = None) -> Image.Image:
    """Pillow's ``Image.open`` for a path or encoded bytes, HEIC included; ``formats``: no other than these.

    The content decides, not the suffix: phones and messengers rename HEIC to .jpg. Pillow without the plug-in
    fails to identify such a file, so other formats pay nothing for the check.
    """
    try:
        # What has not been registered yet is no format that Pillow could be asked for.
        known = None if formats is None else [name for name in formats if name != HEIF]
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=known)
    except UnidentifiedImageError:
        if not is_heif(source) or (formats is not None and HEIF not in formats):
            raise
        enable_heif()
        also = None if formats is None else [*formats]
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=also)


def is_heif(source: str | os.PathLike[str] | bytes) -> bool:
    """Whether a file or encoded bytes begin as HEIF does."""
    if not isinstance(source, bytes):
        with open(source, "rb") as stream:
            source = stream.read(12)
    return source[4:8] == b"ftyp" and source[8:12] in _BRANDS


def enable_heif() -> None:
    """Teach Pillow HEIC; doing it twice does no harm."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise KappaPlaceError(
            "HEIC photos need one more package: pip install 'kappaplace[heic]', or convert them to JPEG."
        ) from None
    register_heif_opener()
