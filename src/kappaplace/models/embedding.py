"""Embed any number of images with any model: batching, progress, NumPy out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from kappaplace.data.images import Preprocessing, Source
from kappaplace.data.loader import ImageLoader
from kappaplace.errors import KappaPlaceError
from kappaplace.progress import track
from kappaplace.types import Embeddings


def as_sources(images: Iterable[Source] | Source) -> Sequence[Source]:
    """One image or many, as a sequence of sources."""
    if isinstance(images, str | os.PathLike | bytes | Image.Image):
        return [images]
    if isinstance(images, np.ndarray):
        if images.ndim == 4:
            return list(images)
        return [images]
    return list(images)


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

    The model is used in evaluation mode and handed back as it was.
    """
    if batch_size < 1:
        raise KappaPlaceError(f"The batch size must be at least 1, got {batch_size}.")
    sources = as_sources(images)
    if not sources:
        raise KappaPlaceError("There is nothing to embed: the list of images is empty.")
    if device is not None:
        model.to(device)
    target = next(model.parameters()).device
    was_training = model.training
    model.eval()
    parts: list[Embeddings] = []
    try:
        with track("Embedding", len(sources)) if progress else nullcontext(None) as bar:
            for batch in ImageLoader(sources, preprocessing, batch_size):
                output = model(preprocessing.normalise(batch.images.to(target)))
                parts.append(Embeddings(*(None if x is None else x.float().cpu().numpy() for x in output)))
                if bar is not None:
                    bar.advance(len(batch.rows))
    finally:
        model.train(was_training)
    return join(parts)


def join(parts: Sequence[Embeddings]) -> Embeddings:
    """Embeddings of several batches as one."""
    columns: list[Any] = []
    for column in zip(*parts, strict=True):
        columns.append(None if column[0] is None else np.concatenate(column))
    return Embeddings(*columns)
