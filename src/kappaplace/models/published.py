"""Published models: downloads by name, their cache, and readers of weights files of other projects.

The checksum of a file is recorded at its first download, which is trusted. It is verified at every use, so a
damaged or replaced file is detected.

Weights files have one of four layouts. Only tensors and numbers are read (``weights_only``), never code:

* files of CosPlace and EigenPlaces: ``backbone.N…``, ``aggregation.1.p``, ``aggregation.3.weight``;
* the release of the KappaPlace authors: the same with ``var_head.*``, and with ``classifiers_state_dict``;
* STUN's teacher and student: ``backbone.N…``, ``backbone.8.p``, ``var_head.0.weight``;
* plain torchvision ResNets: ``conv1.weight``, ``layer1.0…``, with or without ``fc``.

Each can be a state dict, or a training checkpoint with one under ``model_state_dict`` or ``state_dict``.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, reason, replace_file, sha256_of, write_file
from kappaplace.models.aggregation import MixVPR
from kappaplace.models.backbones import timm_encoder
from kappaplace.models.encoder import check_dim, load_state, state_digest
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.heads import HeadName
from kappaplace.models.network import Architecture
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.registry import HubModel
from kappaplace.progress import track

TIMEOUT_SECONDS = 30
CHUNK = 1 << 20
Result = TypeVar("Result")
State = dict[str, Tensor]


def cache_folder() -> Path:
    """Return the folder of downloads: ``$KAPPAPLACE_CACHE``, or the user's cache folder."""
    base = os.environ.get("KAPPAPLACE_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kappaplace"


def cache_file(model: HubModel) -> Path:
    """Return the file of the downloaded weights of a hub model."""
    return cache_folder() / "models" / model.file_name


def cached(model: HubModel) -> bool:
    """Return whether the weights of a model are downloaded; torch.hub and timm have their own caches."""
    return model.kind in ("weights", "file") and cache_file(model).exists()


def fetch(model: HubModel) -> Path:
    """Return the weights file of a hub model; download it if it does not exist."""
    file = cache_file(model)
    make_folder(file.parent)
    if not file.exists():
        _download(model, file)
    check_record(file.with_name(file.name + ".sha256"), sha256_of(file), f"The downloaded weights {file}")
    return file


def check_record(record: Path, digest: str, subject: str) -> None:
    """Record a checksum on first use and verify it on every later use.

    Args:
        record: File of the checksum.
        digest: The current checksum.
        subject: Files that the checksum belongs to, as the plural subject of a message.
    """
    if not record.exists():
        write_file(record, digest + "\n")
    elif record.read_text(encoding="ascii").strip() != digest:
        raise KappaPlaceError(
            f"{subject} have changed since their first download (checksum differs). If you trust the new "
            f"weights, delete {record} and the weights, and load them again."
        )


def _download(model: HubModel, file: Path) -> None:
    def copy(part: Path) -> None:
        request = urllib.request.Request(model.location, headers={"User-Agent": "kappaplace"})
        with (
            _open(request) as response,
            open(part, "wb") as target,
        ):
            total = int(response.headers.get("Content-Length") or 0)
            with track(f"Downloading {model.name}", total or model.size_mb * CHUNK) as bar:
                while chunk := _network(lambda: response.read(CHUNK)):
                    target.write(chunk)
                    bar.advance(len(chunk))
        if total and bar.done != total:
            raise URLError(f"the connection was lost after {bar.done} of {total} bytes")

    try:
        replace_file(file, copy)
    except URLError as error:
        raise KappaPlaceError(
            f"Could not download {model.location} ({error.reason}). Connect to the network, or save the file "
            f"as {file}."
        ) from None


def _open(request: urllib.request.Request) -> HTTPResponse:
    return _network(lambda: urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS))


def _network(call: Callable[[], Result]) -> Result:
    """Turn all failures of the network into URLError, to distinguish them from failures of the disk."""
    try:
        return call()
    except URLError:
        raise
    except (OSError, HTTPException) as error:
        raise URLError(f"the connection was lost ({type(error).__name__}: {error})") from None


