"""Trained models that can be fetched by name, and the cache they land in.

The checksum of a file is recorded when it is first downloaded and checked every time it is used, so a
damaged or exchanged file is noticed; what was downloaded first is trusted.
"""

from __future__ import annotations

import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError

import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.models.checkpoint import sha256_of
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.progress import track

TIMEOUT_SECONDS = 30
CHUNK = 1 << 20


@dataclass(frozen=True)
class HubModel:
    """A published model."""

    name: str
    kind: Literal["weights", "torch.hub"]
    """weights: a file that our own code reads; torch.hub: its authors' code runs on your machine."""
    where: str
    dim: int
    size_mb: int
    licence: str
    entry: str = ""
    options: tuple[tuple[str, Any], ...] = ()


def _gmberton(project: str, licence: str, backbone: str, dim: int, size_mb: int) -> HubModel:
    url = (
        f"https://github.com/gmberton/{project}/releases/download/v1.0/{backbone}_{dim}_{project.lower()}.pth"
    )
    return HubModel(f"{project.lower()}-{backbone.lower()}-{dim}", "weights", url, dim, size_mb, licence)


_MODELS = (
    _gmberton("CosPlace", "MIT", "VGG16", 512, 60),
    _gmberton("CosPlace", "MIT", "ResNet18", 512, 46),
    _gmberton("CosPlace", "MIT", "ResNet50", 512, 98),
    _gmberton("CosPlace", "MIT", "ResNet50", 2048, 111),
    _gmberton("CosPlace", "MIT", "ResNet101", 512, 174),
    _gmberton("CosPlace", "MIT", "ResNet101", 2048, 187),
    _gmberton("CosPlace", "MIT", "ResNet152", 512, 237),
    _gmberton("EigenPlaces", "MIT", "VGG16", 512, 60),
    _gmberton("EigenPlaces", "MIT", "ResNet18", 512, 46),
    _gmberton("EigenPlaces", "MIT", "ResNet50", 512, 98),
    _gmberton("EigenPlaces", "MIT", "ResNet50", 2048, 111),
    _gmberton("EigenPlaces", "MIT", "ResNet101", 2048, 187),
    HubModel("megaloc", "torch.hub", "gmberton/MegaLoc", 8448, 915, "MIT", "get_trained_model"),
    HubModel("salad", "torch.hub", "serizba/salad", 8448, 352, "GPL-3.0", "dinov2_salad"),
    HubModel(
        "boq-resnet50",
        "torch.hub",
        "amaralibey/bag-of-queries",
        16384,
        180,
        "MIT",
        "get_trained_boq",
        (("backbone_name", "resnet50"), ("output_dim", 16384)),
    ),
)

HUB: dict[str, HubModel] = {model.name: model for model in _MODELS}


def cache_folder() -> Path:
    """Where downloads are kept: ``$KAPPAPLACE_CACHE``, else the user's cache folder."""
    base = os.environ.get("KAPPAPLACE_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kappaplace"


def cache_file(model: HubModel) -> Path:
    """Where the weights of a hub model are kept once they are downloaded."""
    return cache_folder() / "models" / model.where.rsplit("/", 1)[-1]


def cached(model: HubModel) -> bool:
    """Whether a model's weights are here already; torch.hub keeps a cache of its own."""
    return model.kind == "weights" and cache_file(model).exists()


def fetch(model: HubModel) -> Path:
    """The local weights file of a hub model, downloaded if it is not there yet."""
    file = cache_file(model)
    make_folder(file.parent)
    record = file.with_name(file.name + ".sha256")
    if not file.exists():
        _download(model, file)
        digest = sha256_of(file)
        replace_file(record, lambda part: part.write_text(digest + "\n", encoding="ascii"))
    # A download that was killed between file and record is checked from now on, too.
    if not record.exists():
        digest = sha256_of(file)
        replace_file(record, lambda part: part.write_text(digest + "\n", encoding="ascii"))
    elif record.read_text(encoding="ascii").strip() != sha256_of(file):
        raise KappaPlaceError(
            f"The downloaded weights {file} have changed since their first download (checksum differs); "
            "delete the file and its .sha256 to download it again."
        )
    return file


def _download(model: HubModel, file: Path) -> None:
    def copy(part: Path) -> None:
        request = urllib.request.Request(model.where, headers={"User-Agent": "kappaplace"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer, open(part, "wb") as target:
            total = int(answer.headers.get("Content-Length") or 0)
            with track(f"Downloading {model.name}", total or model.size_mb * CHUNK) as bar:
                received = 0
                while chunk := _read(answer):
                    target.write(chunk)
                    received += len(chunk)
                    bar.advance(len(chunk))
        if total and received != total:
            raise URLError(f"the connection broke off after {received} of {total} bytes")

    try:
        replace_file(file, copy)
    except URLError as error:  # HTTP errors and timeouts while connecting are URLErrors, too
        raise KappaPlaceError(
            f"Could not download '{model.name}' from {model.where}: {error.reason}; connect to the network, "
            f"or place the file at {file} yourself."
        ) from None


def _read(answer: Any) -> bytes:
    try:
        return answer.read(CHUNK)
    except OSError as error:  # told apart from a full disk, which `replace_file` reports
        raise URLError(f"the connection broke off ({error})") from None


def load_torch_hub(model: HubModel, layer: str | None = None) -> FrozenEncoder:
    """A model whose own code torch.hub fetches and runs; torch asks before trusting a new repository."""
    try:
        encoder = torch.hub.load(model.where, model.entry, trust_repo="check", **dict(model.options))
    except (URLError, OSError, RuntimeError, EOFError) as error:
        raise KappaPlaceError(
            f"Could not load '{model.name}' through torch.hub from {model.where}: {error}; connect to the "
            "network, and run it once in a terminal to confirm that you trust the repository."
        ) from None
    return FrozenEncoder(encoder, layer=layer)
