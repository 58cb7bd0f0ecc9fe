"""From any picture to an RGB image (`decode`) and on to the tensor a model eats (`Preprocessing`).

HEIC photos, as phones write them: opened through an optional extra, asked for only when one comes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from kappaplace.errors import KappaPlaceError, MissingExtra

if TYPE_CHECKING:
    import torch


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
        raise MissingExtra("Reading HEIC photos", "heic") from None
    register_heif_opener()


Source: TypeAlias = "str | os.PathLike[str] | bytes | Image.Image | NDArray[Any]"
ResizeMode = Literal["none", "exact", "shorter", "longer", "crop"]
Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]

# Pillow's own alarm threshold: 0.25 GiB of 24-bit pixels. Photos of places are ten times smaller.
MAX_PIXELS = 89_478_485
# Transparent regions become mid-grey, close to zero after normalisation: they then say nothing.
BACKGROUND = (128, 128, 128)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

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
_RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}


def decode(
    source: Source,
    *,
    max_pixels: int = MAX_PIXELS,
    target: tuple[int, int] | None = None,
    formats: Sequence[str] | None = None,
) -> Image.Image:
    """An upright 8-bit RGB image from a path, encoded bytes, a Pillow image or an array.

    Arrays are H×W, H×W×1, H×W×3 or H×W×4: uint8, uint16 (full range) or float in [0, 1]. EXIF orientation is
    applied, depths beyond 8 bit are scaled by their full range, alpha is composited on mid-grey, and of a
    file with several frames the first is taken. HEIC needs the extra "heic".

    `target` (height, width) says that the image will be shrunk to about this size: JPEGs at least four times
    as large are then decoded at a half, a quarter or an eighth, always at least twice the target.

    `formats` are the only ones that files and bytes may have, by Pillow's names: for bytes from strangers.
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
        raise KappaPlaceError(
            f"No image file at {name}; check the path and the folder it is relative to."
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise KappaPlaceError(_too_large(name, "far more pixels than a photo", max_pixels)) from None
    except UnidentifiedImageError:
        known = (
            "a format that Pillow reads" if formats is None else f"one of these formats: {', '.join(formats)}"
        )
        raise KappaPlaceError(f"{name} is not an image in {known}; remove or convert it.") from None
    except Exception as error:
        # Decoders meet hostile bytes with many exception types (struct, zlib, Syntax, Value, OS errors ...).
        raise KappaPlaceError(
            f"Cannot decode {name} ({error}); the file is corrupt or unreadable."
        ) from error


def _name(source: Any) -> str:
    if isinstance(source, bytes):
        return f"<{len(source)} bytes of image data>"
    if isinstance(source, Image.Image):
        return str(getattr(source, "filename", "") or "<image in memory>")
    if not isinstance(source, str | os.PathLike):
        raise KappaPlaceError(
            f"Cannot decode a {type(source).__name__}; give a path, bytes, a Pillow image or a NumPy array."
        )
    return os.fspath(source)


def _too_large(name: str, what: str, max_pixels: int) -> str:
    return f"Refused {name}: {what} (limit {max_pixels:,}), perhaps a bomb; shrink it or raise max_pixels."


def _load(image: Image.Image, name: str, max_pixels: int, target: tuple[int, int] | None) -> Image.Image:
    width, height = image.size
    if width * height == 0:
        raise KappaPlaceError(f"{name} is an empty image of {width}×{height} pixels; remove it.")
    if width * height > max_pixels:
        raise KappaPlaceError(_too_large(name, f"{width}×{height} pixels", max_pixels))
    orientation = _orientation(image)
    if target is not None and image.format == "JPEG":
        rows, columns = target if orientation < 5 else target[::-1]  # 5 to 8 lie on their side
        image.draft(image.mode, (2 * columns, 2 * rows))
    image.load()
    turn = _UPRIGHT.get(orientation)
    # Turning comes first: it is exact in every mode, while later steps drop the metadata.
    return _flatten(_to_eight_bit(image.transpose(turn) if turn is not None else image, name))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    except Exception:  # damaged metadata does not make the picture unusable
        return 1


def _to_eight_bit(image: Image.Image, name: str) -> Image.Image:
    """Scale modes I;16, I and F by the smallest full range that holds their values."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high) and low >= 0):
        raise KappaPlaceError(
            f"{name} holds negative or undefined pixel values; convert it to 8-bit RGB first."
        )
    ranges = {"F": (1.0, 255.0, 65535.0), "I": (65535.0, 2.0**31 - 1)}.get(image.mode, (65535.0,))
    full = next((r for r in ranges if high <= r), high)
    return Image.fromarray(np.rint(values * (255.0 / full)).astype(np.uint8))


def _flatten(image: Image.Image) -> Image.Image:
    """RGB without alpha; opaque images keep every pixel value."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            image = Image.alpha_composite(Image.new("RGBA", image.size, (*BACKGROUND, 255)), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_array(array: NDArray[Any], max_pixels: int) -> Image.Image:
    name = f"an array of shape {array.shape}"
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise KappaPlaceError(
            f"Cannot read {name} as an image; give H×W, H×W×1, H×W×3 or H×W×4, channels last."
        )
    if array.size == 0:
        raise KappaPlaceError(f"Cannot read {name} as an image: it is empty.")
    if array.shape[0] * array.shape[1] > max_pixels:
        raise KappaPlaceError(_too_large(name, f"{array.shape[1]}×{array.shape[0]} pixels", max_pixels))
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if np.issubdtype(array.dtype, np.floating):
        # A hair outside [0, 1] is the overshoot of an earlier resize; more means another scale.
        if not (array.min() >= -1e-3 and array.max() <= 1 + 1e-3):
            raise KappaPlaceError(
                f"Cannot read {name}: floats must lie in [0, 1]; divide by 255 or pass uint8."
            )
        array = np.rint(np.clip(array, 0, 1) * 255.0).astype(np.uint8)
    elif array.dtype == np.uint16:
        array = np.rint(array / 257.0).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise KappaPlaceError(f"Cannot read {name} of {array.dtype}; give uint8, uint16 or float in [0, 1].")
    return Image.fromarray(np.ascontiguousarray(array))


Box = tuple[float, float, float, float]
"""Left, top, right, bottom of a part of an image."""


class Resize(NamedTuple):
    """From one size to another, both (height, width)."""

    before: tuple[int, int]
    after: tuple[int, int]
    interpolation: Interpolation
    box: Box | None = None
    """The part that is taken; all by default."""


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes model input; stored with every model, so both always agree.

    Calling it gives float32 3×H×W, normalised. Where the device does the arithmetic, use `to_uint8` when
    loading and `normalise` on the batch: a quarter of the bytes travel.

    >>> Preprocessing(size=512, mode="shorter").output_size(480, 640)
    (512, 683)
    """

    size: int | tuple[int, int] | None = None
    """Side in pixels, or (height, width); None only with mode "none"."""
    mode: ResizeMode = "none"
    """none: native size; exact: to `size`, aspect ignored; shorter, longer: that side to `size`, aspect
    kept; crop: cover `size` with aspect kept, then cut the centre."""
    interpolation: Interpolation = "bilinear"
    """With antialias, except nearest."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    multiple: int = 1
    """Sides are rounded to the nearest multiple of this: the patch size of a vision transformer."""

    def __post_init__(self) -> None:
        for name in ("size", "mean", "std"):
            value = getattr(self, name)
            if isinstance(value, list):  # as JSON gives it
                object.__setattr__(self, name, tuple(value))
        _check(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """The inverse of `to_dict`; missing keys take their defaults."""
        if not isinstance(values, dict):
            raise KappaPlaceError(f"Preprocessing must be given as settings by name; got {values!r}.")
        unknown = sorted(set(values) - {f.name for f in fields(cls)})
        if unknown:
            raise KappaPlaceError(
                f"Unknown preprocessing settings {unknown}; known: {[f.name for f in fields(cls)]}."
            )
        try:
            return cls(**values)
        except TypeError as error:  # a list where a word should be, a fraction as a size
            raise KappaPlaceError(f"Bad preprocessing: {error}; got {values}.") from None

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) if every image gets the same, else None."""
        return self.output_size(1, 1) if self.mode in ("exact", "crop") else None

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the result for an upright image of this size."""
        if self.mode in ("exact", "crop"):
            height, width = self._pair()
        elif self.mode != "none":
            side = min(height, width) if self.mode == "shorter" else max(height, width)
            height, width = (round(n * self._pair()[0] / side) for n in (height, width))
        m = self.multiple
        return max(m, round(height / m) * m), max(m, round(width / m) * m)

    def image(self, source: Source, unresized: tuple[int, int] | None = None) -> Image.Image:
        """The decoded image at its output size, RGB; one of the (height, width) `unresized` stays."""
        picture = self.decoded(source)
        return picture if (picture.height, picture.width) == unresized else self.resized(picture)

    def decoded(self, source: Source) -> Image.Image:
        """The image before it is resized; a large JPEG comes at a half, a quarter or an eighth (`decode`)."""
        return decode(source, target=None if self.mode == "none" else self._pair())

    def resized(self, picture: Image.Image) -> Image.Image:
        """What was decoded, at its output size."""
        how = self.resizing(picture.height, picture.width)
        if how.before == how.after:
            return picture
        return picture.resize(how.after[::-1], _RESAMPLING[how.interpolation], box=how.box)

    def resizing(self, height: int, width: int) -> Resize:
        """What `resized` does to a decoded image of this size."""
        after = self.output_size(height, width)
        box = _centre_box((height, width), after) if self.mode == "crop" else None
        return Resize((height, width), after, self.interpolation, box)

    def to_uint8(self, source: Source) -> torch.Tensor:
        """uint8 3×H×W, before normalisation: a view of H×W×3 memory, so no pixel is moved."""
        import torch

        return torch.from_numpy(np.array(self.image(source))).permute(2, 0, 1)

    def normalise(self, batch: torch.Tensor) -> torch.Tensor:
        """float32 from uint8 or from float in [0, 1]; (N×)3×H×W, on the device of the batch."""
        import torch

        # Sent without waiting: a GPU that is behind would hold up whoever prepares its next batch.
        mean, std = (
            torch.tensor(v).view(3, 1, 1).to(batch.device, non_blocking=True) for v in (self.mean, self.std)
        )
        full = 1.0 if batch.is_floating_point() else 255.0
        return batch.to(torch.float32).mul(1 / (full * std)).sub_(mean / std)

    def __call__(self, source: Source) -> torch.Tensor:
        """float32 3×H×W, normalised."""
        return self.normalise(self.to_uint8(source)).contiguous()

    def _pair(self) -> tuple[int, int]:
        assert self.size is not None  # checked on creation
        return (self.size, self.size) if isinstance(self.size, int) else self.size


def _centre_box(before: tuple[int, int], after: tuple[int, int]) -> Box:
    """The largest centred part with the aspect of the output: cutting before resizing saves work."""
    scale = min(old / new for old, new in zip(before, after, strict=True))
    down, right = (new * scale for new in after)
    top, left = (before[0] - down) / 2, (before[1] - right) / 2
    return (
        max(left, 0),
        max(top, 0),
        min(left + right, before[1]),
        min(top + down, before[0]),
    )


def _three_numbers(values: Any) -> bool:
    return isinstance(values, tuple) and len(values) == 3 and all(isinstance(v, int | float) for v in values)


def _check(p: Preprocessing) -> None:
    sides = (p.size,) if isinstance(p.size, int) else p.size
    problems = {
        f"mode must be one of {get_args(ResizeMode)}": p.mode not in get_args(ResizeMode),
        f"interpolation must be one of {get_args(Interpolation)}": p.interpolation not in _RESAMPLING,
        "size must be None with mode 'none' and given with every other": (p.mode == "none")
        != (sides is None),
        "size must be one or two positive integers (height, width)": sides is not None
        and not (len(sides) in (1, 2) and all(isinstance(n, int) and n > 0 for n in sides)),
        "modes 'shorter' and 'longer' take a single size": p.mode in ("shorter", "longer")
        and not isinstance(p.size, int),
        "mean and std need three numbers each, std above zero": not (
            _three_numbers(p.mean) and _three_numbers(p.std) and all(s > 0 for s in p.std)
        ),
        "multiple must be a positive integer": not (isinstance(p.multiple, int) and p.multiple > 0),
    }
    for sentence, wrong in problems.items():
        if wrong:
            raise KappaPlaceError(f"Bad preprocessing: {sentence}; got {p}.")
