"""Public names, loaded on first use. Names of the previous version work for one more release."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import ParamSpec, TypeVar


def lazy_exports(package: str, file: str) -> tuple[list[str], Callable[[str], object]]:
    """Read the exports of a package from the imports in the ``if TYPE_CHECKING:`` block of its ``__init__``.

    Every name is therefore listed only once. Type checkers follow these imports; at run time, each import
    happens when its name is first used.

    Args:
        package: Name of the package.
        file: Path of the ``__init__.py`` of the package.

    Returns:
        ``__all__`` and ``__getattr__`` of the package.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    homes = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def export(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        if module == package:  # a module of the package
            return import_module(f"{package}.{original}")
        return getattr(import_module(module), original)

    return sorted(homes), export


P = ParamSpec("P")
R = TypeVar("R")

_TARGETS = {
    "kappaplace.calibration": "calibration.model",
    "kappaplace.calibration.sources": "slam.calibrations",
    "kappaplace.data.degradation": "data.degrade",
    "kappaplace.data.table": "data.place_images",
    "kappaplace.evaluation.inputs": "evaluation.sources",
    "kappaplace.maps.sequence": "slam.motion slam.sequence",
    "kappaplace.maps.tune.fit": "maps.fit",
    "kappaplace.maps.tune.monitor": "maps.monitor",
    "kappaplace.metrics": "metrics.ranking metrics.smooth",
    "kappaplace.models.backbones.timm": "models.torchvision_compat",
    "kappaplace.models.checkpoint": "models.loading",
    "kappaplace.models.embedding.store": "evaluation.cache",
    "kappaplace.models.export": "export export.run",
    "kappaplace.models.fast": "models.optimize",
    "kappaplace.models.published": "models.foreign",
    "kappaplace.reports": "maps.fit_report",
    "kappaplace.retrieval": "retrieval.engines slam.cells",
    "kappaplace.retrieval.evidence": "uncertainty.evidence",
    "kappaplace.training.batches": "data.sampler",
    "kappaplace.training.images": "training.training_set",
    "kappaplace.training.places": "data.classes",
    "kappaplace.uncertainty": "uncertainty.registry",
    "kappaplace.uncertainty.geometric": "uncertainty.local_features",
    "kappaplace.uncertainty.scores": "uncertainty.sue uncertainty.z_score",
    "kappaplace_city": "data.synthetic_city",
    "kappaplace_city.drives": "slam.city_descriptors slam.city_drive",
}
MODULES = {f"kappaplace.{old}": new for new, names in _TARGETS.items() for old in names.split()}
NAMES = {
    "EmbeddingCache": "EmbeddingStore",
    "KINDS": "DEGRADATIONS",
    "Looks": "AppearanceModel",
    "Neighbourhood": "Neighborhood",
}


class Finder:
    """Import hook for old module names: the import of one returns an empty module that forwards to the new
    one."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create the module in its default way."""

    def exec_module(self, module: ModuleType) -> None:
        new = MODULES[module.__name__]
        warnings.warn(f"{module.__name__} has moved, use {new}.", DeprecationWarning, stacklevel=2)
        module.__getattr__ = partial(_attribute, new)  # type: ignore[method-assign]


def _attribute(new: str, name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module(new), NAMES.get(name, name))


def old_name(name: str) -> object:
    """Return the object that `kappaplace` exported under an old name; otherwise raise `AttributeError`."""
    new = {"Neighbourhood": "kappaplace.data", "search": "kappaplace.retrieval"}.get(name)
    if new is None:
        raise AttributeError(f"module 'kappaplace' has no attribute '{name}'")
    text = f"kappaplace.{name} has moved, use {new}.{NAMES.get(name, name)}."
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return _attribute(new, name)


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept old keywords (``old="new"``) of a function for one release, with a warning."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> R:
            for old in names.keys() & keywords.keys():
                warnings.warn(f"{old}= is now {names[old]}=.", DeprecationWarning, stacklevel=2)
                keywords[names[old]] = keywords.pop(old)
            return function(*args, **keywords)

        return call

    return decorate
