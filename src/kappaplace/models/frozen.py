"""FrozenEncoder: κ for any trained encoder that returns a descriptor.

Hub models (MegaLoc, EigenPlaces, MixVPR, SALAD, BoQ ...) are used as they are. The head reads the feature
map of a named layer, or the descriptor alone where no layer is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import GeM, normalise_channels
from kappaplace.models.embedding import check_images
from kappaplace.models.encoder import EncoderModule, fingerprint_of, state_digest
from kappaplace.models.heads import FoldedKappaHead, LinearKappaHead, MirroredKappaHead, with_folded_head
from kappaplace.models.network import Features, unit
from kappaplace.records import to_plain
from kappaplace.types import Embeddings

PROBE_SIDE = 224  # a multiple of 14, 16 and 32, for encoders that take any size


@dataclass(frozen=True)
class FrozenArchitecture:
    """Form of a kappa head, and the encoder that it belongs to."""

    encoder: str
    """Name of a published model, or empty."""
    fingerprint: str
    """Checksum of the encoder's weights."""
    layer: str | None
    prefix_tokens: int
    folded: bool


class FrozenEncoder(EncoderModule):
    """A trained encoder, untouched, with a kappa head beside it.

    >>> encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> model = FrozenEncoder(encoder, layer="0")
    >>> tuple(model(torch.rand(2, 3, 32, 32)).kappa.shape)
    (2,)
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        layer: str | None = None,
        preprocessing: Preprocessing | None = None,
        prefix_tokens: int = 1,
        name: str = "",
    ) -> None:
        """``layer`` names the module whose output the head reads (a dotted name as in ``named_modules``).

        Its output may be a B×C×H×W map or B×N×C tokens, of which the first ``prefix_tokens`` are dropped;
        of a tuple (map and class token, as SALAD and MegaLoc have it) the first is taken.
        ``preprocessing`` must be the one the encoder was trained with (default: 512×512, ImageNet);
        ``name`` is that of a hub model, so that a saved head can find its encoder again.
        """
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise KappaPlaceError(
                f"An encoder is a torch module, not {type(encoder).__name__}; load_model loads one by name."
            )
        if layer is not None and layer not in dict(encoder.named_modules()):
            some = ", ".join(name for name, _ in list(encoder.named_modules())[1:13])
            raise KappaPlaceError(f"The encoder has no layer '{layer}'; its first layers are: {some}.")
        self.encoder = encoder.eval().requires_grad_(False)
        self.preprocessing = preprocessing or Preprocessing(512, "exact")
        self.layer, self.prefix_tokens, self.name = layer, prefix_tokens, name
        self.channels, self.dim = self._probe()
        self.gem = GeM().requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            # Always the same: an encoder that is loaded anew must be told as the same model.
            torch.manual_seed(0)
            self.head: nn.Module = (
                LinearKappaHead(self.dim) if layer is None else MirroredKappaHead(self.channels, self.dim)
            )

    @torch.no_grad()
    def _probe(self) -> tuple[int, int]:
        """Channels of the watched layer and dimension of the descriptor, from one image."""
        weight = next(self.encoder.parameters(), torch.zeros(()))
        height, width = self.preprocessing.fixed_size or (PROBE_SIDE, PROBE_SIDE)
        image = torch.zeros(1, 3, height, width, device=weight.device, dtype=weight.dtype)
        try:
            normalised, descriptor = self._encode(image)
        except (RuntimeError, AssertionError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise KappaPlaceError(
                f"The encoder fails on an image of {height}×{width} pixels ({reason}); give the "
                "preprocessing it was trained with."
            ) from None
        return (0 if normalised is None else normalised.shape[1]), descriptor.shape[1]

    @torch.no_grad()
    def _encode(self, images: Tensor) -> tuple[Tensor | None, Tensor]:
        captured: list[Any] = []
        handle = None
        if self.layer is not None:
            # For this pass only: copies of this model must not capture each other's features.
            watched = self.encoder.get_submodule(self.layer)
            handle = watched.register_forward_hook(lambda module, inputs, output: captured.append(output))
        try:
            output = self.encoder(images)
        finally:
            if handle is not None:
                handle.remove()
        descriptor = _first(output)
        if not isinstance(descriptor, Tensor) or descriptor.ndim != 2:
            shape = tuple(descriptor.shape) if isinstance(descriptor, Tensor) else type(descriptor).__name__
            raise KappaPlaceError(f"The encoder must return a descriptor of shape B×d, it returned {shape}.")
        if self.layer is None:
            return None, descriptor
        features = _first(captured[-1]) if captured else None
        if not isinstance(features, Tensor):
            raise KappaPlaceError(
                f"The layer '{self.layer}' gave no tensor in the forward pass; name another layer."
            )
        return normalise_channels(self._as_map(features)), descriptor

    def _as_map(self, features: Tensor) -> Tensor:
        if features.ndim == 4:
            return features
        if features.ndim == 3:  # GeM does not look at the arrangement, one column of tokens will do
            return features[:, self.prefix_tokens :].transpose(1, 2).unsqueeze(-1)
        raise KappaPlaceError(
            f"The layer '{self.layer}' gives shape {tuple(features.shape)}; a B×C×H×W map or B×N×C tokens "
            "are needed."
        )

    @property
    def fingerprint(self) -> str:
        """Checksum of the head, of the encoder and of how they belong together."""
        return fingerprint_of(self, to_plain(self.architecture))

    def features(self, images: Tensor) -> Features:
        """What the head may read; without a watched layer that is the encoder's output alone."""
        check_images(images)
        normalised, raw = self._encode(images)
        if normalised is None:
            return Features(raw, raw, raw)
        return Features(normalised, self.gem(normalised), raw)

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What losses are made of: descriptors B×d at unit length, and the head's own output."""
        features = self.features(images)
        return unit(features.raw), self.head(*features)

    def forward(self, images: Tensor) -> Embeddings:
        """The encoder's descriptor at unit length, and κ of shape B."""
        return Embeddings(*self.outputs(images))

    @property
    def architecture(self) -> FrozenArchitecture:
        """What a saved head needs to find its encoder."""
        digest = state_digest(self.encoder.state_dict())
        folded = isinstance(self.head, FoldedKappaHead)
        return FrozenArchitecture(self.name, digest, self.layer, self.prefix_tokens, folded)

    @classmethod
    def of(
        cls, architecture: FrozenArchitecture, encoder: nn.Module, preprocessing: Preprocessing
    ) -> FrozenEncoder:
        """Build the encoder of an `architecture`, with an untrained head.

        Raises:
            KappaPlaceError: If the encoder has other weights.
        """
        if state_digest(encoder.state_dict()) != architecture.fingerprint:
            raise KappaPlaceError(
                "This kappa head was trained for another encoder, so its κ would be meaningless. Load the "
                "encoder with its original weights, or train the head again."
            )
        model = cls(
            encoder,
            layer=architecture.layer,
            preprocessing=preprocessing,
            prefix_tokens=architecture.prefix_tokens,
            name=architecture.encoder,
        )
        return model.fold() if architecture.folded else model

    def fold(self) -> FrozenEncoder:
        """The same encoder with the mirrored head in its exact inference form."""
        return with_folded_head(self)

    def train(self, mode: bool = True) -> FrozenEncoder:
        """The encoder never leaves evaluation mode."""
        super().train(mode)
        self.encoder.eval()
        return self


def _first(output: Any) -> Any:
    """Encoders and layers may return more beside what is wanted, which then comes first."""
    return output[0] if isinstance(output, tuple | list) and output else output
