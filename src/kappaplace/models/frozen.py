"""FrozenEncoder: κ for any trained encoder that returns a descriptor.

Hub models (MegaLoc, EigenPlaces, MixVPR, SALAD, BoQ, …) are used unchanged. The head reads the feature map of
a named layer, or the descriptor if no layer is named.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import GeM, normalize_channels
from kappaplace.models.embedding import check_images
from kappaplace.models.encoder import EncoderModule, fingerprint_of, state_digest
from kappaplace.models.heads import FoldedKappaHead, LinearKappaHead, MirroredKappaHead, with_folded_head
from kappaplace.models.network import Features, unit
from kappaplace.records import to_plain
from kappaplace.types import Embeddings

PROBE_SIDE = 224  # a multiple of 14, 16 and 32, for encoders that accept any size
Output: TypeAlias = "Tensor | tuple[Output, ...] | list[Output]"
"""Output of an encoder or layer."""


@dataclass(frozen=True)
class FrozenArchitecture:
    """Structure of a kappa head, and the encoder that it belongs to."""

    encoder: str
    """Name of the published model, or empty."""
    fingerprint: str
    """Checksum of the encoder's weights."""
    layer: str | None
    """Name of the layer that the head reads. None: the head reads the descriptor."""
    prefix_tokens: int
    """Number of tokens to drop before the patch tokens."""
    folded: bool
    """Whether the head is in its inference form."""