def load_published(model: HubModel, *, dim: int | None = None) -> PlaceModel | FrozenEncoder:
    """Load a published model.

    Args:
        model: The published model.
        dim: Expected dimension of the descriptor. Default: any.

    Returns:
        The model in evaluation mode. The kappa head of a `FrozenEncoder` is untrained.

    Raises:
        KappaPlaceError: If it cannot be downloaded, or its files have changed since the first download.
    """
    check_dim(model.dim, dim, model.name)
    if model.kind == "weights":
        return load_foreign(fetch(model))
    if model.kind == "timm":
        encoder = timm_encoder(model.name, model.location)
    elif model.kind == "file":
        encoder = _mix_vpr(_saved_weights(model), model.name)
    else:
        encoder = _from_torch_hub(model)
    record = cache_folder() / "models" / f"{model.name}.sha256"
    make_folder(record.parent)
    check_record(record, state_digest(encoder.state_dict()), f"The weights of '{model.name}'")
    if model.call:
        encoder.forward = partial(encoder.forward, **dict(model.call))
    # The authors may have renamed their layers: descriptors work without patches.
    has_layer = model.patch_layer in dict(encoder.named_modules())
    return FrozenEncoder(
        encoder,
        preprocessing=model.preprocessing,
        prefix_tokens=model.prefix_tokens,
        name=model.name,
        patch_layer=model.patch_layer if has_layer else None,
        cross_image=model.cross_image,
    ).eval()


def _from_torch_hub(model: HubModel) -> nn.Module:
    """Load an encoder whose code torch.hub downloads and runs; torch requests confirmation for a new one."""
    weights = _saved_weights(model) if model.weights else None  # before anything is downloaded
    _forget_other_repositories()
    try:
        encoder = torch.hub.load(model.location, model.entry, trust_repo="check", **dict(model.options))
    except ImportError as error:
        raise KappaPlaceError(
            f"The code of {model.location} needs a package that is missing ({reason(error)}). Install it."
        ) from None
    except Exception as error:  # the code of other projects may raise anything
        raise _not_loaded(model, error) from None
    if isinstance(encoder, nn.DataParallel):  # it expects its weights on the first GPU
        encoder = encoder.module
    if weights is not None:
        load_state(encoder, weights, str(cache_file(model)))
    return encoder


def _forget_other_repositories() -> None:
    """Forget the modules of repositories loaded before: different ones have modules of the same name."""
    folder = os.path.realpath(torch.hub.get_dir())
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and os.path.realpath(file).startswith(folder + os.sep):
            del sys.modules[name]


def _not_loaded(model: HubModel, error: Exception) -> KappaPlaceError:
    """Return the error for a model that torch.hub cannot load, with its remedy."""
    cause = reason(error)
    if isinstance(error, EOFError) or "ntrusted" in cause:
        cause = "the repository is not confirmed yet"
        advice = "Load it once in a terminal, and confirm there that you trust the repository."
    elif isinstance(error, HTTPError):
        advice = "Try again later."
    elif isinstance(error, OSError) or "internet connection" in cause:
        cause = f"no connection ({cause})" if isinstance(error, OSError) else "no connection"
        advice = (
            "Connect to the network for the first use, or copy the folder "
            f"{torch.hub.get_dir()} from a machine that has loaded the model."
        )
    else:
        advice = "Check that the installed packages fit this code."
    return KappaPlaceError(
        f"Could not load '{model.name}' through torch.hub from {model.location}: {cause}. {advice}"
    )


def _mix_vpr(state: State, source: str) -> MixVPR:
    """Return MixVPR with the weights of its authors, who number the layers of a mixer."""
    own = {key.replace("backbone.model.", "backbone."): value for key, value in state.items()}
    own = {re.sub(r"\.mix\.(\d+)\.mix\.", r".mixers.\1.", key): value for key, value in own.items()}
    encoder = MixVPR()
    load_state(encoder, own, source)
    return encoder


def _saved_weights(model: HubModel) -> State:
    """Read the weights that the user has saved, because no program can download them."""
    file = cache_file(model)
    if not file.is_file():
        raise KappaPlaceError(
            f"The weights of '{model.name}' cannot be downloaded by a program. Download them from "
            f"{model.weights} in a browser, and save the file as {file}."
        )
    return read_state(file)


