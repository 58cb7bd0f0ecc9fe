"""What a run learns from, and which images these are.

Images on their way into the network: read or taken from memory, augmented, damaged, normalised.
"""

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
    preprocessing: Preprocessing
    device: torch.device
    workers: int | None = None

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, rows: NDArray[np.int64], size: int) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Rows and their images in the order asked for; images of differing sizes come in smaller parts."""
        if isinstance(self.images, Tensor):
            for start in range(0, len(rows), size):
                part = rows[start : start + size]
                wanted = torch.from_numpy(part)
                if self.images.is_cuda:  # pinned, or the copy would wait for all other work
                    wanted = wanted.pin_memory().to(self.images.device, non_blocking=True)
                chosen = self.images[wanted]
                yield part, chosen.to(self.device, non_blocking=True)
            return
        loader = ImageLoader(self.images, self.preprocessing, size, rows=rows.tolist(), workers=self.workers)
        for batch in loader:
            yield batch.rows, batch.images.to(self.device, non_blocking=True)


@dataclass(frozen=True)
class Views:
    """Augmented views of images; every random choice comes from the view's own key."""

    augmentation: CosPlaceAugmentation
    damage: float
    preprocessing: Preprocessing

    @classmethod
    def create(
        cls, settings: AugmentSettings, size: int, preprocessing: Preprocessing, compiled: bool = False
    ) -> Views:
        """As the settings say."""
        colour = (settings.brightness, settings.contrast, settings.saturation, settings.hue)
        augmentation = CosPlaceAugmentation(size, *colour, scale=(settings.scale, 1.0), compiled=compiled)
        return cls(augmentation, settings.damage, preprocessing)

    def __call__(self, images: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """uint8 B×3×H×W → normalised float32 views."""
        own = self._own(images)
        views = images.float() / 255 if _unchanged(own, images) else own(images, keys=keys)
        if self.damage:
            views = random_degradation(views, p=self.damage, keys=keys).images
        return self.preprocessing.normalise(views)

    def _own(self, images: Tensor) -> CosPlaceAugmentation:
        """The augmentation to the size of training images: 0 means the size that they have."""
        if self.augmentation.size:
            return self.augmentation
        return replace(self.augmentation, size=(images.shape[2], images.shape[3]))

    def clean(self, images: Tensor) -> Tensor:
        """The images as they are."""
        return self.preprocessing.normalise(images)


def _unchanged(own: CosPlaceAugmentation, images: Tensor) -> bool:
    """Whether augmentation would leave the images as they are: no colour, no crop, no new size."""
    colour = own.brightness or own.contrast or own.saturation or own.hue
    size = (own.size, own.size) if isinstance(own.size, int) else own.size
    return not colour and own.scale == (1.0, 1.0) and tuple(images.shape[2:]) == size


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Images with what is known of their places."""

    images: Images
    positions: NDArray[np.float64]
    heading: NDArray[np.floating] | None = None
    place: NDArray[np.int64] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        for what in ("positions", "heading", "place"):
            column = getattr(self, what)
            if column is not None and len(column) != len(self.images):
                raise KappaPlaceError(
                    f"There are {len(self.images)} images but {len(column)} rows of {what}."
                )

    @cached_property
    def fingerprint(self) -> str:
        """Which images of which places."""
        digest = hashlib.sha256(fingerprint_images(self.images, times=False))
        for column in (self.positions, self.heading, self.place):
            digest.update(b"-" if column is None else np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    @classmethod
    def from_table(cls, table: PlaceImages) -> TrainingSet:
        """All images of a table, queries and references alike."""
        if not len(table):
            raise KappaPlaceError("The training table is empty.")
        return cls(table.image_paths(), table.positions, table.heading, table.place, table.name)


def fingerprint_images(images: Images, times: bool) -> bytes:
    """Which images they are: pixels in memory, or names and sizes of files, with or without their times.

    Without times a copied or touched folder is the same; with them a changed image of the same size is not.
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
                raise KappaPlaceError(f"No image file at {image}; check the table's root.") from None
            name = "/".join(Path(image).parts[-2:])
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns if times else ''}\n".encode())
        else:
            digest.update(np.asarray(image).tobytes())
    return digest.digest()


def _checksums(images: Tensor) -> Tensor:
    """One number an image, computed where the images are: gigabytes on a GPU need not travel to be hashed."""
    flat = images.reshape(len(images), -1)
    words = nn.functional.pad(flat, (0, -flat.shape[1] % 8)).view(torch.int64)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-(2**62), 2**62, (words.shape[1],), generator=generator).to(images.device)
    return (words * (2 * weights + 1)).sum(1)  # odd weights: every changed bit changes the sum
