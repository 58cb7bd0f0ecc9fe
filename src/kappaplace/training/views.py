"""Images on their way into the network: read or taken from memory, augmented, damaged, normalised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.data.augment import CosPlaceAugmentation
from kappaplace.data.degrade import random_degradation
from kappaplace.data.images import Preprocessing, Source
from kappaplace.data.loader import ImageLoader
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
