"""Readers for three foreign weight layouts; only tensors are read (``weights_only``), never code.

* CosPlace's and EigenPlaces' published files: ``backbone.N…``, ``aggregation.1.p``, ``aggregation.3.weight``;
* the KappaPlace authors' release: the same under ``model_state_dict``, with ``var_head.*`` and
  ``classifiers_state_dict``;
* plain torchvision ResNets: ``conv1.weight``, ``layer1.0…``, with or without ``fc``.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import check_dim, load_state
from kappaplace.models.heads import HeadName
from kappaplace.models.place_model import Architecture, PlaceModel

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
