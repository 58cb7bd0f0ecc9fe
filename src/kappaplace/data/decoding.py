"""Decode any image file, encoded bytes, Pillow image or array to upright 8-bit RGB, and make thumbnails.

HEIC photos, as phones write them, need an optional extra, which is loaded only for such a photo.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from kappaplace.errors import KappaPlaceError, import_extra

Path: TypeAlias = "str | os.PathLike[str]"
Source: TypeAlias = "Path | bytes | Image.Image | NDArray[np.number]"
"""An image: a path, encoded bytes, a Pillow image, or an array (see `decode`)."""

HEIF = "HEIF"
"""Name of the HEIC format in Pillow."""
# Brands of an ISO file (bytes 8 to 12) that contain HEIF images.
_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"heif", b"mif1", b"msf1")

# Pillow's own warning threshold: 0.25 GiB of 24-bit pixels. Photos of places are ten times smaller.
MAX_PIXELS = 89_478_485
# Transparent regions become mid-grey, which is close to zero after normalization, so they carry no signal.
BACKGROUND = (128, 128, 128)

_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_image(source: Path | bytes, formats: Sequence[str] | None = None) -> Image.Image:
    """Open a file or encoded bytes with Pillow, including HEIC.

    The content determines the format, not the suffix, because phones and messengers rename HEIC to .jpg. The
    plug-in for HEIC is loaded only if Pillow cannot identify the file.

    Args:
        source: A path, or encoded bytes.
        formats: Accepted formats, by their names in Pillow. Default: all.

    Returns:
        The image, not decoded yet.

    Raises:
        MissingExtra: If the file is HEIC and the extra "heic" is not installed.
    """

    def opened(names: list[str] | None) -> Image.Image:
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=names)

    try:
        # Pillow rejects the name of a format that is not registered yet.
        return opened(None if formats is None else [name for name in formats if name != HEIF])
    except UnidentifiedImageError:
        if not is_heif(source) or (formats is not None and HEIF not in formats):
            raise
        enable_heif()
        return opened(None if formats is None else [*formats])


def is_heif(source: Path | bytes) -> bool:
    """Return whether a file or encoded bytes have the signature of HEIF."""
    if not isinstance(source, bytes):
        with open(source, "rb") as stream:
            source = stream.read(12)
    return source[4:8] == b"ftyp" and source[8:12] in _BRANDS


def enable_heif() -> None:
    """Register HEIC with Pillow. Further calls have no effect."""
    import_extra("pillow_heif", "Reading HEIC photos", "heic").register_heif_opener()


def decode(
    source: Source,
    *,
    max_pixels: int = MAX_PIXELS,
    target: tuple[int, int] | None = None,
    formats: Sequence[str] | None = None,
) -> Image.Image:
    """Decode an image to upright 8-bit RGB.

    The EXIF orientation is applied, and only the first frame of a file is used. Pixels of more than 8 bits
    are scaled by their full range, and alpha is composited on mid-grey. HEIC needs the extra "heic".

    Args:
        source: A path, encoded bytes, a Pillow image or an array. Arrays are H×W, H×W×1, H×W×3 or H×W×4 of
            uint8, uint16 (full range) or float in [0, 1].
        max_pixels: Largest number of pixels. Default: 89 million.
        target: (height, width) to which the image will be reduced. A JPEG at least four times as large is
            decoded at 1/2, 1/4 or 1/8 of its size, but at least at twice the target. Default: full size.
        formats: Accepted formats of files and bytes, by their names in Pillow. Specify them for bytes from
            untrusted sources. Default: all.

    Returns:
        The image.

    Raises:
        KappaPlaceError: If the source cannot be read, is not an image, is damaged or is too large.
    """
    if isinstance(source, np.ndarray):
        return _flatten(_from_array(source, max_pixels))
    name = _name(source)
    try:
        if isinstance(source, Image.Image):
            return _load(source, name, max_pixels, target=None)  # a draft would shrink the caller's image
        with open_image(source, formats) as image:
            return _load(image, name, max_pixels, target)
    except KappaPlaceError:
        raise
    except FileNotFoundError:
        raise KappaPlaceError(f"No image file at {name}. Check the path.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(name, "more pixels than any photo", max_pixels) from None
    except UnidentifiedImageError:
        names = "any format of Pillow" if formats is None else f"one of these formats: {', '.join(formats)}"
        raise KappaPlaceError(f"{name} is not an image in {names}. Remove or convert it.") from None
    except Exception as error:
        # Decoders raise many types of exceptions for damaged bytes: struct, zlib, syntax, value or OS errors.
        raise KappaPlaceError(f"Cannot decode {name} ({error}). Replace or remove the file.") from error


def _name(source: Path | bytes | Image.Image) -> str:
    if isinstance(source, bytes):
        return f"<{len(source)} bytes of image data>"
    if isinstance(source, Image.Image):
        return str(getattr(source, "filename", "") or "<image in memory>")
    if not isinstance(source, str | os.PathLike):
        raise KappaPlaceError(
            f"Cannot decode a {type(source).__name__}. Pass a path, bytes, a Pillow image or a NumPy array."
        )
    return os.fspath(source)


def _too_large(name: str, size: str, max_pixels: int) -> KappaPlaceError:
    return KappaPlaceError(
        f"{name} is too large: {size} (limit {max_pixels:,}). Shrink it, or pass a larger max_pixels."
    )


def _load(image: Image.Image, name: str, max_pixels: int, target: tuple[int, int] | None) -> Image.Image:
    width, height = image.size
    if width * height == 0:
        raise KappaPlaceError(f"{name} is an empty image of {width}×{height} pixels. Remove it.")
    if width * height > max_pixels:
        raise _too_large(name, f"{width}×{height} pixels", max_pixels)
    orientation = _orientation(image)
    if target is not None and image.format == "JPEG":
        rows, columns = target if orientation < 5 else target[::-1]  # 5 to 8 are turned by 90°
        image.draft(image.mode, (2 * columns, 2 * rows))
    image.load()
    turn = _UPRIGHT.get(orientation)
    # Turning comes first: it is exact in every mode, and later steps drop the metadata.
    return _flatten(_to_eight_bit(image.transpose(turn) if turn is not None else image, name))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    except Exception:  # an image with damaged metadata is still usable
        return 1


def _to_eight_bit(image: Image.Image, name: str) -> Image.Image:
    """Scale modes I;16, I and F by the smallest full range that contains their values."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high) and low >= 0):
        raise KappaPlaceError(f"{name} has negative or undefined pixel values. Convert it to 8-bit RGB.")
    ranges = {"F": (1.0, 255.0, 65535.0), "I": (65535.0, 2.0**31 - 1)}.get(image.mode, (65535.0,))
    full = next((r for r in ranges if high <= r), high)
    return Image.fromarray(np.rint(values * (255.0 / full)).astype(np.uint8))


