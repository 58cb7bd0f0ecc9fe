"""Common interface of all encoders, and the checksums that identify their embeddings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing, Source
from kappaplace.errors import KappaPlaceError
from kappaplace.models.embedding import embed_images
from kappaplace.models.heads import Head
from kappaplace.types import Embeddings, Json


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

    @property
    def has_kappa(self) -> bool:
        """Whether embeddings have κ."""
        return isinstance(self.head, Head) and self.head.spread == "kappa"

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
        return embed_images(
            self,
            self.preprocessing,
            images,
            batch_size=batch_size,
            device=device,
            progress=progress,
            patches=patches,
        )


def fingerprint_of(module: nn.Module, description: Mapping[str, Json]) -> str:
    """Return the checksum of a module's weights and structure."""
    text = json.dumps([type(module).__name__, description, state_digest(module.state_dict())], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


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
            f"{len(unexpected)} are unexpected (for example '{example}')."
        )
    model.load_state_dict(state, strict=False)
