"""Trained models that can be fetched by name, and the cache they land in.

The checksum of a file is recorded when it is first downloaded and checked every time it is used, so a
damaged or exchanged file is noticed; what was downloaded first is trusted.

Readers for three foreign weight layouts; only tensors are read (``weights_only``), never code.

* CosPlace's and EigenPlaces' published files: ``backbone.N…``, ``aggregation.1.p``, ``aggregation.3.weight``;
* the KappaPlace authors' release: the same under ``model_state_dict``, with ``var_head.*`` and
  ``classifiers_state_dict``;
* plain torchvision ResNets: ``conv1.weight``, ``layer1.0…``, with or without ``fc``.
"""

from __future__ import annotations

import os
import pickle
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError

import torch
from safetensors.torch import load_file
from torch import Tensor

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file, sha256_of
from kappaplace.models.encoder import check_dim, load_state, state_digest
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.heads import HeadName
from kappaplace.models.network import Architecture
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.shipped import SHIPPED
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


def list_models() -> list[str]:
    """List the names that `load_model` accepts.

    Returns:
        The included models first, then the published ones that `load_model` downloads.

    >>> list_models()[0]
    'kappaplace-lite0'
    """
    return [*SHIPPED, *HUB]


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


State = dict[str, Tensor]

# Position of each child of a torchvision ResNet in the Sequential that CosPlace makes of it.
_RESNET_CHILDREN = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
_BLOCKS_IN_LAYER3 = {6: "resnet50", 23: "resnet101", 36: "resnet152"}


def read_tensors(file: str | Path) -> Any:
    """The content of a ``.safetensors`` or torch file, refusing anything but tensors and containers."""
    file = Path(file)
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise KappaPlaceError(f"No weights file at {file}; check the path.") from None
    except pickle.UnpicklingError:
        raise KappaPlaceError(
            f"Refused to load {file}: it holds more than tensors, or is damaged; ask its author for a "
            "plain state dict or a safetensors file."
        ) from None
    except Exception as error:  # the unpickler meets junk with many kinds of error
        reason = str(error).partition("\n")[0] or "it is empty or damaged"
        raise KappaPlaceError(f"The weights file {file} cannot be read: {reason}.") from None


def load_foreign(file: str | Path, *, dim: int | None = None, backbone: str | None = None) -> PlaceModel:
    """A PlaceModel from a foreign weights file, its layout recognised by its keys.

    ``backbone`` overrides the recognised one (variants that differ in strides have the same weights).

    A torchvision ResNet has no aggregation: the model gets an untrained one of ``dim`` (default 512).
    """
    content = read_tensors(file)
    release = isinstance(content, dict) and "model_state_dict" in content
    state: State = content["model_state_dict"] if release else content
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise KappaPlaceError(f"The file {file} is not a state dict of tensors; its layout is not known.")
    state = {re.sub(r"^module\.", "", key): value for key, value in state.items()}
    if "aggregation.3.weight" in state:
        return _from_cosplace(state, str(file), dim, backbone)
    if "conv1.weight" in state and "layer1.0.conv1.weight" in state:
        return _from_torchvision(state, str(file), dim or 512, backbone)
    raise KappaPlaceError(
        f"The layout of {file} is not known (first key: '{next(iter(state), 'none')}'); known are "
        "CosPlace's, the KappaPlace authors' and torchvision's ResNets. Other models are wrapped "
        "with kappaplace.FrozenEncoder."
    )


def read_prototypes(file: str | Path) -> list[Tensor]:
    """The class prototypes of the authors' release: one C×d matrix a group, at unit length."""
    content = read_tensors(file)
    groups = content.get("classifiers_state_dict") if isinstance(content, dict) else None
    if not groups:
        raise KappaPlaceError(f"The file {file} holds no class prototypes ('classifiers_state_dict').")
    parts = groups.values() if isinstance(groups, dict) else groups
    matrices = [part if isinstance(part, Tensor) else _tensor(part, "weight", str(file)) for part in parts]
    return [torch.nn.functional.normalize(matrix.float(), dim=1) for matrix in matrices]


