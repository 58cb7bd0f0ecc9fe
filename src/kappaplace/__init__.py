"""KappaPlace: visual place recognition that reports how confident it is.

Names load on first use, so ``import kappaplace`` stays quick: torch is imported only when it is needed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from kappaplace import _moved

if TYPE_CHECKING:
    from kappaplace import vmf as vmf
    from kappaplace.calibration.calibration import Calibration as Calibration
    from kappaplace.calibration.fit import fit_calibration as fit_calibration
    from kappaplace.client import Client as Client
    from kappaplace.data import Neighborhood as Neighborhood
    from kappaplace.data import PlaceImages as PlaceImages
    from kappaplace.data import Preprocessing as Preprocessing
    from kappaplace.errors import KappaPlaceError as KappaPlaceError
    from kappaplace.maps import Localization as Localization
    from kappaplace.maps import PlaceMap as PlaceMap
    from kappaplace.models.checkpoint import load_model as load_model
    from kappaplace.models.checkpoint import save_model as save_model
    from kappaplace.models.frozen import FrozenEncoder as FrozenEncoder
    from kappaplace.models.place_model import PlaceModel as PlaceModel
    from kappaplace.retrieval.evidence import Evidence as Evidence
    from kappaplace.retrieval.retrieve import retrieve as retrieve
    from kappaplace.training.run import train as train
    from kappaplace.types import Embeddings as Embeddings
    from kappaplace.types import Matches as Matches
    from kappaplace_city import SyntheticCity as SyntheticCity

    __version__: str

_EXPORTS = {
    "kappaplace.calibration.calibration": "Calibration",
    "kappaplace.calibration.fit": "fit_calibration",
    "kappaplace.client": "Client",
    "kappaplace.data": "Neighborhood PlaceImages Preprocessing",
    "kappaplace.errors": "KappaPlaceError",
    "kappaplace.maps": "Localization PlaceMap",
    "kappaplace.models.checkpoint": "load_model save_model",
    "kappaplace.models.frozen": "FrozenEncoder",
    "kappaplace.models.place_model": "PlaceModel",
    "kappaplace.retrieval.evidence": "Evidence",
    "kappaplace.retrieval.retrieve": "retrieve",
    "kappaplace.training.run": "train",
    "kappaplace.types": "Embeddings Matches",
    "kappaplace_city": "SyntheticCity",
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names.split()}
__all__ = sorted([*_HOMES, "__version__", "vmf"])
sys.meta_path.append(_moved.Finder())


def __getattr__(name: str) -> object:
    if name == "__version__":
        from kappaplace.version import package_version

        return package_version()
    if name == "vmf":
        return import_module("kappaplace.vmf")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    return _moved.old_name(name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