def _flatten(image: Image.Image) -> Image.Image:
    """Return RGB without alpha; opaque images keep every pixel value."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            image = Image.alpha_composite(Image.new("RGBA", image.size, (*BACKGROUND, 255)), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_array(array: NDArray[np.number], max_pixels: int) -> Image.Image:
    name = f"an array of shape {array.shape}"
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise KappaPlaceError(f"Cannot decode {name}. Pass H×W, H×W×1, H×W×3 or H×W×4, channels last.")
    if array.size == 0:
        raise KappaPlaceError(f"Cannot decode {name}, because it has no pixels. Omit it.")
    if array.shape[0] * array.shape[1] > max_pixels:
        raise _too_large(name, f"{array.shape[1]}×{array.shape[0]} pixels", max_pixels)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if np.issubdtype(array.dtype, np.floating):
        # Values slightly outside [0, 1] are the overshoot of an earlier resize; others mean another scale.
        if not (array.min() >= -1e-3 and array.max() <= 1 + 1e-3):
            raise KappaPlaceError(
                f"Float pixels must be in [0, 1], got {array.min():g} to {array.max():g} in {name}. "
                "Divide them by 255, or pass uint8."
            )
        array = np.rint(np.clip(array, 0, 1) * 255.0).astype(np.uint8)
    elif array.dtype == np.uint16:
        array = np.rint(array / 257.0).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise KappaPlaceError(f"Cannot decode {array.dtype} pixels. Pass uint8, uint16 or float in [0, 1].")
    return Image.fromarray(np.ascontiguousarray(array))


THUMBNAIL_SIZE = (240, 180)
"""Width and height in pixels: a card of the gallery on a phone with two pixels per point."""
QUALITY, LABEL_QUALITY = 78, 80


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


def small_image(path: str, most: int) -> bytes | None:
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
