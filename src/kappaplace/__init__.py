"""KappaPlace: visual place recognition that reports how confident it is.

Names load on first use, so ``import kappaplace`` stays quick: torch is imported only when it is needed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kappaplace import _names
from kappaplace._names import lazy_exports
from kappaplace.version import package_version

if TYPE_CHECKING:
    from kappaplace import vmf as vmf
    from kappaplace.calibration import Calibration as Calibration
    from kappaplace.calibration import fit_calibration as fit_calibration
    from kappaplace.client import Client as Client
    from kappaplace.data import Neighborhood as Neighborhood
    from kappaplace.data import PlaceImages as PlaceImages
    from kappaplace.data import Preprocessing as Preprocessing
    from kappaplace.errors import KappaPlaceError as KappaPlaceError
    from kappaplace.evaluation import audit as audit
    from kappaplace.evaluation import compare as compare
    from kappaplace.evaluation import evaluate as evaluate
    from kappaplace.maps import Localization as Localization
    from kappaplace.maps import PlaceMap as PlaceMap
    from kappaplace.maps import geotag as geotag
    from kappaplace.maps import pair_probability as pair_probability
    from kappaplace.models import FrozenEncoder as FrozenEncoder
    from kappaplace.models import PlaceModel as PlaceModel
    from kappaplace.models import list_models as list_models
    from kappaplace.models import load_model as load_model
    from kappaplace.models import save_model as save_model
    from kappaplace.retrieval import Evidence as Evidence
    from kappaplace.retrieval import retrieve as retrieve
    from kappaplace.training import train as train
    from kappaplace.types import Embeddings as Embeddings
    from kappaplace.types import Matches as Matches
    from kappaplace.uncertainty import list_scores as list_scores
    from kappaplace.uncertainty import score as score
    from kappaplace_city import SyntheticCity as SyntheticCity

    __version__: str
else:
    __all__, _export = lazy_exports(__name__, __file__)
    __all__ += ["__version__"]

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return package_version()
        if name in __all__:
            return _export(name)
        return _names.old_name(name)

    def __dir__() -> list[str]:
        return sorted(set(globals()) | set(__all__))


sys.meta_path.append(_names.Finder())
