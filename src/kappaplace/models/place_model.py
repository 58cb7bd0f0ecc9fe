"""PlaceModel: image batch → unit descriptor and its concentration κ, in one forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing, Source
from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import Aggregation, normalise_channels
from kappaplace.models.backbones import backbone_spec, build_backbone, freeze_stages, frozen_modules
from kappaplace.models.embedding import check_images, embed_images
from kappaplace.models.encoder import fingerprint_of
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

if TYPE_CHECKING:
    from kappaplace.models.fast import OptimizedModel, Way


@dataclass(frozen=True)
class Architecture:
    """What must be known to build a model before its weights are loaded."""

    backbone: str = "resnet50"
    dim: int = 512
    head: HeadName = "mirrored"

    def __post_init__(self) -> None:
        if not isinstance(self.dim, int) or self.dim < 2:
            raise KappaPlaceError(
                f"A descriptor needs a whole number of dimensions, 2 or more, got {self.dim!r}."
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Architecture:
        """The inverse of `to_dict`; anything else is told in one sentence."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            raise KappaPlaceError(f"An architecture needs exactly {', '.join(names)}; got {values!r}.")
        return cls(**values)


class Features(NamedTuple):
    """What the encoder hands to a head; see `kappaplace.models.heads`."""

    normalised: Tensor
    pooled: Tensor
    raw: Tensor
    stages: Tensor | None = None


class PlaceModel(nn.Module):
    """Backbone, CosPlace aggregation and a head for the uncertainty.

    >>> model = PlaceModel.create("resnet_tiny", dim=64).eval()
    >>> output = model(torch.zeros(2, 3, 96, 96))
    >>> tuple(output.descriptor.shape), tuple(output.kappa.shape)
    ((2, 64), (2,))
    """

    def __init__(self, architecture: Architecture, preprocessing: Preprocessing | None = None) -> None:
        super().__init__()
        spec = backbone_spec(architecture.backbone)
        self.architecture = architecture
        self.preprocessing = preprocessing or default_preprocessing(architecture.backbone)
        self.backbone = build_backbone(architecture.backbone)
        self.aggregation = Aggregation(spec.channels, architecture.dim)
        self.head = self.new_head(architecture.head)
        self._frozen_stages = 0
        self._frozen_encoder = False

    @classmethod
    def create(
        cls,
        backbone: str = "resnet50",
        dim: int = 512,
        head: HeadName = "mirrored",
        *,
        pretrained: bool = False,
        preprocessing: Preprocessing | None = None,
    ) -> PlaceModel:
        """A new model; ``pretrained`` starts the backbone from ImageNet."""
        model = cls(Architecture(backbone, dim, head), preprocessing)
        if pretrained:
            model.backbone = build_backbone(backbone, pretrained=True)
        return model

    @property
    def dim(self) -> int:
        """Dimension of the descriptor."""
        return self.architecture.dim

    @property
    def fingerprint(self) -> str:
        """Checksum of the weights and the architecture."""
        return fingerprint_of(self, self.architecture.to_dict())

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

    def embed(self, images: Iterable[Source] | Source, **options: Any) -> Embeddings:
        """Embed paths, Pillow images or H×W×3 arrays; see `kappaplace.models.embedding.embed_images`."""
        return embed_images(self, self.preprocessing, images, **options)

    def fold(self) -> PlaceModel:
        """The same model (sharing the encoder) with the mirrored head in its exact inference form."""
        folded = with_folded_head(self)
        name: HeadName = "folded-tied" if self.architecture.head == "mirrored-tied" else "folded"
        folded.architecture = replace(self.architecture, head=name)
        return folded

    def optimize(self, device: str | torch.device | None = None, *, way: Way = "auto") -> OptimizedModel:
        """A copy for inference alone, in the form that runs fastest on ``device`` (default: where it is).

        Descriptors stay within a cosine of .9999 and κ within 1 % of this model's: half precision is taken
        only where a few test images confirm it. See `kappaplace.models.fast`.
        """
        from kappaplace.models.fast import optimize

        return optimize(self, device, way=way)

    def freeze_partially(self, stages: int | None = None) -> None:
        """Train only the later stages, the aggregation and the head (default: the backbone's own choice)."""
        count = backbone_spec(self.architecture.backbone).frozen_stages if stages is None else stages
        freeze_stages(self.backbone, count)
        self.aggregation.requires_grad_(True)
        self._frozen_stages, self._frozen_encoder = count, False
        self.train(self.training)

    def freeze_encoder(self) -> None:
        """Post-training: only the head trains; descriptors and BatchNorm statistics stay as they are."""
        self._frozen_encoder = True
        for module in (self.backbone, self.aggregation):
            module.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> PlaceModel:
        """As usual, except that frozen parts stay in evaluation mode: BatchNorm must not move there."""
        super().train(mode)
        if self._frozen_encoder:
            self.backbone.eval()
            self.aggregation.eval()
        else:
            for module in frozen_modules(self.backbone, self._frozen_stages):
                module.eval()
        return self


def unit(raw: Tensor) -> Tensor:
    """Unit length, in float32 even after a half-precision layer."""
    return F.normalize(raw if raw.dtype == torch.float64 else raw.float(), dim=-1)


def with_spread(descriptor: Any, head: nn.Module | None, spread: Tensor | None) -> Embeddings:
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
