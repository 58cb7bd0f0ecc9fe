"""κ of every reference under a new head: from features that are there already, or by one pass over images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.data.unreadable import DAMAGED_ARRAYS
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.maps.files import save_array
from kappaplace.maps.store import Indices, MapStore
from kappaplace.models.embedding import embed_images
from kappaplace.models.heads import Head
from kappaplace.models.loading import TrainableModel
from kappaplace.progress import track
from kappaplace.training.features import CLEAN, FeatureStore

BLOCK = 64
"""Images between two savings: what a killed process may have to do again."""
SAME = 0.99
"""Cosine of a reference's descriptor then and now below which something is wrong; int8 rounds by less."""
SAME_CODES = 0.5
"""The same where the map keeps codes, which round by far more; descriptors of another model have about 0."""


class KappaFile:
    """κ of each reference on disk, NaN where it is still to be found."""

    def __init__(self, file: Path, count: int) -> None:
        if not _whole(file, count):
            replace_file(file, lambda part: save_array(part, np.full(count, np.nan, np.float32)))
        self.values: NDArray[np.float32] = np.load(file, mmap_mode="r+")

    @property
    def missing(self) -> Indices:
        return np.flatnonzero(np.isnan(self.values))

    def put(self, rows: Indices, kappa: NDArray[np.floating]) -> None:
        if not (np.isfinite(kappa).all() and (kappa > 0).all()):
            raise KappaPlaceError("The fitted head gives κ that is not a positive number; fit it longer.")
        self.values[rows] = kappa
        self.values.flush()  # type: ignore[attr-defined]  # a memory map


def _whole(file: Path, count: int) -> bool:
    """Whether an earlier run left one that can be gone on with; a damaged one is made anew."""
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except DAMAGED_ARRAYS:
        return False
    return found.shape == (count,) and found.dtype == np.float32


@torch.inference_mode()
def from_features(model: TrainableModel, features: FeatureStore) -> NDArray[np.float32]:
    """κ of the images whose undamaged features were kept."""
    assert isinstance(model.head, Head)
    first = features.views.index(CLEAN) * len(features.rows)
    weight = next(model.head.parameters())
    clean = np.asarray(features.reduced[first : first + len(features.rows)], np.float32)
    return model.head.from_reduced(torch.from_numpy(clean).to(weight)).float().cpu().numpy()


def check_descriptors(store: MapStore, rows: Indices, features: FeatureStore) -> None:
    """Refuse where the encoder no longer gives the map's descriptors: κ would belong to others."""
    least = SAME_CODES if store.manifest.storage == "pq" else SAME
    for part, descriptors in features.descriptors_of(CLEAN):
        cosine = (descriptors.numpy() * store.descriptors[rows[part]]).sum(axis=1)
        if cosine.min() < least:
            raise KappaPlaceError(
                f"The encoder does not give the descriptor of {store.name(int(rows[part][cosine.argmin()]))} "
                "that the map holds: the model, its preprocessing or the image is another one; run "
                "`kappaplace map reembed` first."
            )


def find_kappa(
    file: KappaFile, model: TrainableModel, paths: Sequence[str], batch_size: int, device: str | None
) -> NDArray[np.float32]:
    """Embed what is still missing, block by block; the descriptors are those that the map has already."""
    missing = file.missing
    with track("κ of the references", len(missing)) as bar:
        for start in range(0, len(missing), BLOCK):
            rows = missing[start : start + BLOCK]
            images = [paths[row] for row in rows.tolist()]
            made = embed_images(
                model, model.preprocessing, images, batch_size=batch_size, device=device, progress=False
            )
            assert made.kappa is not None
            file.put(rows, np.asarray(made.kappa))
            bar.advance(len(rows))
    return file.values
