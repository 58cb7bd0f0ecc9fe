"""What every encoder has in common, and the checksum by which its embeddings are recognized."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing, Source
from kappaplace.types import Embeddings


class Encoder(Protocol):
    """Images in, embeddings out: a trained, frozen, exported or optimized model."""

    preprocessing: Preprocessing

    @property
    def dim(self) -> int:
        """Length of a descriptor."""

    @property
    def has_kappa(self) -> bool:
        """Whether embeddings have κ."""

    @property
    def shows_patches(self) -> bool:
        """Whether embeddings can have patches."""

    @property
    def fingerprint(self) -> str:
        """Checksum of everything that embeddings depend on."""

    def embed(
        self, images: Iterable[Source] | Source, *, batch_size: int = 32, patches: bool = False
    ) -> Embeddings:
        """Return descriptors and κ of images in input order, with ``patches`` also their feature maps."""


def fingerprint_of(module: nn.Module, description: dict[str, Any]) -> str:
    """Return the checksum of a module's weights and of what it is built of."""
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
