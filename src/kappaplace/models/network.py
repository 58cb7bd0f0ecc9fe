"""The network of a PlaceModel: backbone, aggregation and head, computed in one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import Aggregation, normalise_channels
from kappaplace.models.backbones import backbone_spec, build_backbone
from kappaplace.models.embedding import check_images
from kappaplace.models.encoder import EncoderModule
from kappaplace.models.heads import (
    DropoutHead,
    Head,
    HeadName,
    LayersKappaHead,
    build_head,
    stage_statistics,
    with_folded_head,
)
from kappaplace.types import Embeddings


@dataclass(frozen=True)
class Architecture:
    """Form of a model, without its weights."""

    backbone: str = "resnet50"
    dim: int = 512
    head: HeadName = "mirrored"

    def __post_init__(self) -> None:
        if not isinstance(self.dim, int) or self.dim < 2:
            raise KappaPlaceError(f"dim must be a whole number of at least 2, got {self.dim!r}.")


class Features(NamedTuple):
    """Input of a head; see `kappaplace.models.heads`."""

    normalised: Tensor
    pooled: Tensor
    raw: Tensor
    stages: Tensor | None = None


N = TypeVar("N", bound="Network")


class Network(EncoderModule):
    """Backbone, CosPlace aggregation and a head for the uncertainty."""

    def __init__(self, architecture: Architecture, preprocessing: Preprocessing | None = None) -> None:
        super().__init__()
        spec = backbone_spec(architecture.backbone)
        self.architecture = architecture
        self.preprocessing = preprocessing or default_preprocessing(architecture.backbone)
        self.backbone = build_backbone(architecture.backbone)
        self.aggregation = Aggregation(spec.channels, architecture.dim)
        self.head = self.new_head(architecture.head)

    @property
    def dim(self) -> int:
        """Dimension of the descriptor."""
        return self.architecture.dim

    def new_head(self, name: HeadName) -> nn.Module | None:
        """A fresh head that fits this encoder."""
        shown: tuple[int, ...] = getattr(self.backbone, "stage_channels", ())
        if name in ("layers", "layers-mlp") and not shown:
            raise KappaPlaceError(
                f"The head '{name}' reads the stages of a ResNet or EfficientNet-Lite; "
                f"{self.architecture.backbone} does not show its own."
            )
        channels = backbone_spec(self.architecture.backbone).channels
        return build_head(name, channels, self.dim, 2 * sum(shown))

    def features(self, images: Tensor) -> Features:
        """Everything up to the descriptor before its normalisation."""
        check_images(images)
        stages = None
        if isinstance(self.head, LayersKappaHead):
            last, maps = self.backbone.forward_stages(images)  # type: ignore[operator]
            stages = stage_statistics(maps)
        else:
            last = self.backbone(images)
        normalised = normalise_channels(last)
        pooled = self.aggregation.gem(normalised)
        if isinstance(self.head, DropoutHead):
            pooled = self.head.drop(pooled)
        return Features(normalised, pooled, self.aggregation.from_pooled(pooled), stages)

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """What losses are made of: descriptors B×d at unit length, and the head's own output."""
        features = self.features(images)
        spread = self.head(*features) if isinstance(self.head, Head) else None
        return unit(features.raw), spread

    def forward(self, images: Tensor) -> Embeddings:
        """B×3×H×W, normalised as ``preprocessing`` says → descriptors B×d and κ of shape B."""
        features = self.features(images)
        if isinstance(self.head, DropoutHead):
            descriptor, variance = self.head.spread_of(features.pooled, self.aggregation)
            return Embeddings(descriptor, variance=variance)
        descriptor = unit(features.raw)
        return with_spread(descriptor, self.head, None if self.head is None else self.head(*features))

    @property
    def shows_patches(self) -> bool:
        """Whether `patch_maps` works: ResNets and EfficientNet-Lite show their stages."""
        return hasattr(self.backbone, "patch_stage")

    def patch_maps(self, images: Tensor) -> Tensor:
        """Feature maps at a sixteenth of the image's size, to compare two images cell by cell."""
        check_images(images)
        if not self.shows_patches:
            raise KappaPlaceError(
                f"The backbone {self.architecture.backbone} does not show its stages; comparing cells works "
                "with ResNets and EfficientNet-Lite."
            )
        return self.backbone.forward_stages(images)[1][self.backbone.patch_stage]  # type: ignore[operator]

    def fold(self: N) -> N:
        """The same model (sharing the encoder) with the mirrored head in its exact inference form."""
        folded = with_folded_head(self)
        name: HeadName = "folded-tied" if self.architecture.head == "mirrored-tied" else "folded"
        folded.architecture = replace(self.architecture, head=name)
        return folded


def unit(raw: Tensor) -> Tensor:
    """Unit length, in float32 even after a half-precision layer."""
    return F.normalize(raw if raw.dtype == torch.float64 else raw.float(), dim=-1)


def with_spread(descriptor: Tensor, head: nn.Module | None, spread: Tensor | None) -> Embeddings:
    """Embeddings with the head's output in the place that its meaning asks for."""
    if spread is None or not isinstance(head, Head):
        return Embeddings(descriptor)
    if head.spread == "kappa":
        return Embeddings(descriptor, spread)
    variance = spread.float().exp().mean(-1) if head.spread == "log-variance" else spread
    return Embeddings(descriptor, variance=variance)


def default_preprocessing(backbone: str) -> Preprocessing:
    """Square input at the backbone's own size and statistics."""
    spec = backbone_spec(backbone)
    multiple = spec.stride if spec.strict_stride else 1
    return Preprocessing(spec.input_size, "exact", mean=spec.mean, std=spec.std, multiple=multiple)
