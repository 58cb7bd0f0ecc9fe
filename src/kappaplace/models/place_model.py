"""PlaceModel: unit descriptors and their concentration κ in one forward pass."""

from __future__ import annotations

import torch

from kappaplace._names import renamed
from kappaplace.data.images import Preprocessing
from kappaplace.models.backbones import backbone_spec, build_backbone, freeze_stages, frozen_modules
from kappaplace.models.encoder import fingerprint_of
from kappaplace.models.fast import Form, OptimizedModel, optimize
from kappaplace.models.heads import HeadName
from kappaplace.models.network import Architecture, Network
from kappaplace.records import to_plain


class PlaceModel(Network):
    """Model with a backbone, CosPlace aggregation and a head for the uncertainty.

    Args:
        architecture: Structure of the model.
        preprocessing: Preprocessing of the images. Default: square images of the backbone's default size.

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
        """Create a model with random weights.

        Args:
            backbone: Name of the backbone, as ``kappaplace models`` lists it.
            dim: Dimension of the descriptor.
            head: Name of the head.
            pretrained: Load ImageNet weights into the backbone.
            preprocessing: Preprocessing of the images. Default: square images of the backbone's default size.

        Returns:
            The model in training mode.

        Raises:
            KappaPlaceError: If a name is unknown, or if the weights cannot be downloaded.
        """
        model = cls(Architecture(backbone, dim, head), preprocessing)
        if pretrained:
            model.backbone = build_backbone(backbone, pretrained=True)
        return model

    @property
    def fingerprint(self) -> str:
        """Checksum of the weights and the architecture."""
        return fingerprint_of(self, to_plain(self.architecture))

    @renamed(way="form")
    def optimize(self, device: str | torch.device | None = None, *, form: Form = "auto") -> OptimizedModel:
        """Return a copy for inference, in the form that is fastest on a device.

        Descriptors stay within a cosine of 0.9999 and κ within 1% of this model: half precision is used only
        if test images confirm it.

        Args:
            device: Device of the copy. Default: device of this model.
            form: Form of the copy: auto, eager, graph, fused or compiled. See `kappaplace.models.fast`.

        Returns:
            The copy, in evaluation mode.

        Raises:
            KappaPlaceError: If the device cannot be used, or if the form requires CUDA.
        """
        return optimize(self, device, form=form)

    def freeze_partially(self, stages: int | None = None, *, statistics: bool = True) -> None:
        """Freeze the first stages of the backbone; the others, the aggregation and the head train.

        Args:
            stages: Number of stages to freeze. Default: the usual number for this backbone.
            statistics: Freeze the BatchNorm statistics of these stages, too.

        Raises:
            KappaPlaceError: If the backbone has fewer stages.
        """
        count = backbone_spec(self.architecture.backbone).frozen_stages if stages is None else stages
        freeze_stages(self.backbone, count)
        self.aggregation.requires_grad_(True)
        self._frozen_stages, self._frozen_encoder = count if statistics else 0, False
        self.train(self.training)

    def freeze_encoder(self) -> None:
        """Freeze the encoder for post-training: only the head trains, and descriptors do not change."""
        self._frozen_encoder = True
        for module in (self.backbone, self.aggregation):
            module.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> PlaceModel:
        """Set the training mode; frozen parts stay in evaluation mode, so their BatchNorm does not change.

        Args:
            mode: Training mode (True) or evaluation mode (False).

        Returns:
            This model.
        """
        super().train(mode)
        if self._frozen_encoder:
            self.backbone.eval()
            self.aggregation.eval()
        else:
            for module in frozen_modules(self.backbone, self._frozen_stages):
                module.eval()
        return self
