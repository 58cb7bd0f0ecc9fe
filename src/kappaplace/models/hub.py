"""Trained models that can be fetched by name, and the cache they land in.

The checksum of a file is recorded when it is first downloaded and checked every time it is used, so a
damaged or exchanged file is noticed; what was downloaded first is trusted.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError

import torch

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.models.digest import sha256_of, state_digest
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
    preprocessing: Preprocessing | None = None
    """What the authors feed it; None: images at their native size."""


def _gmberton(project: str, licence: str, backbone: str, dim: int, size_mb: int) -> HubModel:
    url = (
        f"https://github.com/gmberton/{project}/releases/download/v1.0/{backbone}_{dim}_{project.lower()}.pth"
    )
    return HubModel(f"{project.lower()}-{backbone.lower()}-{dim}", "weights", url, dim, size_mb, licence)


_DINOV2 = Preprocessing(322, "exact", multiple=14)  # transformers take whole patches

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
    HubModel("megaloc", "torch.hub", "gmberton/MegaLoc", 8448, 915, "MIT", "get_trained_model", (), _DINOV2),
    HubModel("salad", "torch.hub", "serizba/salad", 8448, 352, "GPL-3.0", "dinov2_salad", (), _DINOV2),
    HubModel(
        "boq-resnet50",
        "torch.hub",
        "amaralibey/bag-of-queries",
        16384,
        180,
        "MIT",
        "get_trained_boq",
        (("backbone_name", "resnet50"), ("output_dim", 16384)),
        Preprocessing(384, "exact", interpolation="bicubic"),
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
    if not file.exists():
        _download(model, file)
    check_record(file.with_name(file.name + ".sha256"), sha256_of(file), f"The downloaded weights {file}")
    return file


def check_record(record: Path, digest: str, what: str) -> None:
    """Write a checksum down the first time, compare with it every other time."""
    if not record.exists():
        replace_file(record, lambda part: part.write_text(digest + "\n", encoding="ascii"))
    elif record.read_text(encoding="ascii").strip() != digest:
        raise KappaPlaceError(
            f"{what} have changed since their first download (checksum differs); if you trust the new ones, "
            f"delete {record} and what it belongs to, and load them again."
        )


def _download(model: HubModel, file: Path) -> None:
    def copy(part: Path) -> None:
        request = urllib.request.Request(model.where, headers={"User-Agent": "kappaplace"})
        with (
            _network(urllib.request.urlopen, request, timeout=TIMEOUT_SECONDS) as answer,
            open(part, "wb") as target,
        ):
            total = int(answer.headers.get("Content-Length") or 0)
            with track(f"Downloading {model.name}", total or model.size_mb * CHUNK) as bar:
                while chunk := _network(answer.read, CHUNK):
                    target.write(chunk)
                    bar.advance(len(chunk))
        if total and bar.done != total:
            raise URLError(f"the connection broke off after {bar.done} of {total} bytes")

    try:
        replace_file(file, copy)
    except URLError as error:
        raise KappaPlaceError(
            f"Could not download '{model.name}' from {model.where}: {error.reason}; connect to the network, "
            f"or place the file at {file} yourself."
        ) from None


def _network(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Every failure of the network as a URLError, so that it is told apart from a failure of the disk."""
    try:
        return call(*arguments, **options)
    except URLError:
        raise
    except (OSError, HTTPException) as error:
        raise URLError(f"the connection broke off ({type(error).__name__}: {error})") from None


def load_torch_hub(model: HubModel, layer: str | None = None) -> FrozenEncoder:
    """A model whose own code torch.hub fetches and runs; torch asks before trusting a new repository."""
    try:
        encoder = torch.hub.load(model.where, model.entry, trust_repo="check", **dict(model.options))
    except ImportError as error:
        raise KappaPlaceError(
            f"The code of '{model.name}' ({model.where}) needs a package that is not installed: {error}."
        ) from None
    except Exception as error:  # foreign code may raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise KappaPlaceError(
            f"Could not load '{model.name}' through torch.hub from {model.where}: {reason}; connect to the "
            "network, and confirm in a terminal that you trust the repository."
        ) from None
    record = cache_folder() / "models" / f"{model.name}.sha256"
    make_folder(record.parent)
    check_record(record, state_digest(encoder.state_dict()), f"The weights of '{model.name}'")
    return FrozenEncoder(encoder, layer=layer, preprocessing=model.preprocessing, name=model.name)
