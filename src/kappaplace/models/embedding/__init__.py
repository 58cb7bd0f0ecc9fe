"""Embed images with any model: decode, move to the device, run, collect as NumPy arrays.

Batches and results are copied while the device computes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from kappaplace.checks import within
from kappaplace.data.images import Preprocessing, Source
from kappaplace.data.loader import ImageLoader
from kappaplace.data.resample import resized, size_to_leave
from kappaplace.errors import KappaPlaceError
from kappaplace.files import reason
from kappaplace.progress import track
from kappaplace.types import Embeddings

MANY = 64
"""Fewest images for which it is worth checking whether the GPU resizes as Pillow does."""
Item = TypeVar("Item")


def check_images(images: Tensor) -> None:
    """Raise an error unless the images are a normalized RGB batch."""
    if images.ndim != 4 or images.shape[1] != 3:
        raise KappaPlaceError(
            f"Expected RGB images of shape B×3×H×W, got {tuple(images.shape)}. Use model.embed, which "
            "converts images."
        )
    if not images.is_floating_point():
        raise KappaPlaceError(
            f"Expected normalized images in floating point, got {images.dtype}. Use model.embed, which "
            "normalizes images."
        )


def as_sources(images: Iterable[Source] | Source) -> Sequence[Source]:
    """Return one image or several as a sequence."""
    if isinstance(images, str | os.PathLike | bytes | Image.Image):
        return [images]
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    if not isinstance(images, Iterable):
        raise KappaPlaceError(f"Cannot embed a {type(images).__name__}. Pass paths, Pillow images or arrays.")
    return list(images)


def usable_device(name: str | torch.device) -> torch.device:
    """Return a device; raise an error if this machine does not have it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise KappaPlaceError(
            f"The device '{name}' cannot be used on this machine ({reason(error)}). Choose another device."
        ) from None
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
    patches: bool = False,
) -> Embeddings:
    """Embed images; the model runs in evaluation mode, and its previous mode is restored.

    Args:
        model: Model that returns `Embeddings`.
        preprocessing: Preprocessing of the images.
        images: A path, Pillow image or H×W×3 array, or a sequence of them.
        batch_size: Number of images to embed at once. A cross-image encoder, whose descriptors depend on the
            other images of a batch, always gets one image at a time.
        device: Device to move the model to. Default: do not move it.
        progress: Show a progress bar.
        patches: Also return the feature maps for patch matching, from the same pass.

    Returns:
        Embeddings in input order, as NumPy arrays in float32.

    Raises:
        KappaPlaceError: If there are no images, or the batch size is less than 1.
    """
    within(batch_size, "batch_size", 1)
    if getattr(model, "cross_image", False):
        batch_size = 1
    sources = as_sources(images)
    if not sources:
        raise KappaPlaceError("images must contain at least one image, got none.")
    if device is not None:
        model.to(usable_device(device))
    weight = next(model.parameters())
    parts: list[Embeddings] = []

    def downloads() -> Iterator[Download]:
        for batch in prepared(sources, preprocessing, batch_size, weight):
            *values, maps = model(batch, patches=True) if patches else model(batch)
            numbers = [None if value is None else value.float() for value in values]
            yield Download([*numbers, maps.half() if patches else None])

    with evaluation_mode(model), track("Embedding", len(sources)) if progress else nullcontext(None) as bar:
        # A GPU computes the next batch while the results of this batch are copied.
        for download in downloads() if weight.device.type == "cpu" else one_ahead(downloads()):
            parts.append(Embeddings(*download.arrays()))
            if bar is not None:
                bar.advance(len(parts[-1].descriptor))
    return join(parts)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set the evaluation mode, and restore the previous mode at the end."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@torch.inference_mode()
