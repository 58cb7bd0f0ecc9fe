"""Preprocessing: the conversion of an image to the input of a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from kappaplace.checks import choice
from kappaplace.data.decoding import HEIF as HEIF
from kappaplace.data.decoding import Source as Source
from kappaplace.data.decoding import decode as decode
from kappaplace.data.decoding import open_image as open_image
from kappaplace.errors import KappaPlaceError
from kappaplace.types import Json

if TYPE_CHECKING:
    import torch

ResizeMode = Literal["none", "exact", "shorter", "longer", "crop"]
Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a part of an image."""


class Resize(NamedTuple):
    """One resize operation; sizes are (height, width)."""

    before: tuple[int, int]
    after: tuple[int, int]
    interpolation: Interpolation
    box: Box | None = None
    """Part of the image to use. Default: all of it."""


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of an image to model input. It is stored with every model, so the two always match.

    A call returns an image as normalized float32 3×H×W. To normalize on the device of the model, load with
    `to_uint8` and call `normalize` on the batch, which transfers a quarter of the bytes.

    >>> Preprocessing(size=512, mode="shorter").output_size(480, 640)
    (512, 683)
    """

    size: int | tuple[int, int] | None = None
    """Side in pixels, or (height, width). None only with mode "none"."""
    mode: ResizeMode = "none"
    """Mode of resizing: "none" keeps the native size, and "exact" resizes to `size` and changes the aspect.
    The others preserve the aspect: "shorter" and "longer" resize this side to `size`, and "crop" covers
    `size` and crops the center."""
    interpolation: Interpolation = "bilinear"
    """Method of resizing; all except "nearest" use antialiasing."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Mean of each channel, subtracted from pixels in [0, 1]. Default: ImageNet."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Standard deviation of each channel, by which the difference is divided. Default: ImageNet."""
    multiple: int = 1
    """Sides are rounded to the nearest multiple of this, such as the patch size of a vision transformer."""
    reduced_jpeg: bool = True
    """Whether JPEGs at least four times as large as `size` are decoded at a reduced size, which is faster."""

    def __post_init__(self) -> None:
        for name in ("size", "mean", "std"):
            value = getattr(self, name)
            if isinstance(value, list):  # from JSON
                object.__setattr__(self, name, tuple(value))
        _check(self)

    def to_dict(self) -> dict[str, Json]:
        """Return the settings as JSON values.

        Returns:
            One value per field, in the order of the fields; ``reduced_jpeg`` only if it is false.
        """
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        if self.reduced_jpeg:  # so that models and stores of earlier versions keep their fingerprints
            del values["reduced_jpeg"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """Build a preprocessing from the settings that `to_dict` returns.

        Args:
            values: Value of each field; missing fields get their default.

        Returns:
            The preprocessing.

        Raises:
            KappaPlaceError: If a field is unknown or a value is invalid.
        """
        if not isinstance(values, dict):
            raise KappaPlaceError(f"Preprocessing must be a mapping of settings, got {values!r}.")
        names = [field.name for field in fields(cls)]
        for name in values:
            choice(name, names, "preprocessing setting")
        try:
            return cls(**values)
        except TypeError as error:  # a list instead of a word, a fraction as a size
            raise KappaPlaceError(f"Invalid preprocessing: {error}, got {values}.") from None

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) if it is the same for every image, otherwise None."""
        return self.output_size(1, 1) if self.mode in ("exact", "crop") else None

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the result.

        Args:
            height: Height of the upright image in pixels.
            width: Width of the upright image in pixels.

        Returns:
            (height, width) in pixels.
        """
        if self.mode in ("exact", "crop"):
            height, width = self._pair()
        elif self.mode != "none":
            side = min(height, width) if self.mode == "shorter" else max(height, width)
            height, width = (round(n * self._pair()[0] / side) for n in (height, width))
        m = self.multiple
        return max(m, round(height / m) * m), max(m, round(width / m) * m)

    def image(self, source: Source, unresized: tuple[int, int] | None = None) -> Image.Image:
        """Decode and resize an image.

        Args:
            source: Any image that `decode` accepts.
            unresized: An image that is decoded to this (height, width) is not resized. Default: resize all.

        Returns:
            The image, RGB.

        Raises:
            KappaPlaceError: If the image cannot be decoded.
        """
        image = self.decoded(source)
        return image if (image.height, image.width) == unresized else self.resized(image)

    def decoded(self, source: Source) -> Image.Image:
        """Decode an image without resizing it.

        Args:
            source: Any image that `decode` accepts.

        Returns:
            The image, RGB. A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size (see `decode`).

        Raises:
            KappaPlaceError: If the image cannot be decoded.
        """
        full = self.mode == "none" or not self.reduced_jpeg
        return decode(source, target=None if full else self._pair())

    def resized(self, image: Image.Image) -> Image.Image:
        """Resize a decoded image.

        Args:
            image: The result of `decoded`.

        Returns:
            The image at its output size.
        """
        resize = self.resizing(image.height, image.width)
        if resize.before == resize.after:
            return image
        return image.resize(resize.after[::-1], Image.Resampling[resize.interpolation.upper()], resize.box)

    def resizing(self, height: int, width: int) -> Resize:
        """Return the operation by which `resized` resizes an image.

        Args:
            height: Height of the decoded image in pixels.
            width: Width of the decoded image in pixels.

        Returns:
            The operation.
        """
        after = self.output_size(height, width)
        box = _center_box((height, width), after) if self.mode == "crop" else None
        return Resize((height, width), after, self.interpolation, box)

    def to_uint8(self, source: Source) -> torch.Tensor:
        """Decode and resize an image, without normalization.

        Args:
            source: Any image that `decode` accepts.

        Returns:
            uint8 3×H×W, a view of H×W×3 memory.

        Raises:
            KappaPlaceError: If the image cannot be decoded.
        """
        import torch

        return torch.from_numpy(np.array(self.image(source))).permute(2, 0, 1)

    def normalize(self, batch: torch.Tensor) -> torch.Tensor:
        """Normalize images by mean and standard deviation.

        Args:
            batch: 3×H×W or N×3×H×W, uint8 or float in [0, 1].

        Returns:
            float32 of the same shape, on the same device.
        """
        import torch

        # Copied asynchronously: otherwise a busy GPU would delay the preparation of its next batch.
        mean, std = (
            torch.tensor(v).view(3, 1, 1).to(batch.device, non_blocking=True) for v in (self.mean, self.std)
        )
        full = 1.0 if batch.is_floating_point() else 255.0
        return batch.to(torch.float32).mul(1 / (full * std)).sub_(mean / std)

    def __call__(self, source: Source) -> torch.Tensor:
        """Return an image as normalized float32 3×H×W."""
        return self.normalize(self.to_uint8(source)).contiguous()

    def _pair(self) -> tuple[int, int]:
        assert self.size is not None  # checked by __post_init__
        return (self.size, self.size) if isinstance(self.size, int) else self.size


def _center_box(before: tuple[int, int], after: tuple[int, int]) -> Box:
    """Return the largest centered part with the aspect of the output: cropping before resizing saves work."""
    scale = min(old / new for old, new in zip(before, after, strict=True))
    height, width = (new * scale for new in after)
    top, left = (before[0] - height) / 2, (before[1] - width) / 2
    return max(left, 0), max(top, 0), min(left + width, before[1]), min(top + height, before[0])


def _three_numbers(values: tuple[float, float, float]) -> bool:
    return isinstance(values, tuple) and len(values) == 3 and all(isinstance(v, int | float) for v in values)


def _check(p: Preprocessing) -> None:
    choice(p.mode, ResizeMode, "mode of resizing")
    choice(p.interpolation, Interpolation, "interpolation")
    sides = (p.size,) if isinstance(p.size, int) else p.size
    problems = {
        "size must be None with mode 'none', and only then": (p.mode == "none") != (sides is None),
        "size must be one or two positive integers (height, width)": sides is not None
        and not (len(sides) in (1, 2) and all(isinstance(n, int) and n > 0 for n in sides)),
        "modes 'shorter' and 'longer' need a single size": p.mode in ("shorter", "longer")
        and not isinstance(p.size, int),
        "mean and std must be three numbers each, and std must be positive": not (
            _three_numbers(p.mean) and _three_numbers(p.std) and all(s > 0 for s in p.std)
        ),
        "multiple must be a positive integer": not (isinstance(p.multiple, int) and p.multiple > 0),
    }
    for rule, broken in problems.items():
        if broken:
            raise KappaPlaceError(f"Invalid preprocessing: {rule}, got {p}.")
