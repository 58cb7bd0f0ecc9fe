"""KappaPlace: visual place recognition that knows how sure it is.

Names below load on first use, so ``import kappaplace`` stays quick: torch is imported only when needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kappaplace import vmf as vmf
    from kappaplace.client import Client as Client
    from kappaplace.data.table import PlaceImages as PlaceImages
    from kappaplace.errors import KappaPlaceError as KappaPlaceError
    from kappaplace.maps import PlaceMap as PlaceMap
    from kappaplace.models.checkpoint import save_model as save_model
    from kappaplace.models.frozen import FrozenEncoder as FrozenEncoder
    from kappaplace.models.loading import load_model as load_model
    from kappaplace.models.place_model import PlaceModel as PlaceModel
    from kappaplace.retrieval.exact import search as search
    from kappaplace.types import Embeddings as Embeddings
    from kappaplace.types import Matches as Matches
    from kappaplace_city import SyntheticCity as SyntheticCity

    __version__: str

_HOMES = {
    "Client": "kappaplace.client",
    "Embeddings": "kappaplace.types",
    "FrozenEncoder": "kappaplace.models.frozen",
    "KappaPlaceError": "kappaplace.errors",
    "Matches": "kappaplace.types",
    "PlaceImages": "kappaplace.data.table",
    "PlaceMap": "kappaplace.maps",
    "PlaceModel": "kappaplace.models.place_model",
    "SyntheticCity": "kappaplace_city",
    "load_model": "kappaplace.models.loading",
    "save_model": "kappaplace.models.checkpoint",
    "search": "kappaplace.retrieval.exact",
    "vmf": "kappaplace.vmf",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from kappaplace.version import package_version

        return package_version()
    if name == "vmf":
        return import_module("kappaplace.vmf")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kappaplace' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
