"""Public names are those of the design, and the paths that earlier documentation named still import."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import kappaplace
from kappaplace import _names
from kappaplace.retrieval import MatrixReferences, Queries
from kappaplace.uncertainty import match_score

PUBLIC = """
    load_model list_models save_model PlaceModel FrozenEncoder PlaceImages Neighborhood Preprocessing
    Embeddings Matches Evidence retrieve score list_scores Calibration fit_calibration PlaceMap Localization
    geotag pair_probability train evaluate compare audit vmf SyntheticCity Client KappaPlaceError __version__
"""
DOCUMENTED = {
    "calibration.calibrators": "",
    "calibration.decision": "Decision",
    "calibration.expected": "",
    "calibration.model": "fit_calibration",
    "calibration.risk": "",
    "data.augment": "CosPlaceAugmentation",
    "data.classes": "assign_classes",
    "data.degrade": "KINDS degrade random_degradation",
    "data.images": "Preprocessing decode",
    "data.loader": "ImageLoader",
    "data.place_images": "PlaceImages",
    "data.resample": "",
    "data.sampler": "ClassSampler PlaceBatchSampler",
    "data.synthetic_city": "SyntheticCity",
    "evaluation.cache": "EmbeddingCache",
    "evaluation.measuring": "measure_set",
    "evaluation.scoring": "score_set",
    "evaluation.sources": "from_table",
    "export.run": "export_model",
    "maps.fit": "FitOptions",
    "maps.fit_report": "write_fit_report",
    "maps.monitor": "MapMonitor",
    "maps.place_map": "PlaceMap",
    "metrics.bootstrap": "bootstrap",
    "metrics.calibration": "ece_surface",
    "metrics.probability": "brier",
    "metrics.ranking": "auroc",
    "metrics.retrieval": "recall_at",
    "metrics.selective": "aurc",
    "metrics.smooth": "smooth_ece",
    "models.checkpoint": "save_model",
    "models.exported": "ExportedModel",
    "models.foreign": "read_prototypes",
    "models.frozen": "FrozenEncoder",
    "models.loading": "load_model",
    "models.optimize": "OptimizedModel",
    "models.place_model": "PlaceModel",
    "models.torchvision_compat": "import_torchvision",
    "retrieval.engines": "open_engine",
    "retrieval.exact": "search",
    "serve.app": "create_app",
    "serve.settings": "Settings",
    "slam.calibrate": "collect fit_closures",
    "slam.calibrations": "load_calibration",
    "slam.cells": "patch_maps_of",
    "slam.city_descriptors": "Looks look_at",
    "slam.city_drive": "drive_through",
    "slam.evaluation": "same_place",
    "slam.loop_closer": "LoopCloser",
    "slam.motion": "PoseMotion",
    "slam.pose_graph": "IncrementalGraph optimise",
    "slam.sequence": "HistogramFilter place_matrix",
    "slam.types": "Frame",
    "training.recipes": "settings_for",
    "training.run": "train",
    "training.settings": "Settings",
    "training.training_set": "TrainingSet",
    "uncertainty.base": "Evidence",
    "uncertainty.evidence": "Evidence",
    "uncertainty.geometric": "geometric",
    "uncertainty.local_features": "Verification",
    "uncertainty.registry": "score_named",
    "uncertainty.sue": "sue",
    "uncertainty.z_score": "z_score",
}
"""Module paths that README and docs named before the packages had public names, with the names they used."""


def test_the_public_names_are_these() -> None:
    assert set(kappaplace.__all__) == set(PUBLIC.split())


@pytest.mark.filterwarnings("ignore:kappaplace.export has moved")
@pytest.mark.parametrize("path", DOCUMENTED)
def test_a_documented_path_still_imports(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them still are modules does not matter to those who import them."""
    name = f"kappaplace.{path}"
    if name in _names.MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
        with pytest.warns(DeprecationWarning, match=f"{name} has moved, use kappaplace"):
            module = import_module(name)
    else:
        module = import_module(name)
    for each in DOCUMENTED[path].split():
        assert getattr(module, each) is not None


def test_only_documented_paths_are_aliases() -> None:
    assert set(_names.MODULES) - {"kappaplace.export"} <= {f"kappaplace.{path}" for path in DOCUMENTED}
    with pytest.raises(ModuleNotFoundError):
        import_module("kappaplace.uncertainty.registry2")


def test_a_module_that_exists_is_no_alias() -> None:
    source = Path(kappaplace.__file__).parent
    for name in _names.MODULES:
        file = source.joinpath(*name.split(".")[1:])
        assert not file.with_suffix(".py").exists(), name
        assert not (file / "__init__.py").exists(), name


@pytest.mark.parametrize(("old", "new"), [("Neighbourhood", "Neighborhood"), ("search", "retrieval.search")])
def test_an_old_name_warns(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"kappaplace.{old} has moved, use kappaplace"):
        found = getattr(kappaplace, old)
    assert found is getattr(
        import_module("kappaplace.data" if old[0] == "N" else "kappaplace.retrieval"), new.split(".")[-1]
    )


def test_the_warning_names_the_line_of_the_user(tmp_path: Path) -> None:
    script = tmp_path / "old.py"
    script.write_text("import kappaplace.maps.monitor\n", encoding="utf-8")
    command = [sys.executable, "-W", "always::DeprecationWarning", str(script)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{script}:1: DeprecationWarning: kappaplace.maps.monitor has moved" in answer.stderr


PACKAGES = sorted(path.parent.name for path in Path(kappaplace.__file__).parent.glob("*/__init__.py"))


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "cli"])
def test_every_exported_name_exists(package: str) -> None:
    module = import_module(f"kappaplace.{package}")
    for name in module.__all__:
        assert getattr(module, name) is not None
    if hasattr(module, "lazy_exports"):  # a module of that name would hide what loads on first use
        folder = Path(module.__file__).parent
        assert not [name for name in module.__all__ if (folder / f"{name}.py").exists()]


def test_a_missing_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'kappaplace\.data' has no attribute 'nothing'"):
        import_module("kappaplace.data").nothing  # noqa: B018


def test_short_calls() -> None:
    """Lists of names, and a score by its name."""
    evidence = kappaplace.retrieve(Queries(similarities=np.eye(2)), MatrixReferences(count=2), 2)
    for name in ("l2", "cosine"):
        assert name in kappaplace.list_scores()
        np.testing.assert_array_equal(kappaplace.score(name, evidence), match_score(name, evidence)[:, 0])
    with pytest.raises(kappaplace.KappaPlaceError, match="rates queries only"):
        match_score("tld-distribution", evidence)
    assert kappaplace.list_models()[0] == "kappaplace-lite0"


def test_no_warning_without_an_old_path() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kappaplace.PlaceMap is not None
