"""PlaceModel: image batch → unit descriptor and its concentration κ, in one forward pass."""

from __future__ import annotations

import torch

from kappaplace.data.images import Preprocessing
from kappaplace.models.backbones import backbone_spec, build_backbone, freeze_stages, frozen_modules
from kappaplace.models.encoder import fingerprint_of
from kappaplace.models.fast import OptimizedModel, Way, optimize
from kappaplace.models.heads import HeadName
from kappaplace.models.network import Architecture, Network
from kappaplace.records import to_plain


class PlaceModel(Network):
    """Backbone, CosPlace aggregation and a head for the uncertainty.

    >>> model = PlaceModel.create("resnet_tiny", dim=64).eval()
    >>> output = model(torch.zeros(2, 3, 96, 96))
    >>> tuple(output.descriptor.shape), tuple(output.kappa.shape)
    ((2, 64), (2,))
    """

    def __init__(self, architecture: Architecture, preprocessing: Preprocessing | None = None) -> None:
        super().__init__(architecture, preprocessing)
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
    def fingerprint(self) -> str:
        """Checksum of the weights and the architecture."""
        return fingerprint_of(self, to_plain(self.architecture))

    def optimize(self, device: str | torch.device | None = None, *, way: Way = "auto") -> OptimizedModel:
        """A copy for inference alone, in the form that runs fastest on ``device`` (default: where it is).

        Descriptors stay within a cosine of .9999 and κ within 1 % of this model's: half precision is taken
        only where a few test images confirm it. See `kappaplace.models.fast`.
        """
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
