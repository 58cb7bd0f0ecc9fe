"""Common interface of all encoders, and the checksums that identify their embeddings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing, Source
from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import Whitening
from kappaplace.models.embedding import embed_images
from kappaplace.models.heads import Head
from kappaplace.types import Embeddings, Json

M = TypeVar("M", bound="EncoderModule")


class Encoder(Protocol):
    """Any model that embeds images: trained, frozen, exported or optimized."""

    preprocessing: Preprocessing

    @property
    def dim(self) -> int:
        """Dimension of the descriptor."""

    @property
    def has_kappa(self) -> bool:
        """Whether embeddings have κ."""

    @property
    def fingerprint(self) -> str:
        """Checksum of everything that embeddings depend on."""

    def embed(
        self, images: Iterable[Source] | Source, *, batch_size: int = 32, patches: bool = False
    ) -> Embeddings:
        """Embed images.

        Args:
            images: A path, Pillow image or H×W×3 array, or a sequence of them.
            batch_size: Number of images to embed at once.
            patches: Also return the feature maps for patch matching, from the same pass.

        Returns:
            Descriptors and κ in input order.
        """


class EncoderModule(nn.Module):
    """Base class of the encoders of this package."""

    preprocessing: Preprocessing
    shows_patches: bool = False
    """Whether the model provides patch maps: ResNets and EfficientNet-Lite do."""
    cross_image = False
    """Whether a descriptor depends on the other images of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.whitening: Whitening | None = None

    def with_whitening(self: M, whitening: Whitening | None) -> M:
        """Return the model with another whitening of its descriptors; everything else is shared.

        Args:
            whitening: The whitening, fitted on descriptors of this model. None removes it.

        Returns:
            The model.
        """
        other = copy(self)
        other._modules = dict(self._modules)
        other._modules.pop("whitening", None)
        other.whitening = whitening
        return other

    def whitened(self, embeddings: Embeddings) -> Embeddings:
        """Return the embeddings with whitened descriptors; unchanged without a whitening."""
        if self.whitening is None:
            return embeddings
        return embeddings._replace(descriptor=self.whitening(embeddings.descriptor))

    def descriptor(self, raw: Tensor) -> Tensor:
        """Return the descriptors B×d of this model from the output of its network before normalization."""
        return unit(raw) if self.whitening is None else self.whitening(unit(raw))

    @property
    def has_kappa(self) -> bool:
        """Whether embeddings have κ."""
        return isinstance(self.head, Head) and self.head.spread == "kappa"

    def patch_maps(self, images: Tensor) -> Tensor:
        """Compute feature maps for patch matching.

        Args:
            images: Normalized images B×3×H×W.

        Returns:
            Feature maps B×C×h×w.

        Raises:
            KappaPlaceError: If the model does not provide them.
        """
        self.check_patches()
        return self(images, patches=True).patches

    def check_patches(self) -> None:
        """Raise an error if the model does not provide patch maps."""
        if not self.shows_patches:
            raise KappaPlaceError(
                "This model does not provide patch maps, which patch matching needs. Use a ResNet or "
                "EfficientNet-Lite, exported without --no-patches."
            )

    def embed(
        self,
        images: Iterable[Source] | Source,
        *,
        batch_size: int = 32,
        device: str | torch.device | None = None,
        progress: bool = True,
        patches: bool = False,
    ) -> Embeddings:
        """Embed images.

        Args:
            images: A path, Pillow image or H×W×3 array, or a sequence of them.
            batch_size: Number of images to embed at once.
            device: Device to move the model to. Default: do not move it.
            progress: Show a progress bar.
            patches: Also return the feature maps for patch matching, from the same pass.

        Returns:
            Descriptors and κ in input order, as NumPy arrays in float32.

        Raises:
            KappaPlaceError: If there is no image, if one cannot be read, if the model has no patches, or if
                the device cannot be used.
        """
        if patches:
            self.check_patches()
        return embed_images(
            self,
            self.preprocessing,
            images,
            batch_size=batch_size,
            device=device,
            progress=progress,
            patches=patches,
        )


def unit(raw: Tensor) -> Tensor:
    """Scale to unit length, in float32 even after a half-precision layer."""
    return F.normalize(raw if raw.dtype == torch.float64 else raw.float(), dim=-1)


def fingerprint_of(module: EncoderModule, description: Mapping[str, Json]) -> str:
    """Return the checksum of a module's weights and structure."""
    text = json.dumps([type(module).__name__, description, state_digest(module.state_dict())], sort_keys=True)
    return whitened_fingerprint(hashlib.sha256(text.encode()).hexdigest(), module.whitening)


def whitened_fingerprint(fingerprint: str, whitening: Whitening | None) -> str:
    """Return the fingerprint of a model with a whitening."""
    if whitening is None:
        return fingerprint
    return hashlib.sha256(f"{fingerprint} {whitening.digest}".encode()).hexdigest()


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return the checksum of weights: names, shapes, types and bytes."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_dim(dim: int, expected: int | None, source: str) -> None:
    """Raise an error if descriptors do not have the expected dimension.

    Args:
        dim: Dimension of the descriptors.
        expected: Expected dimension. None: any.
        source: Name of the checkpoint, for the message.
    """
    if expected is not None and expected != dim:
        raise KappaPlaceError(
            f"The checkpoint {source} has {dim}-dimensional descriptors, expected {expected}. Use or train a "
            "checkpoint of this dimension."
        )


def load_state(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Call `load_state_dict`, with a short message if the weights do not fit.

    Args:
        model: The model.
        state: The weights.
        source: Name of the checkpoint, for the message.
    """
    own = model.state_dict()
    for name, value in state.items():
        if name in own and own[name].shape != value.shape:
            raise KappaPlaceError(
                f"The checkpoint {source} does not fit the model: '{name}' has shape {tuple(value.shape)}, "
                f"expected {tuple(own[name].shape)}. Check its dimension and backbone."
            )
    # Old files do not have the step counter of BatchNorm, which inference does not need.
    missing = sorted(name for name in set(own) - set(state) if not name.endswith("num_batches_tracked"))
    unexpected = sorted(set(state) - set(own))
    if missing or unexpected:
        example = missing[0] if missing else unexpected[0]
        raise KappaPlaceError(
            f"The checkpoint {source} does not fit the model: {len(missing)} tensors are missing and "
            f"{len(unexpected)} are unexpected (such as '{example}'). Check its backbone and head."
        )
    model.load_state_dict(state, strict=False)