# Position of each child of a torchvision ResNet in CosPlace's Sequential.
_RESNET_CHILDREN = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
_BLOCKS_IN_LAYER3 = {6: "resnet50", 23: "resnet101", 36: "resnet152"}
_EFFICIENTNETS = {1408: 2, 1536: 3, 1792: 4, 2048: 5, 2304: 6, 2560: 7}  # number by channels
_WRAPPERS = ("model_state_dict", "state_dict", "model")
_PREFIX = re.compile(r"^(?:(?:module|model|_orig_mod)\.)+")  # of several processes, wrappers, torch.compile
# NumPy numbers, which training checkpoints of CosPlace contain; the first name is that of NumPy 1.
_NUMBERS: list[Any] = [
    *((np.float64().__reduce__()[0], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    np.dtype,
    *{type(np.dtype(code)) for code in "?bhilqBHILQefd"},
]


def read_tensors(file: str | Path) -> Any:
    """Read a ``.safetensors`` or torch file; raise an error unless it has only tensors and containers."""
    file = Path(file)
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        with torch.serialization.safe_globals(_NUMBERS):
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise KappaPlaceError(f"No weights file at {file}. Check the path.") from None
    except pickle.UnpicklingError:
        raise KappaPlaceError(
            f"Cannot load {file}: it is damaged or contains more than tensors, which is not safe. Ask its "
            "author for a plain state dict or a safetensors file."
        ) from None
    except Exception as error:  # the unpickler raises many classes for invalid files
        raise KappaPlaceError(f"{file} cannot be read ({reason(error)}). Download it again.") from None


def load_foreign(
    file: str | Path, *, dim: int | None = None, backbone: str | None = None, head: str | None = None
) -> PlaceModel:
    """Load a weights file of another project; its keys determine the layout.

    Args:
        file: The file.
        dim: Expected dimension of the descriptor. For a torchvision ResNet, which has no aggregation, the
            dimension of a new one (default: 512).
        backbone: Name of the backbone. Default: detected; variants with other strides have the same weights.
        head: Name of the head, if the keys allow several; ``none`` omits it. Default: detected.

    Returns:
        The model in evaluation mode.

    Raises:
        KappaPlaceError: If the layout is unknown, or the keys allow several heads and ``head`` is missing.
    """
    state = read_state(file)
    if "aggregation.3.weight" in state:
        return _from_cosplace(state, str(file), dim, backbone, head)
    if "backbone.8.p" in state:
        return _from_stun(state, str(file), dim, head)
    if "conv1.weight" in state and "layer1.0.conv1.weight" in state:
        return _from_torchvision(state, str(file), dim or 512, backbone)
    raise KappaPlaceError(
        f"The layout of {file} is unknown (first key: '{next(iter(state), 'none')}'). Use a file of "
        "CosPlace, STUN or the KappaPlace authors or a torchvision ResNet, or wrap the model with "
        "kappaplace.FrozenEncoder."
    )


def read_state(file: str | Path) -> State:
    """Read the tensors of a weights file, without the prefixes of wrappers around the model."""
    content = read_tensors(file)
    state: State = content
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            state = content[wrapper]
            break
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise KappaPlaceError(f"{file} must contain a state dict of tensors. Save only model.state_dict().")
    return {_PREFIX.sub("", key): value for key, value in state.items()}


def read_prototypes(file: str | Path) -> list[Tensor]:
    """Read the class prototypes of the authors' release: one C×d matrix per group, at unit length."""
    content = read_tensors(file)
    groups = content.get("classifiers_state_dict") if isinstance(content, dict) else None
    if not groups:
        raise KappaPlaceError(f"{file} contains no class prototypes. Pass a training checkpoint.")
    parts = groups.values() if isinstance(groups, dict) else groups
    matrices = [part if isinstance(part, Tensor) else _tensor(part, "weight", str(file)) for part in parts]
    return [torch.nn.functional.normalize(matrix.float(), dim=1) for matrix in matrices]


def _from_cosplace(
    state: State, source: str, dim: int | None, name: str | None, head_name: str | None
) -> PlaceModel:
    own_dim = state["aggregation.3.weight"].shape[0]
    check_dim(own_dim, dim, source)
    backbone = _sequential_backbone(state)
    head, head_state = _head(state, own_dim, source, head_name)
    own = {f"backbone.{key}": value for key, value in backbone.items()}
    own["aggregation.gem.p"] = _tensor(state, "aggregation.1.p", source).reshape(1)
    own["aggregation.project.weight"] = state["aggregation.3.weight"]
    own["aggregation.project.bias"] = _tensor(state, "aggregation.3.bias", source)
    # CosPlace embeds images at their native size.
    model = PlaceModel(Architecture(name or _name_of(backbone, source), own_dim, head), Preprocessing())
    load_state(model, {**own, **head_state}, source)
    return model.eval()


def _from_stun(state: State, source: str, dim: int | None, head: str | None) -> PlaceModel:
    """Load STUN's teacher or student: GeM of a ResNet-50 without a projection, for images of 200 × 200."""
    check_dim(2048, dim, source)
    own = {"aggregation.gem.p": state["backbone.8.p"].reshape(1)}
    backbone = _sequential_backbone({key: value for key, value in state.items() if key != "backbone.8.p"})
    name, head_state = _head(state, 2048, source, head or "stun")
    model = PlaceModel(Architecture("resnet50_gem", 2048, name), Preprocessing(200, "exact"))
    own |= {f"backbone.{key}": value for key, value in backbone.items()}
    load_state(model, {**own, **head_state}, source)
    return model.eval()


def _sequential_backbone(state: State) -> State:
    """Restore the names of a torchvision model's children, which CosPlace numbers."""
    numbered = {key[len("backbone.") :]: value for key, value in state.items() if key.startswith("backbone.")}
    if "0.bias" in numbered:  # VGG's convolutions have biases, a ResNet's stem has none
        return {f"features.{key}": value for key, value in numbered.items()}
    if "0.0.0.weight" in numbered:  # of an EfficientNet, the only child is "features"
        return {f"features.{key[2:]}": value for key, value in numbered.items()}
    renamed: State = {}
    for key, value in numbered.items():
        child, _, rest = key.partition(".")
        renamed[f"{_RESNET_CHILDREN.get(child, child)}.{rest}"] = value
    return renamed


def _name_of(backbone: State, source: str) -> str:
    if "features.0.0.weight" in backbone:
        channels = len(_tensor(backbone, "features.8.0.weight", source))
        small = 1 if "features.1.1.block.0.0.weight" in backbone else 0  # B0 and B1 have the same channels
        return f"torchvision_efficientnet_b{_EFFICIENTNETS.get(channels, small)}"
    if any(key.startswith("features.") for key in backbone):
        return "vgg16"
    if "layer1.0.conv3.weight" not in backbone:
        return "resnet18"
    blocks = 1 + max(int(key.split(".")[1]) for key in backbone if key.startswith("layer3."))
    try:
        return _BLOCKS_IN_LAYER3[blocks]
    except KeyError:
        raise KappaPlaceError(f"{source} contains a ResNet of unknown depth. Pass its backbone.") from None


# Heads of the release by whether there is an aggregation, and whether Linear(d, 1) or Linear(d, d) follows
# (1, 2; 0: neither). Where there are two, keys and shapes are the same, and only loss or activation differ.
_HEADS: dict[tuple[bool, int], tuple[HeadName, ...]] = {
    (True, 0): ("variance-each-aggregation",),
    (True, 1): ("mirrored", "variance"),
    (True, 2): ("variance-each",),
    (False, 1): ("linear", "variance-linear"),
    (False, 2): ("stun", "stun-s", "variance-each-linear"),
}


def _head(state: State, dim: int, source: str, name: str | None) -> tuple[HeadName, State]:
    """Detect a head by the shapes under ``var_head``; its numbering differs between versions."""
    part = {key: value for key, value in state.items() if key.startswith("var_head.")}
    if not part or name == "none":
        return "none", {}
    weights = [key for key, value in part.items() if value.ndim == 2]
    shapes = [tuple(part[key].shape) for key in weights]
    exponents = [key for key in part if key.endswith(".p")]
    rest: tuple[tuple[int, ...], ...] = tuple(shapes[bool(exponents) :])
    layers: tuple[tuple[tuple[int, ...], ...], ...] = ((), ((1, dim),), ((dim, dim),))
    names = _HEADS.get((bool(exponents), layers.index(rest))) if rest in layers else None
    # GeM comes second in an aggregation; in the release's "mlp", which is not read, it comes first.
    if names is None or (exponents and not (shapes[0][0] == dim and exponents[0].endswith(".1.p"))):
        raise KappaPlaceError(
            f"{source} has an unknown head with weights {shapes}. Pass head='none' to omit it."
        )
    own = _linear(part, weights[-1], "head.last", source) if rest else {}
    if exponents:
        own["head.aggregation.gem.p"] = part[exponents[0]].reshape(1)
        own |= _linear(part, weights[0], "head.aggregation.project", source)
    return _named(names, name, source), own


def _named(names: Sequence[str], name: str | None, source: str) -> HeadName:
    """Return the head of a file out of those that its keys allow."""
    if name is None and len(names) == 1:
        return names[0]  # type: ignore[return-value]
    if name not in names:
        raise KappaPlaceError(
            f"The keys of {source} allow the heads {', '.join(map(repr, names))}, got {name!r}. Pass the "
            "head of its training: load_model(file, head=…), or model.start_head for training."
        )
    return name  # type: ignore[return-value]


def _linear(part: State, weight: str, target: str, source: str) -> State:
    bias = _tensor(part, weight.removesuffix("weight") + "bias", source)
    return {f"{target}.weight": part[weight], f"{target}.bias": bias}


def _tensor(state: State, key: str, source: str) -> Tensor:
    if key not in state:
        raise KappaPlaceError(f"{source} is incomplete ('{key}' is missing). Download it again.")
    return state[key]


def _from_torchvision(state: State, source: str, dim: int, name: str | None) -> PlaceModel:
    backbone = {key: value for key, value in state.items() if not key.startswith("fc.")}
    model = PlaceModel(Architecture(name or _name_of(backbone, source), dim, "mirrored"))
    load_state(model.backbone, backbone, source)
    return model.eval()
