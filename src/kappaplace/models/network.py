"""The network of a PlaceModel: backbone, aggregation and head in one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import Aggregation, PlainAggregation, normalize_channels
from kappaplace.models.backbones import backbone_spec, build_backbone
from kappaplace.models.embedding import check_images
from kappaplace.models.encoder import EncoderModule
from kappaplace.models.heads import (
    DropoutHead,
    Head,
    HeadName,
    LayersKappaHead,
    StunHead,
    build_head,
    stage_statistics,
    with_folded_head,
)
from kappaplace.types import Embeddings


@dataclass(frozen=True)
class Architecture:
    """Structure of a model, without its weights."""

    backbone: str = "resnet50"
    """Name of the backbone."""
    dim: int = 512
    """Dimension of the descriptor."""
    head: HeadName = "mirrored"
    """Name of the head."""

    def __post_init__(self) -> None:
        if not isinstance(self.dim, int) or self.dim < 2:
            raise KappaPlaceError(f"dim must be a whole number of at least 2, got {self.dim!r}.")


class Features(NamedTuple):
    """Input of a head; see `kappaplace.models.heads`."""

    normalized: Tensor
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
        self.aggregation: Aggregation | PlainAggregation = Aggregation(spec.channels, architecture.dim)
        if spec.plain:
            if architecture.dim != spec.channels:
                raise KappaPlaceError(f"dim must be {spec.channels} for {spec.name}, got {architecture.dim}.")
            self.aggregation = PlainAggregation()
        self.head = self.new_head(architecture.head)

    @property
    def dim(self) -> int:
        """Dimension of the descriptor."""
        return self.architecture.dim if self.whitening is None else self.whitening.dim

    def new_head(self, name: HeadName) -> nn.Module | None:
        """Build a head with random weights that fits this encoder."""
        stages: tuple[int, ...] = getattr(self.backbone, "stage_channels", ())
        if name in ("layers", "layers-mlp") and not stages:
            raise KappaPlaceError(
                f"The head '{name}' reads the stages of the backbone, which {self.architecture.backbone} "
                "does not provide. Use a ResNet or EfficientNet-Lite."
            )
        channels = backbone_spec(self.architecture.backbone).channels
        return build_head(name, channels, self.architecture.dim, 2 * sum(stages))

    def features(self, images: Tensor) -> Features:
        """Return the features of images.

        Args:
            images: Normalized images B×3×H×W.

        Returns:
            The input of the head; ``raw`` is the descriptor before its normalization.
        """
        return self._features(*self._backbone_outputs(images))

    def _backbone_outputs(self, images: Tensor, stages: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Return the output of the backbone, and the feature map of every stage if they are needed."""
        check_images(images)
        if stages or isinstance(self.head, LayersKappaHead):
            return self.backbone.forward_stages(images)  # type: ignore[operator]
        return self.backbone(images), []

    def _features(self, last: Tensor, maps: list[Tensor]) -> Features:
        stages = stage_statistics(maps) if isinstance(self.head, LayersKappaHead) else None
        normalized = normalize_channels(last) if isinstance(self.aggregation, Aggregation) else last
        pooled = self.aggregation.gem(normalized)
        if isinstance(self.head, DropoutHead):
            pooled = self.head.drop(pooled)
        return Features(normalized, pooled, self.aggregation.from_pooled(pooled), stages)

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the input of losses.

        Args:
            images: Normalized images B×3×H×W.

        Returns:
            Unit descriptors B×d, and the output of the head.
        """
        features = self.features(images)
        spread = self.head(*features) if isinstance(self.head, Head) else None
        return self.descriptor(features.raw), spread

    def forward(self, images: Tensor, patches: bool = False) -> Embeddings:
        """Compute descriptors and κ.

        Args:
            images: Images B×3×H×W, normalized by ``preprocessing``.
            patches: Also return the feature maps of `patch_maps`, from the same pass.

        Returns:
            Unit descriptors B×d and κ (or a variance) of shape B.
        """
        last, maps = self._backbone_outputs(images, stages=patches)
        embeddings = self._embeddings(self._features(last, maps))
        if not patches:
            return embeddings
        return embeddings._replace(patches=maps[self.backbone.patch_stage])  # type: ignore[index]

    def _embeddings(self, features: Features) -> Embeddings:
        if isinstance(self.head, DropoutHead):
            descriptor, variance = self.head.spread_of(features.pooled, self.aggregation)
            return self.whitened(Embeddings(descriptor, variance=variance))
        descriptor = self.descriptor(features.raw)
        return with_spread(descriptor, self.head, None if self.head is None else self.head(*features))

    @property
    def shows_patches(self) -> bool:  # type: ignore[override]
        """Whether the backbone provides its stages: ResNets and EfficientNet-Lite do."""
        return hasattr(self.backbone, "patch_stage")

    def fold(self: N) -> N:
        """Return the model with its mirrored head in the exact inference form; the encoder is shared.

        Returns:
            The folded model.
        """
        folded = with_folded_head(self)
        name: HeadName = "folded-tied" if self.architecture.head == "mirrored-tied" else "folded"
        folded.architecture = replace(self.architecture, head=name)
        return folded


def with_spread(descriptor: Tensor, head: nn.Module | None, spread: Tensor | None) -> Embeddings:
    """Return embeddings with the output of the head as κ or variance.

    Args:
        descriptor: Unit descriptors B×d.
        head: The head.
        spread: Output of the head.

    Returns:
        The embeddings.
    """
    if spread is None or not isinstance(head, Head):
        return Embeddings(descriptor)
    if head.spread == "kappa":
        return Embeddings(descriptor, spread)
    variance = head.variance(spread) if isinstance(head, StunHead) else spread
    return Embeddings(descriptor, variance=variance.mean(-1) if variance.ndim == 2 else variance)


def default_preprocessing(backbone: str) -> Preprocessing:
    """Return a preprocessing to square images of the size and statistics of a backbone."""
    spec = backbone_spec(backbone)
    multiple = spec.stride if spec.strict_stride else 1
    return Preprocessing(spec.input_size, "exact", mean=spec.mean, std=spec.std, multiple=multiple)
