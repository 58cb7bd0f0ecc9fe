"""FrozenEncoder: κ for any trained encoder that returns a descriptor.

Hub models (MegaLoc, EigenPlaces, MixVPR, SALAD, BoQ, …) are used unchanged. The head reads the feature map of
a named layer, or the descriptor if no layer is named.
"""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import reason
from kappaplace.models.aggregation import GeM, normalize_channels
from kappaplace.models.embedding import check_images
from kappaplace.models.encoder import EncoderModule, fingerprint_of, state_digest
from kappaplace.models.heads import FoldedKappaHead, LinearKappaHead, MirroredKappaHead, with_folded_head
from kappaplace.models.network import Features
from kappaplace.records import optional, to_plain
from kappaplace.types import Embeddings

PROBE_SIDE = 224  # a multiple of 14, 16 and 32, for encoders that accept any size
Output: TypeAlias = "Tensor | tuple[Output, ...] | list[Output]"
"""Output of an encoder or layer."""


class Outputs(NamedTuple):
    """Outputs of one pass of an encoder."""

    descriptor: Tensor
    """Descriptors B×d, of any length."""
    features: Tensor | None
    """Output of the layer that the head reads; None if it reads the descriptor."""
    patches: Tensor | None
    """Output of the layer of the patches; None if there is none."""


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
    patch_layer: str | None = field(default=None, metadata=optional())
    """Name of the layer that returns the patches. None: ``layer``."""
    cross_image: bool = field(default=False, metadata=optional())
    """Whether a descriptor depends on the other images of its batch."""


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
        patch_layer: Layer whose output is used for patch matching, in the form of ``layer``. Default:
            ``layer``.
        cross_image: Whether the descriptor of an image depends on the other images of its batch. If so, every
            image is encoded on its own.

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
        patch_layer: str | None = None,
        cross_image: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise KappaPlaceError(
                f"encoder must be a torch module, got {type(encoder).__name__}. load_model loads one by name."
            )
        for each in (layer, patch_layer):
            if each is not None and each not in dict(encoder.named_modules()):
                names = ", ".join(name for name, _ in list(encoder.named_modules())[1:13])
                raise KappaPlaceError(f"The encoder has no layer '{each}'. Its first layers are: {names}.")
        self.encoder = encoder.eval().requires_grad_(False)
        own = getattr(encoder, "preprocessing", None)
        default = own if isinstance(own, Preprocessing) else Preprocessing(512, "exact")
        self.preprocessing = preprocessing or default
        self.layer, self.prefix_tokens, self.name = layer, prefix_tokens, name
        self.patch_layer, self.cross_image = patch_layer or layer, cross_image
        self.channels, self.encoder_dim, self.shows_patches = self._probe()
        self.gem = GeM().requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            # A fixed seed: an encoder that is loaded again must have the same fingerprint.
            torch.manual_seed(0)
            self.head: nn.Module = (
                LinearKappaHead(self.encoder_dim)
                if layer is None
                else MirroredKappaHead(self.channels, self.encoder_dim)
            )

    @property
    def dim(self) -> int:
        """Dimension of the descriptor."""
        return self.encoder_dim if self.whitening is None else self.whitening.dim

    @torch.no_grad()
    def _probe(self) -> tuple[int, int, bool]:
        """Return the channels of the layer, the dimension of the descriptor, and whether patches exist."""
        weight = next(self.encoder.parameters(), torch.zeros(()))
        height, width = self.preprocessing.fixed_size or (PROBE_SIDE, PROBE_SIDE)
        image = torch.zeros(1, 3, height, width, device=weight.device, dtype=weight.dtype)
        try:
            output = self._encode(image)
        except (RuntimeError, AssertionError, ValueError) as error:
            raise KappaPlaceError(
                f"The encoder fails on an image of {height}×{width} pixels ({reason(error)}). Pass the "
                "preprocessing that it was trained with."
            ) from None
        channels = 0 if self.layer is None else self._as_map(output.features, self.layer).shape[1]
        return channels, output.descriptor.shape[1], self._grid(output, image) is not None

    @torch.no_grad()
    def _encode(self, images: Tensor) -> Outputs:
        """Run the encoder; an encoder that mixes the images of a batch gets them one by one."""
        if self.cross_image and len(images) > 1:
            parts = [self._encode(image[None]) for image in images]
            descriptors, *others = zip(*parts, strict=True)
            return Outputs(torch.cat(descriptors), *(None if x[0] is None else torch.cat(x) for x in others))
        names = {name for name in (self.layer, self.patch_layer) if name is not None}
        captured: dict[str, Tensor] = {}

        def capture(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Output) -> None:
            value = _first(output)
            if isinstance(value, Tensor):
                captured[name] = value

        # Only for this pass: copies of this model must not capture each other's features.
        handles = [
            self.encoder.get_submodule(name).register_forward_hook(partial(capture, name)) for name in names
        ]
        try:
            output = self.encoder(images)
        finally:
            for handle in handles:
                handle.remove()
        descriptor = _first(output)
        if not isinstance(descriptor, Tensor) or descriptor.ndim != 2:
            shape = tuple(descriptor.shape) if isinstance(descriptor, Tensor) else type(descriptor).__name__
            raise KappaPlaceError(f"The encoder must return descriptors of shape B×d, got {shape}.")
        if self.layer is not None and self.layer not in captured:
            raise KappaPlaceError(f"The layer '{self.layer}' returned no tensor. Pass another layer.")
        features, patches = (captured.get(name or "") for name in (self.layer, self.patch_layer))
        return Outputs(descriptor.to(images.device), features, patches)  # some encoders compute on the CPU

    def _as_map(self, features: Tensor | None, layer: str) -> Tensor:
        if features is not None and features.ndim == 4:
            return features
        if features is not None and features.ndim == 3:  # GeM ignores the arrangement: one column is enough
            return features[:, self.prefix_tokens :].transpose(1, 2).unsqueeze(-1)
        shape = None if features is None else tuple(features.shape)
        raise KappaPlaceError(
            f"The layer '{layer}' must return a B×C×H×W map or B×N×C tokens, got shape {shape}."
        )

    @property
    def fingerprint(self) -> str:
        """Checksum of the head, the encoder and their connection."""
        architecture = self.architecture
        if self.name:  # the name of a published encoder determines the layer of its patches
            architecture = replace(architecture, patch_layer=None)
        return fingerprint_of(self, to_plain(architecture))

    def features(self, images: Tensor) -> Features:
        """Return the input of the head.

        Args:
            images: Normalized images B×3×H×W.

        Returns:
            The features. If no ``layer`` was named, all of them are the descriptor of the encoder.
        """
        check_images(images)
        return self._features(self._encode(images))

    def _features(self, output: Outputs) -> Features:
        raw = output.descriptor
        if self.layer is None:
            return Features(raw, raw, raw)
        normalized = normalize_channels(self._as_map(output.features, self.layer))
        return Features(normalized, self.gem(normalized), raw)

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of losses.

        Args:
            images: Normalized images B×3×H×W.

        Returns:
            Unit descriptors B×d, and the output of the head.
        """
        features = self.features(images)
        return self.descriptor(features.raw), self.head(*features)

    def forward(self, images: Tensor, patches: bool = False) -> Embeddings:
        """Compute descriptors and κ.

        Args:
            images: Normalized images B×3×H×W.
            patches: Also return the feature maps of `patch_maps`, from the same pass.

        Returns:
            Unit descriptors B×d and κ of shape B.
        """
        check_images(images)
        output = self._encode(images)
        embeddings = self._embeddings(self._features(output))
        return embeddings._replace(patches=self._grid(output, images)) if patches else embeddings

    def _embeddings(self, features: Features) -> Embeddings:
        return Embeddings(self.descriptor(features.raw), self.head(*features))

    def _grid(self, output: Outputs, images: Tensor) -> Tensor | None:
        if output.patches is None:
            return None
        return as_grid(output.patches, (images.shape[-2], images.shape[-1]), self.prefix_tokens)

    @property
    def architecture(self) -> FrozenArchitecture:
        """Structure of the head, with the fingerprint of the encoder."""
        digest = state_digest(self.encoder.state_dict())
        folded = isinstance(self.head, FoldedKappaHead)
        patch_layer = None if self.patch_layer == self.layer else self.patch_layer
        return FrozenArchitecture(
            self.name, digest, self.layer, self.prefix_tokens, folded, patch_layer, self.cross_image
        )

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
            patch_layer=architecture.patch_layer,
            cross_image=architecture.cross_image,
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

    def _embeddings(self, features: Features) -> Embeddings:
        return Embeddings(self.descriptor(features.raw))


def plain_encoder(encoder: nn.Module) -> PlainEncoder:
    """Return an encoder without κ, for a module whose head, if it has one, is not trained.

    Args:
        encoder: A torch module, as for `FrozenEncoder`, or a `FrozenEncoder`.

    Returns:
        The encoder without κ.
    """
    if isinstance(encoder, FrozenEncoder):
        return PlainEncoder(
            encoder.encoder,
            preprocessing=encoder.preprocessing,
            prefix_tokens=encoder.prefix_tokens,
            patch_layer=encoder.patch_layer,
            cross_image=encoder.cross_image,
        )
    return PlainEncoder(encoder)


def load_encoder(function: str) -> nn.Module:
    """Import a function, and return the encoder that it returns. The code of the function runs on your
    machine.

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
        raise KappaPlaceError(
            f"The encoder {function} cannot be loaded ({reason(error)}). Check that the function exists and "
            "needs no arguments."
        ) from error
    if not isinstance(encoder, nn.Module):
        raise KappaPlaceError(f"{function} must return a torch module, got {type(encoder).__name__}.")
    return encoder


def _first(output: Output) -> Output:
    """Return the first item of a tuple: encoders and layers may return further outputs after it."""
    return output[0] if isinstance(output, tuple | list) and output else output


def as_grid(features: Tensor, size: tuple[int, int], prefix_tokens: int) -> Tensor | None:
    """Return the output of a layer as feature maps.

    Args:
        features: A map B×C×H×W, or tokens B×N×C.
        size: Height and width of the images.
        prefix_tokens: Number of tokens to drop before the patch tokens.

    Returns:
        Feature maps B×C×H×W; None if the output is neither, or its tokens are not a grid over the images.
    """
    if features.ndim == 4:
        return features
    count = features.shape[1] - prefix_tokens if features.ndim == 3 else 0
    if count < 1:
        return None
    side = math.sqrt(size[0] * size[1] / count)
    height, width = round(size[0] / side), round(size[1] / side)
    if height * width != count:
        return None
    return features[:, prefix_tokens:].transpose(1, 2).reshape(len(features), -1, height, width)
