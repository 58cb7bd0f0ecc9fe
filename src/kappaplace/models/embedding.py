"""Embed any number of images with any model: batching, progress, NumPy out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing, Source
from kappaplace.errors import KappaPlaceError
from kappaplace.models.prepare import prepared
from kappaplace.models.transfer import Download, one_ahead
from kappaplace.progress import track
from kappaplace.types import Embeddings


def check_images(images: Tensor) -> None:
    """Models take RGB batches; anything else is told in one sentence."""
    if images.ndim != 4 or images.shape[1] != 3:
        raise KappaPlaceError(
            f"Expected a batch of RGB images, B×3×H×W, got shape {tuple(images.shape)}; convert to RGB "
            "or use model.embed, which does."
        )
    if not images.is_floating_point():
        raise KappaPlaceError(
            f"Expected normalised images in floating point, got {images.dtype}; use model.embed, which "
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