def _from_cosplace(state: State, where: str, dim: int | None, name: str | None) -> PlaceModel:
    found = state["aggregation.3.weight"].shape[0]
    check_dim(found, dim, where)
    backbone = _sequential_backbone(state)
    head, head_state = _head(state, found, where)
    own = {f"backbone.{key}": value for key, value in backbone.items()}
    own["aggregation.gem.p"] = _tensor(state, "aggregation.1.p", where).reshape(1)
    own["aggregation.project.weight"] = state["aggregation.3.weight"]
    own["aggregation.project.bias"] = _tensor(state, "aggregation.3.bias", where)
    model = PlaceModel(
        Architecture(name or _name_of(backbone, where), found, head),
        Preprocessing(),  # CosPlace embeds images at their native size
    )
    load_state(model, {**own, **head_state}, where)
    return model.eval()


def _sequential_backbone(state: State) -> State:
    """Undo CosPlace's numbering of a torchvision model's children."""
    numbered = {key[len("backbone.") :]: value for key, value in state.items() if key.startswith("backbone.")}
    if "0.bias" in numbered:  # VGG's convolutions have biases, a ResNet's stem has none
        return {f"features.{key}": value for key, value in numbered.items()}
    renamed: State = {}
    for key, value in numbered.items():
        child, _, rest = key.partition(".")
        renamed[f"{_RESNET_CHILDREN.get(child, child)}.{rest}"] = value
    return renamed


def _name_of(backbone: State, where: str) -> str:
    if any(key.startswith("features.") for key in backbone):
        return "vgg16"
    if "layer1.0.conv3.weight" not in backbone:
        return "resnet18"
    blocks = 1 + max(int(key.split(".")[1]) for key in backbone if key.startswith("layer3."))
    try:
        return _BLOCKS_IN_LAYER3[blocks]
    except KeyError:
        raise KappaPlaceError(f"The checkpoint {where} holds a ResNet of unknown depth.") from None


def _head(state: State, dim: int, where: str) -> tuple[HeadName, State]:
    """Recognise a head by the shapes under ``var_head``; its numbering differs between versions."""
    part = {key: value for key, value in state.items() if key.startswith("var_head.")}
    if not part:
        return "none", {}
    weights = [key for key, value in part.items() if value.ndim == 2]
    shapes = [tuple(part[key].shape) for key in weights]
    if shapes == [(1, dim)]:
        return "linear", _linear(part, weights[0], "head.last", where)
    if shapes == [(dim, dim)]:
        return "stun", _linear(part, weights[0], "head.last", where)
    exponents = [key for key in part if key.endswith(".p")]
    if len(shapes) == 2 and shapes[1] == (1, dim) and shapes[0][0] == dim and len(exponents) == 1:
        return "mirrored", {
            "head.aggregation.gem.p": part[exponents[0]].reshape(1),
            **_linear(part, weights[0], "head.aggregation.project", where),
            **_linear(part, weights[1], "head.last", where),
        }
    raise KappaPlaceError(f"The checkpoint {where} has an uncertainty head of unknown form: {shapes}.")


def _linear(part: State, weight: str, target: str, where: str) -> State:
    bias = _tensor(part, weight.removesuffix("weight") + "bias", where)
    return {f"{target}.weight": part[weight], f"{target}.bias": bias}


def _tensor(state: State, key: str, where: str) -> Tensor:
    if key not in state:
        raise KappaPlaceError(f"The checkpoint {where} is incomplete: it has no '{key}'.")
    return state[key]


def _from_torchvision(state: State, where: str, dim: int, name: str | None) -> PlaceModel:
    backbone = {key: value for key, value in state.items() if not key.startswith("fc.")}
    model = PlaceModel(Architecture(name or _name_of(backbone, where), dim, "mirrored"))
    load_state(model.backbone, backbone, where)
    return model.eval()