def embed_patches(
    model: nn.Module,
    preprocessing: Preprocessing,
    images: Iterable[Source] | Source,
    *,
    batch_size: int = 32,
) -> Tensor:
    """Compute the patch maps of images, see `PlaceModel.patch_maps`.

    Args:
        model: Model with ``patch_maps``.
        preprocessing: Preprocessing of the images.
        images: A path, Pillow image or H×W×3 array, or a sequence of them.
        batch_size: Number of images to process at once.

    Returns:
        Patch maps N×C×H×W, float16 on the device of the model.
    """
    maps: list[Tensor] = []
    with evaluation_mode(model):
        for batch in prepared(as_sources(images), preprocessing, batch_size, next(model.parameters())):
            maps.extend(model.patch_maps(batch).half())  # type: ignore[operator]
    if len({one.shape for one in maps}) > 1:
        raise KappaPlaceError("Patch matching needs images of equal size. Fix the size of the preprocessing.")
    return torch.stack(maps)


def patch_maps_of(
    model: nn.Module, preprocessing: Preprocessing | None = None, *, batch_size: int = 32
) -> Callable[[Iterable[Source] | Source], Tensor] | None:
    """Return a function from images to patch maps.

    Args:
        model: The model.
        preprocessing: Preprocessing of the images. Default: the preprocessing of the model.
        batch_size: Number of images to process at once.

    Returns:
        `embed_patches` of this model; None if the model does not provide patch maps.
    """
    if not getattr(model, "shows_patches", False):
        return None
    own: Preprocessing = preprocessing or model.preprocessing  # type: ignore[assignment]
    return partial(embed_patches, model, own, batch_size=batch_size)


def join(parts: Sequence[Embeddings]) -> Embeddings:
    """Concatenate the embeddings of several batches."""
    columns = zip(*parts, strict=True)
    return Embeddings(*(None if column[0] is None else np.concatenate(column) for column in columns))


def prepared(
    sources: Sequence[Source], preprocessing: Preprocessing, batch_size: int, weight: Tensor
) -> Iterator[Tensor]:
    """Iterate over batches of normalized images.

    Args:
        sources: The images.
        preprocessing: Preprocessing of the images.
        batch_size: Number of images per batch.
        weight: A weight of the model, which determines device and type of the batches.

    Yields:
        Normalized images, N×3×H×W, on the device of the weight.
    """
    loader = loader_for(sources, preprocessing, batch_size, weight.device)
    upload = Upload(weight.device)
    parts: list[Tensor] = []
    for batch in loader:
        moved = upload(batch.images)
        parts.append(moved if loader.unresized is None else resized(moved, preprocessing))
        # The loader separates images by size; after resizing, they form one batch again.
        if loader.unresized is None or sum(map(len, parts)) >= batch_size:
            yield _input(parts, preprocessing, weight)
            parts = []
    if parts:
        yield _input(parts, preprocessing, weight)


def loader_for(
    sources: Sequence[Source], preprocessing: Preprocessing, batch_size: int, device: torch.device
) -> ImageLoader:
    """Return a loader that leaves resizing to a GPU, which is faster, if the result is identical.

    Args:
        sources: The images.
        preprocessing: Preprocessing of the images.
        batch_size: Number of images per batch.
        device: Device of the model.

    Returns:
        The loader.
    """
    worth_a_trial = device.type == "cuda" and len(sources) >= MANY
    left = size_to_leave(sources, preprocessing) if worth_a_trial else None
    return ImageLoader(sources, preprocessing, batch_size, unresized=left)


def _input(parts: list[Tensor], preprocessing: Preprocessing, weight: Tensor) -> Tensor:
    return preprocessing.normalize(parts[0] if len(parts) == 1 else torch.cat(parts)).to(weight.dtype)


class Upload:
    """Upload of batches to a device; a GPU computes in the meantime, thanks to pinned memory."""

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
    """Results that are being copied to memory; waiting for them does not wait for later work."""

    def __init__(self, values: Sequence[Tensor | None]) -> None:
        self._values = [None if one is None else _begin_copy(one) for one in values]
        on_gpu = next((one.device for one in values if one is not None and one.is_cuda), None)
        self._arrived = None if on_gpu is None else torch.cuda.current_stream(on_gpu).record_event()

    def arrays(self) -> list[NDArray | None]:
        """Wait for the values and return them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [None if one is None else one.numpy() for one in self._values]


def _begin_copy(values: Tensor) -> Tensor:
    if not values.is_cuda:
        return values.cpu()
    # An asynchronous copy needs pinned memory.
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield each item after the next one has begun, so that the device computes while the caller works."""
    waiting: list[Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting
