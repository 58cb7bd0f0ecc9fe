"""Comparison of an exported file with its model, on several batches and image sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.exported import ExportedModel
from kappaplace.models.fast import ANY_SIDE, fidelity, probe_images
from kappaplace.models.place_model import PlaceModel
from kappaplace.types import Embeddings

TOLERANCES = {"float32": (1e-5, 1e-3), "float16": (1e-4, 1e-2)}
"""Largest 1 − cosine and largest relative difference of κ, by precision. int8 is compared on real images."""


class Gap(NamedTuple):
    """Difference between file and model on one batch."""

    batch: int
    height: int
    width: int
    descriptor: float
    """Largest 1 − cosine."""
    spread: float
    """Largest relative difference of κ (or a variance)."""
    patches: float
    """Largest 1 − cosine of the patch maps of an image; 0 without patch maps."""

    @property
    def sentence(self) -> str:
        return (
            f"{self.batch} × {self.height}×{self.width}: descriptor 1 − cosine {self.descriptor:.1e}, "
            f"κ {self.spread:.1e}, patches 1 − cosine {self.patches:.1e}"
        )


def gaps(model: PlaceModel, exported: ExportedModel) -> list[Gap]:
    """Compare a single image, a batch of three, and two images of another size if any size is accepted."""
    results = []
    for count, size in cases(model.preprocessing, exported.record.size is not None):
        images = probe_images(model.preprocessing, count, size)
        with torch.inference_mode():
            pair = fidelity(model(images), _run(exported, images))
            patches = 0.0
            if exported.shows_patches:
                expected, actual = (x.patch_maps(images).flatten(1).double() for x in (model, exported))
                patches = max(1.0 - float(torch.cosine_similarity(expected, actual).min()), 0.0)
        height, width = images.shape[-2:]
        results.append(Gap(count, height, width, max(1.0 - pair.cosine, 0.0), pair.spread, patches))
    return results


def _run(exported: ExportedModel, images: Tensor) -> Embeddings:
    try:
        return exported(images)
    except Exception as error:  # each runtime has its own classes for a batch that its graph does not accept
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise KappaPlaceError(
            f"The exported graph does not accept a batch of {' × '.join(map(str, images.shape))} ({reason}). "
            "Choose another format."
        ) from None


def cases(preprocessing: Preprocessing, fixed: bool) -> list[tuple[int, tuple[int, int]]]:
    """Return batch and image sizes to compare; the last image size is odd and not square."""
    height, width = preprocessing.fixed_size or (ANY_SIDE, ANY_SIDE)
    own_size = [(1, (height, width)), (3, (height, width))]
    return own_size if fixed else [*own_size, (2, (height * 3 // 4 | 1, width * 5 // 8 | 1))]


def check(differences: Sequence[Gap], precision: str, file: str) -> None:
    """Raise an error if a file differs from its model beyond the tolerance, or if a difference is NaN.

    Args:
        differences: Differences on each batch.
        precision: float32 or float16.
        file: Name of the file, for the message.
    """
    descriptor, spread = TOLERANCES[precision]
    for gap in differences:
        if not (gap.descriptor <= descriptor and gap.spread <= spread and gap.patches <= descriptor):
            raise KappaPlaceError(
                f"{file} was not written: it differs from the model beyond the tolerance ({gap.sentence}; "
                f"allowed: {descriptor:.0e} and {spread:.0e}). Choose another format or precision."
            )