class FrozenEncoder(EncoderModule):
    """A trained encoder that does not change, with a kappa head.

    Args:
        encoder: A torch module that returns descriptors B×d, or a tuple that starts with them.
        layer: Name of the layer that the head reads, as in ``named_modules``. Its output is a B×C×H×W map,
            B×N×C tokens, or a tuple that starts with one of them (SALAD, MegaLoc). Default: the head reads
            the descriptor.
        preprocessing: Preprocessing that the encoder was trained with. Default: the attribute of this name
            of the encoder, otherwise 512×512 with ImageNet statistics.
        prefix_tokens: Number of tokens to drop before the patch tokens.
        name: Name of a hub model, so that a saved head can find its encoder.

    Raises:
        KappaPlaceError: If the encoder is not a module, has no such layer, or fails on an image.

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
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise KappaPlaceError(
                f"encoder must be a torch module, got {type(encoder).__name__}. load_model loads one by name."
            )
        if layer is not None and layer not in dict(encoder.named_modules()):
            names = ", ".join(name for name, _ in list(encoder.named_modules())[1:13])
            raise KappaPlaceError(f"The encoder has no layer '{layer}'. Its first layers are: {names}.")
        self.encoder = encoder.eval().requires_grad_(False)
        own = getattr(encoder, "preprocessing", None)
        default = own if isinstance(own, Preprocessing) else Preprocessing(512, "exact")
        self.preprocessing = preprocessing or default
        self.layer, self.prefix_tokens, self.name = layer, prefix_tokens, name
        self.channels, self.dim = self._probe()
        self.gem = GeM().requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            # A fixed seed: an encoder that is loaded again must have the same fingerprint.
            torch.manual_seed(0)
            self.head: nn.Module = (
                LinearKappaHead(self.dim) if layer is None else MirroredKappaHead(self.channels, self.dim)
            )

    @torch.no_grad()
    def _probe(self) -> tuple[int, int]:
        """Return the channels of the layer and the dimension of the descriptor, from one image."""
        weight = next(self.encoder.parameters(), torch.zeros(()))
        height, width = self.preprocessing.fixed_size or (PROBE_SIDE, PROBE_SIDE)
        image = torch.zeros(1, 3, height, width, device=weight.device, dtype=weight.dtype)
        try:
            normalized, descriptor = self._encode(image)
        except (RuntimeError, AssertionError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise KappaPlaceError(
                f"The encoder fails on an image of {height}×{width} pixels ({reason}). Pass the "
                "preprocessing it was trained with."
            ) from None
        return (0 if normalized is None else normalized.shape[1]), descriptor.shape[1]

    @torch.no_grad()
    def _encode(self, images: Tensor) -> tuple[Tensor | None, Tensor]:
        captured: list[Output] = []
        handle = None
        if self.layer is not None:
            # Only for this pass: copies of this model must not capture each other's features.
            layer = self.encoder.get_submodule(self.layer)
            handle = layer.register_forward_hook(lambda module, inputs, output: captured.append(output))
        try:
            output = self.encoder(images)
        finally:
            if handle is not None:
                handle.remove()
        descriptor = _first(output)
        if not isinstance(descriptor, Tensor) or descriptor.ndim != 2:
            shape = tuple(descriptor.shape) if isinstance(descriptor, Tensor) else type(descriptor).__name__
            raise KappaPlaceError(f"The encoder must return descriptors of shape B×d, got {shape}.")
        if self.layer is None:
            return None, descriptor
        features = _first(captured[-1]) if captured else None
        if not isinstance(features, Tensor):
            raise KappaPlaceError(
                f"The layer '{self.layer}' did not return a tensor in the forward pass. Pass another layer."
            )
        return normalize_channels(self._as_map(features)), descriptor

    def _as_map(self, features: Tensor) -> Tensor:
        if features.ndim == 4:
            return features
        if features.ndim == 3:  # GeM ignores the arrangement, so one column of tokens is enough
            return features[:, self.prefix_tokens :].transpose(1, 2).unsqueeze(-1)
        raise KappaPlaceError(
            f"The layer '{self.layer}' must return a B×C×H×W map or B×N×C tokens, got shape "
            f"{tuple(features.shape)}."
        )

    @property
    def fingerprint(self) -> str:
        """Checksum of the head, the encoder and their connection."""
        return fingerprint_of(self, to_plain(self.architecture))

    def features(self, images: Tensor) -> Features:
        """Return the input of the head.

        Args:
            images: Normalized images B×3×H×W.

        Returns:
            The features. If no ``layer`` was named, all of them are the descriptor of the encoder.
        """
        check_images(images)
        normalized, raw = self._encode(images)
        if normalized is None:
            return Features(raw, raw, raw)
        return Features(normalized, self.gem(normalized), raw)

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of losses.

        Args:
            images: Normalized images B×3×H×W.

        Returns:
            Unit descriptors B×d, and the output of the head.
        """
        features = self.features(images)
        return unit(features.raw), self.head(*features)

    def forward(self, images: Tensor) -> Embeddings:
        """Compute descriptors and κ.

        Args:
            images: Normalized images B×3×H×W.

        Returns:
            Unit descriptors B×d and κ of shape B.
        """
        return Embeddings(*self.outputs(images))

    @property
    def architecture(self) -> FrozenArchitecture:
        """Structure of the head, with the fingerprint of the encoder."""
        digest = state_digest(self.encoder.state_dict())
        folded = isinstance(self.head, FoldedKappaHead)
        return FrozenArchitecture(self.name, digest, self.layer, self.prefix_tokens, folded)

    @classmethod
    def of(
        cls, architecture: FrozenArchitecture, encoder: nn.Module, preprocessing: Preprocessing
    ) -> FrozenEncoder:
        """Build a model with an untrained head.

        Args:
            architecture: Structure of the head.
            encoder: The encoder that the head belongs to.
            preprocessing: Preprocessing of the encoder.

        Returns:
            The model.

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
        """Return the model with its mirrored head in the exact inference form; the encoder is shared.

        Returns:
            The folded model.
        """
        return with_folded_head(self)

    def train(self, mode: bool = True) -> FrozenEncoder:
        """Set the training mode of the head; the encoder stays in evaluation mode.

        Args:
            mode: Training mode (True) or evaluation mode (False).

        Returns:
            This model.
        """
        super().train(mode)
        self.encoder.eval()
        return self


class PlainEncoder(FrozenEncoder):
    """A trained encoder without a kappa head: descriptors only."""

    @property
    def has_kappa(self) -> bool:
        """Whether embeddings have κ."""
        return False

    def forward(self, images: Tensor) -> Embeddings:
        """Compute unit descriptors B×d of normalized images B×3×H×W."""
        return Embeddings(unit(self.features(images).raw))


def plain_encoder(encoder: nn.Module) -> PlainEncoder:
    """Return an encoder without κ, for a module whose head, if it has one, is not trained.

    Args:
        encoder: A torch module, as for `FrozenEncoder`, or a `FrozenEncoder`.

    Returns:
        The encoder without κ.
    """
    if isinstance(encoder, FrozenEncoder):
        return PlainEncoder(encoder.encoder, preprocessing=encoder.preprocessing)
    return PlainEncoder(encoder)


def load_encoder(function: str) -> nn.Module:
    """Import a function and return the encoder that it returns. Its code runs on your machine.

    Args:
        function: ``package.module:function``, in the current folder or installed.

    Returns:
        The encoder.

    Raises:
        KappaPlaceError: If there is no such function, it fails, or it does not return a torch module.
    """
    module, _, name = function.partition(":")
    if not (module and name):
        raise KappaPlaceError(f"The encoder must be package.module:function, got '{function}'.")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # scripts start in the folder of the script
    try:
        encoder = getattr(importlib.import_module(module), name)()
    except Exception as error:  # the user's code may raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise KappaPlaceError(
            f"The encoder {function} cannot be loaded: {reason}. Check that the function exists and needs no "
            "arguments."
        ) from error
    if not isinstance(encoder, nn.Module):
        raise KappaPlaceError(f"{function} must return a torch module, got {type(encoder).__name__}.")
    return encoder


def _first(output: Output) -> Output:
    """Return the first item of a tuple: encoders and layers may return further outputs after it."""
    return output[0] if isinstance(output, tuple | list) and output else output
