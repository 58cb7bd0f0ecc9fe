"""Checksums of files and of weights in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError


def sha256_of(file: Path) -> str:
    """Checksum of a file's content."""
    digest = hashlib.sha256()
    try:
        with open(file, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise KappaPlaceError(f"Cannot read {file}: {os.strerror(error.errno or 0)}.") from None
    return digest.hexdigest()


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Checksum of weights: names, shapes, types and bytes."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
