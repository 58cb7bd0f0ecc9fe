"""Does an exported file say what its model says? On several batches and sizes, before it is handed out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.export.graph import ANY_SIDE, probe_images
from kappaplace.models.exported import ExportedModel
from kappaplace.models.fast import fidelity
from kappaplace.models.place_model import PlaceModel
from kappaplace.types import Embeddings

TOLERANCES = {"float32": (1e-5, 1e-3), "float16": (1e-4, 1e-2)}
"""Largest 1 − cosine and largest relative difference of κ, by precision. int8 is judged on real images."""


class Gap(NamedTuple):
    """How far the file is from the model on one batch."""

    batch: int
    height: int
    width: int
    descriptor: float
    """Largest 1 − cosine."""
    spread: float
    """Largest relative difference of κ (or of a variance)."""
    patches: float
    """Largest 1 − cosine of an image's patch maps; 0 without any."""

    @property
    def sentence(self) -> str:
        return (
            f"{self.batch} × {self.height}×{self.width}: descriptor 1 − cosine {self.descriptor:.1e}, "
            f"κ {self.spread:.1e}, patches 1 − cosine {self.patches:.1e}"
        )


def gaps(model: PlaceModel, exported: ExportedModel) -> list[Gap]:
    """On a single image, a batch of three and, where any size goes, two of another shape."""
    found = []
    for count, size in cases(model.preprocessing, exported.record.size is not None):
        images = probe_images(model.preprocessing, count, size)
        with torch.inference_mode():
            near = fidelity(model(images), _answer(exported, images))
            apart = 0.0
            if exported.shows_patches:
                wanted, given = (x.patch_maps(images).flatten(1).double() for x in (model, exported))
                apart = 1.0 - float(torch.cosine_similarity(wanted, given).min())
        height, width = images.shape[-2:]
        found.append(Gap(count, height, width, max(1.0 - near.cosine, 0.0), near.spread, max(apart, 0.0)))
    return found


def _answer(exported: ExportedModel, images: Tensor) -> Embeddings:
    try:
        return exported(images)
    except Exception as error:  # each runtime has its own kinds for a batch that its graph does not take
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise KappaPlaceError(
            f"The exported graph does not take a batch of {' × '.join(map(str, images.shape))} ({reason}); "
            "choose another format."
        ) from None


def cases(preprocessing: Preprocessing, fixed: bool) -> list[tuple[int, tuple[int, int]]]:
    """Batches and sizes to compare on; the other size is odd, and not a square."""
    height, width = preprocessing.fixed_size or (ANY_SIDE, ANY_SIDE)
    if fixed:
        return [(1, (height, width)), (3, (height, width))]
    return [(1, (height, width)), (3, (height, width)), (2, (height * 3 // 4 | 1, width * 5 // 8 | 1))]


def check(found: Sequence[Gap], precision: str, file: str) -> None:
    """Refuse a file beyond the tolerance; NaN is beyond any."""
    descriptor, spread = TOLERANCES[precision]
    for gap in found:
        if not (gap.descriptor <= descriptor and gap.spread <= spread and gap.patches <= descriptor):
            raise KappaPlaceError(
                f"Refused to write {file}: it differs from the model beyond the tolerance ({gap.sentence}; "
                f"allowed: {descriptor:.0e} and {spread:.0e}). Choose another format or precision."
            )
