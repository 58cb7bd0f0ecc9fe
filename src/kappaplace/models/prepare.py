"""Images from anywhere as a model's input on its device, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kappaplace.data.images import Preprocessing, Source
from kappaplace.data.loader import ImageLoader
from kappaplace.data.resample import resized, size_to_leave
from kappaplace.models.transfer import Upload

MANY = 64
"""Images from which on it pays to decode one more, and to try whether the GPU gives what Pillow gives."""


def prepared(
    sources: Sequence[Source], preprocessing: Preprocessing, batch_size: int, weight: Tensor
) -> Iterator[Tensor]:
    """Batches on the device of a model's ``weight`` and in its type, normalised."""
    loader = loader_for(sources, preprocessing, batch_size, weight.device)
    upload = Upload(weight.device)
    parts: list[Tensor] = []
    for batch in loader:
        moved = upload(batch.images)
        parts.append(moved if loader.unresized is None else resized(moved, preprocessing))
        # Images that kept their size and others come apart, and are one batch again once resized.
        if loader.unresized is None or sum(map(len, parts)) >= batch_size:
            yield _input(parts, preprocessing, weight)
            parts = []
    if parts:
        yield _input(parts, preprocessing, weight)


def loader_for(
    sources: Sequence[Source], preprocessing: Preprocessing, batch_size: int, device: torch.device
) -> ImageLoader:
    """A loader that leaves resizing to a GPU, which does it in passing, where its result is the same."""
    worth_a_trial = device.type == "cuda" and len(sources) >= MANY
    left = size_to_leave(sources, preprocessing) if worth_a_trial else None
    return ImageLoader(sources, preprocessing, batch_size, unresized=left)


def _input(parts: list[Tensor], preprocessing: Preprocessing, weight: Tensor) -> Tensor:
    return preprocessing.normalise(parts[0] if len(parts) == 1 else torch.cat(parts)).to(weight.dtype)
