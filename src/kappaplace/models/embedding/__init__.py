"""Embed any number of images with any model: decode, move to the device, run, collect as NumPy.

Batches travel to the device and results back while the device computes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing, Source
from kappaplace.data.loader import ImageLoader
from kappaplace.data.resample import resized, size_to_leave
from kappaplace.errors import KappaPlaceError
from kappaplace.progress import track
from kappaplace.types import Embeddings

MANY = 64
"""Images from which on it pays to decode one more, and to try whether the GPU gives what Pillow gives."""
Item = TypeVar("Item")


def check_images(images: Tensor) -> None:
    """Models take RGB batches; anything else is told in one sentence."""
    if images.ndim != 4 or images.shape[1] != 3:
        raise KappaPlaceError(
            f"Expected a batch of RGB images, B×3×H×W, got shape {tuple(images.shape)}; convert to RGB "
            "or use model.embed, which does."
        )
    if not images.is_floating_point():
        raise KappaPlaceError(
            f"Expected normalized images in floating point, got {images.dtype}; use model.embed, which "
            "takes pictures as they are."
        )


def as_sources(images: Iterable[Source] | Source) -> Sequence[Source]:
    """One image or many, as a sequence of sources."""
    if isinstance(images, str | os.PathLike | bytes | Image.Image):
        return [images]
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    if not isinstance(images, Iterable):
        raise KappaPlaceError(
            f"Cannot embed a {type(images).__name__}; give paths, Pillow images or H×W×3 arrays."
        )
    return list(images)


def usable_device(name: str | torch.device) -> torch.device:
    """A device that exists here, or one sentence."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise KappaPlaceError(f"The device '{name}' cannot be used here: {reason}") from None
    return device


@torch.inference_mode()
def embed_images(
    model: nn.Module,
    preprocessing: Preprocessing,
    images: Iterable[Source] | Source,
    *,
    batch_size: int = 32,
    device: str | torch.device | None = None,
    progress: bool = True,
) -> Embeddings:
    """Embeddings (NumPy float32) of paths, Pillow images or H×W×3 arrays, in their order.

    The model runs in evaluation mode and returns to its own afterwards; ``device`` moves it there to stay.
    """
    if batch_size < 1:
        raise KappaPlaceError(f"The batch size must be at least 1, got {batch_size}.")
    sources = as_sources(images)
    if not sources:
        raise KappaPlaceError("There is nothing to embed: the list of images is empty.")
    if device is not None:
        model.to(usable_device(device))
    weight = next(model.parameters())
    was_training = model.training
    model.eval()
    parts: list[Embeddings] = []

    def computed() -> Iterator[Download]:
        for batch in prepared(sources, preprocessing, batch_size, weight):
            yield Download([None if x is None else x.float() for x in model(batch)])

    try:
        with track("Embedding", len(sources)) if progress else nullcontext(None) as bar:
            # On a GPU the next batch is under way while this one's answer is fetched.
            for made in computed() if weight.device.type == "cpu" else one_ahead(computed()):
                parts.append(Embeddings(*made.arrays()))
                if bar is not None:
                    bar.advance(len(parts[-1].descriptor))
    finally:
        model.train(was_training)
    return join(parts)


@torch.inference_mode()
def embed_patches(
    model: nn.Module,
    preprocessing: Preprocessing,
    images: Iterable[Source] | Source,
    *,
    batch_size: int = 32,
) -> Tensor:
    """Patch maps of images (`PlaceModel.patch_maps`), float16 on the model's device; all of one size."""
    weight = next(model.parameters())
    was_training = model.training
    model.eval()
    sources = as_sources(images)
    maps: list[Tensor] = []
    try:
        for batch in prepared(sources, preprocessing, batch_size, weight):
            maps.extend(model.patch_maps(batch).half())  # type: ignore[operator]
    finally:
        model.train(was_training)
    if len({one.shape for one in maps}) > 1:
        raise KappaPlaceError(
            "Comparing cells needs images of one size; use a preprocessing with a fixed size."
        )
    return torch.stack(maps)


def join(parts: Sequence[Embeddings]) -> Embeddings:
    """Embeddings of several batches as one."""
    columns = zip(*parts, strict=True)
    return Embeddings(*(None if column[0] is None else np.concatenate(column) for column in columns))


def prepared(
    sources: Sequence[Source], preprocessing: Preprocessing, batch_size: int, weight: Tensor
) -> Iterator[Tensor]:
    """Batches on the device of a model's ``weight`` and in its type, normalized."""
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


class Upload:
    """Moves batches to a device; to a GPU beside what it computes, through memory that it reads itself."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, images: Tensor) -> Tensor:
        if self.stream is None:
            return images.to(self.device)
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            moved = images.pin_memory().to(self.device, non_blocking=True)
        computing.wait_stream(self.stream)
        moved.record_stream(computing)
        return moved


class Download:
    """Results on their way to memory: waiting for them does not wait for what the device was given later."""

    def __init__(self, values: Sequence[Tensor | None]) -> None:
        self._values = [None if one is None else _begin_copy(one) for one in values]
        on_gpu = next((one.device for one in values if one is not None and one.is_cuda), None)
        self._arrived = None if on_gpu is None else torch.cuda.current_stream(on_gpu).record_event()

    def arrays(self) -> list[NDArray[Any] | None]:
        """The values, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [None if one is None else one.numpy() for one in self._values]


def _begin_copy(values: Tensor) -> Tensor:
    if not values.is_cuda:
        return values.cpu()
    # A copy that does not wait needs memory that the device can write itself.
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, the next one begun before the last is handed out: the device works while we write."""
    held: list[Item] = []
    for item in items:
        held.append(item)
        if len(held) > 1:
            yield held.pop(0)
    yield from held
