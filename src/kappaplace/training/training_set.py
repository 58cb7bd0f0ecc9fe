"""What a run learns from, and which images these are."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kappaplace.data.place_images import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.training.views import Images


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
