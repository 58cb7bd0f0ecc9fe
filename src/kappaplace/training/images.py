"""Training images, their places, and the augmented views that the network sees."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kappaplace.data.augment import CosPlaceAugmentation
from kappaplace.data.degradation import random_degradation
from kappaplace.data.images import Preprocessing, Source
from kappaplace.data.loader import ImageLoader
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.training.settings import AugmentSettings

Images = Sequence[Source] | Tensor
"""Paths or other sources, or uint8 N×3×H×W in memory."""


@dataclass(frozen=True)
class ImageSource:
    """Batches of uint8 images on a device, from files or from memory."""

    images: Images
    """The images."""
    preprocessing: Preprocessing
    """Preprocessing, which resizes images from files."""
    device: torch.device
    """Device of the batches."""
    workers: int | None = None
    """Number of threads that decode files. Default: one per core."""

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, rows: NDArray[np.int64], size: int) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Yield rows and their images, in order; images of different sizes come in smaller batches."""
        if isinstance(self.images, Tensor):
            for start in range(0, len(rows), size):
                part = rows[start : start + size]
                index = torch.from_numpy(part)
                if self.images.is_cuda:  # pinned, because another copy would wait for all other work
                    index = index.pin_memory().to(self.images.device, non_blocking=True)
                yield part, self.images[index].to(self.device, non_blocking=True)
            return
        loader = ImageLoader(self.images, self.preprocessing, size, rows=rows.tolist(), workers=self.workers)
        for batch in loader:
            yield batch.rows, batch.images.to(self.device, non_blocking=True)


@dataclass(frozen=True)
class Views:
    """Augmented views of images; every random choice depends on the key of the view."""

    augmentation: CosPlaceAugmentation
    """Augmentation of crops and colours."""
    damage: float
    """Fraction of views that are degraded."""
    preprocessing: Preprocessing
    """Preprocessing, which normalizes the views."""

    @classmethod
    def create(
        cls, settings: AugmentSettings, size: int, preprocessing: Preprocessing, compiled: bool = False
    ) -> Views:
        """Return the views that the settings describe.

        Args:
            settings: Options of the augmentation.
            size: Side of the views in pixels. 0 for the size of the images.
            preprocessing: Normalizes the views.
            compiled: Whether to compile the augmentation.

        Returns:
            The views.
        """
        color = (settings.brightness, settings.contrast, settings.saturation, settings.hue)
        augmentation = CosPlaceAugmentation(size, *color, scale=(settings.scale, 1.0), compiled=compiled)
        return cls(augmentation, settings.damage, preprocessing)

    def __call__(self, images: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """Return normalized float32 views of uint8 images B×3×H×W."""
        own = self._own(images)
        views = images.float() / 255 if _unchanged(own, images) else own(images, keys=keys)
        if self.damage:
            views = random_degradation(views, p=self.damage, keys=keys).images
        return self.preprocessing.normalize(views)

    def _own(self, images: Tensor) -> CosPlaceAugmentation:
        """Return the augmentation with a fixed size: size 0 is replaced by the size of the images."""
        if self.augmentation.size:
            return self.augmentation
        return replace(self.augmentation, size=(images.shape[2], images.shape[3]))

    def clean(self, images: Tensor) -> Tensor:
        """Return the unchanged images, normalized."""
        return self.preprocessing.normalize(images)


def _unchanged(own: CosPlaceAugmentation, images: Tensor) -> bool:
    """Return whether the augmentation leaves images unchanged: it has no colour change, no crop and no new
    size."""
    color = own.brightness or own.contrast or own.saturation or own.hue
    size = (own.size, own.size) if isinstance(own.size, int) else own.size
    return not color and own.scale == (1.0, 1.0) and tuple(images.shape[2:]) == size


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Training images and their places."""

    images: Images
    """Paths or other sources, or uint8 N×3×H×W in memory."""
    positions: NDArray[np.float64]
    """Positions in metres, N×2. NaN if unknown."""
    heading: NDArray[np.floating] | None = None
    """Headings in degrees (N). Default: unknown."""
    place: NDArray[np.int64] | None = None
    """Place labels (N); below 0 if unknown. Default: unknown."""
    name: str = ""
    """Name of the dataset."""

    def __post_init__(self) -> None:
        for name in ("positions", "heading", "place"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.images):
                raise KappaPlaceError(
                    f"{name} must have one row per image ({len(self.images)}), got {len(column)}."
                )

    @cached_property
    def by_name(self) -> NDArray[np.int64]:
        """Rows of the images, sorted by path; images in memory keep their order."""
        if not all(isinstance(image, str | os.PathLike) for image in self.images):
            return np.arange(len(self.images))
        names = [Path(str(image)).as_posix() for image in self.images]
        return np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the images and their places."""
        digest = hashlib.sha256(fingerprint_images(self.images, times=False))
        for column in (self.positions, self.heading, self.place):
            digest.update(b"-" if column is None else np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    @classmethod
    def from_table(cls, table: PlaceImages) -> TrainingSet:
        """Return all images of a table, queries and references."""
        if not len(table):
            raise KappaPlaceError("The training table is empty. Pass a table with images.")
        return cls(table.image_paths(), table.positions, table.heading, table.place, table.name)


def fingerprint_images(images: Images, times: bool) -> bytes:
    """Return a hash of the images: pixels in memory, or names, sizes and optionally times of files.

    Args:
        images: The images.
        times: Whether to include the times of files. Then a changed image of the same size is detected, but a
            copy of a folder has another hash.

    Returns:
        The hash.
    """
    digest = hashlib.sha256()
    if isinstance(images, Tensor):
        digest.update(repr((tuple(images.shape), images.dtype)).encode())
        for part in images.split(1024):
            digest.update(_checksums(part).cpu().numpy().tobytes())
        return digest.digest()
    for image in images:
        if isinstance(image, str | os.PathLike):
            try:
                facts = os.stat(image)
            except OSError:
                raise KappaPlaceError(
                    f"There is no image file {image}. Check the root of the table."
                ) from None
            name = "/".join(Path(image).parts[-2:])
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns if times else ''}\n".encode())
        else:
            digest.update(np.asarray(image).tobytes())
    return digest.digest()


def _checksums(images: Tensor) -> Tensor:
    """Return one number per image, computed on the device of the images to avoid a copy of gigabytes."""
    flat = images.reshape(len(images), -1)
    words = nn.functional.pad(flat, (0, -flat.shape[1] % 8)).view(torch.int64)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-(2**62), 2**62, (words.shape[1],), generator=generator).to(images.device)
    return (words * (2 * weights + 1)).sum(1)  # weights are odd, so that every changed bit changes the sum
