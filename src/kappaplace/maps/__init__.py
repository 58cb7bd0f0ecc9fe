"""Maps: build a map of images, and localize queries in it.

Most users only need `PlaceMap`; see docs/maps.md. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kappaplace.maps.answer import Localization as Localization
    from kappaplace.maps.answer import Match as Match
    from kappaplace.maps.answer import Pose as Pose
    from kappaplace.maps.options import AddOptions as AddOptions
    from kappaplace.maps.options import BuildOptions as BuildOptions
    from kappaplace.maps.options import FitOptions as FitOptions
    from kappaplace.maps.options import LabelOptions as LabelOptions
    from kappaplace.maps.options import LocalizeOptions as LocalizeOptions
    from kappaplace.maps.place_map import PlaceMap as PlaceMap
    from kappaplace.maps.tune.calibrate import calibrate_map as calibrate_map
    from kappaplace.maps.tune.fit import estimate_fit as estimate_fit
    from kappaplace.maps.tune.fit import fit_map as fit_map
    from kappaplace.maps.tune.label import calibrate_map_on_labels as calibrate_map_on_labels
    from kappaplace.maps.tune.monitor import MapMonitor as MapMonitor
    from kappaplace.maps.tune.self_calibrate import self_calibrate_map as self_calibrate_map

_EXPORTS = {
    "answer": "Localization Match Pose",
    "options": "AddOptions BuildOptions FitOptions LabelOptions LocalizeOptions",
    "place_map": "PlaceMap",
    "tune.calibrate": "calibrate_map",
    "tune.fit": "estimate_fit fit_map",
    "tune.label": "calibrate_map_on_labels",
    "tune.monitor": "MapMonitor",
    "tune.self_calibrate": "self_calibrate_map",
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
