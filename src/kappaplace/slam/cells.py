"""The optional look at two images through the encoder's own eyes: how many of their cells agree on one shift.

The same comparison that a map makes (`kappaplace.uncertainty.patches`): as a score of the probability, or as
a check that an accepted closure must pass. Needs the images once more, but no keypoints and no second
network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.models.embedding import embed_patches
from kappaplace.models.exported import ExportedModel
from kappaplace.models.loading import AnyModel
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.patches import patch_agreement
from kappaplace.retrieval.references import Floats as Scores

if TYPE_CHECKING:
    from kappaplace.data.images import Source

PatchMaps = Callable[["Sequence[Source]"], Tensor]
Pair = tuple[int, int]
KEPT = 2000
"""Feature maps that are kept, some 90 KB each; older ones are made anew from their images."""


def patch_maps_of(model: AnyModel) -> PatchMaps | None:
    """Feature maps of images by the model that made the descriptors; None where it does not show its
    stages.
    """
    if isinstance(model, ExportedModel) or (isinstance(model, PlaceModel) and model.shows_patches):
        return partial(embed_patches, model, model.preprocessing)
    return None


class CellCheck:
    """Agreement of frames with earlier ones; every pair is compared once."""

    def __init__(
        self, patch_maps: PatchMaps, known: Mapping[Pair, float] | None = None, *, kept: int = KEPT
    ) -> None:
        """``known`` are pairs of (frame, earlier frame) that were compared before."""
        self.patch_maps = patch_maps
        self.known: dict[Pair, float] = dict(known or {})
        self.images: list[Any] = []
        """Of all frames, None where unknown; give paths rather than arrays for a long drive."""
        self._map = lru_cache(maxsize=kept)(self._made)

    def agreement(self, number: int, matches: Sequence[int]) -> Scores:
        """Share of cells of a frame that agree with each of some earlier ones, in [0, 1]."""
        missing = [match for match in matches if (number, match) not in self.known]
        if missing:
            others = torch.stack([self._map(match) for match in missing])
            found = patch_agreement(self._map(number)[None].expand_as(others), others)
            pairs = [(number, match) for match in missing]
            self.known |= dict(zip(pairs, found.double().cpu().tolist(), strict=True))
        return np.array([self.known[number, match] for match in matches])

    def _made(self, number: int) -> Tensor:
        if self.images[number] is None:
            raise KappaPlaceError(
                f"Comparing cells needs the image of every frame, number {number} has none; give it, or "
                f"leave the comparison out (verify=0, with a calibration that was fitted so)."
            )
        return self.patch_maps([self.images[number]])[0]
