"""The graph that is exported: normalised images in; descriptor, κ and patch maps out."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.models.exported import DESCRIPTOR, KAPPA, PATCHES, VARIANCE
from kappaplace.models.fast.fused import fold_batch_norms
from kappaplace.models.heads import Head, MirroredKappaHead
from kappaplace.models.place_model import PlaceModel

INPUT = "images"
ANY_SIDE = 224
"""Side of test images for a model that takes any size."""


class ExportGraph(nn.Module):
    """A copy of a model, in its inference form, with its outputs in a row; ``outputs`` names them."""

    def __init__(self, model: PlaceModel, patches: bool) -> None:
        super().__init__()
        self.outputs = output_names(model, patches)
        plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
        if isinstance(plain.head, MirroredKappaHead) and plain.head.spread == "kappa":
            plain = plain.fold().eval()
        fold_batch_norms(plain.backbone, probe_images(model.preprocessing, 1))
        self.watch = WatchedBackbone(plain.backbone) if patches else None
        if self.watch is not None:
            plain.backbone = self.watch
        self.model = plain

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """B×3×H×W → descriptor B×d, κ (or variance) B, patch maps B×C×h×w, as far as there are any."""
        made = tuple(part for part in self.model(images) if part is not None)
        return made if self.watch is None else (*made, self.watch.seen.pop())


class WatchedBackbone(nn.Module):
    """A backbone that keeps its patch map aside: its stages are computed once for both outputs."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_stages(images)[0]

    def forward_stages(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output, and the map of every stage before it."""
        last, maps = self.backbone.forward_stages(images)  # type: ignore[operator]
        self.seen[:] = [maps[self.backbone.patch_stage]]
        return last, maps


def output_names(model: PlaceModel, patches: bool) -> tuple[str, ...]:
    """What the graph gives, in this order."""
    spread: tuple[str, ...] = ()
    if model.head is not None:
        kappa = isinstance(model.head, Head) and model.head.spread == "kappa"
        spread = (KAPPA,) if kappa else (VARIANCE,)
    return (DESCRIPTOR, *spread, *((PATCHES,) if patches else ()))


def probe_images(preprocessing: Preprocessing, count: int, size: tuple[int, int] | None = None) -> Tensor:
    """Images of many frequencies, normalised: the same in every run."""
    generator = torch.Generator().manual_seed(count)
    height, width = size or preprocessing.fixed_size or (ANY_SIDE, ANY_SIDE)
    layers = [
        nn.functional.interpolate(
            torch.rand(count, 3, cells, cells, generator=generator), (height, width), mode="bilinear"
        )
        for cells in (3, 12, 60)
    ]
    return preprocessing.normalise(torch.stack(layers).mean(0))
