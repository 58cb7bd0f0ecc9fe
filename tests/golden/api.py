"""The only place of the golden tests that knows where things live inside the package.

Modules may move; what is stored may not. Everything else here goes through the command line and top names.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from typer.testing import CliRunner

from kappaplace import (
    Embeddings,
    FrozenEncoder,
    KappaPlaceError,
    PlaceImages,
    PlaceMap,
    PlaceModel,
    load_model,
    save_model,
)
from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.combination import fit_combination
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.sources import load_calibration, save_calibration
from kappaplace.cli.main import app
from kappaplace.data.images import Preprocessing
from kappaplace.data.readers.trajectory import read_poses
from kappaplace.evaluation.results import read_result, write_result
from kappaplace.maps.options import BuildOptions, LocalizeOptions
from kappaplace.maps.store.manifest import read_manifest, write_manifest
from kappaplace.maps.tune.label_sheet import read_labels, write_labels
from kappaplace.maps.tune.monitor import MapMonitor
from kappaplace.models.checkpoint import load_checkpoint
from kappaplace.models.shipped import shipped_folder
from kappaplace.slam import Frame, LoopCloser
from kappaplace.slam.drive_files import closure_message, write_tum
from kappaplace.slam.loop_closer import ClosingSettings
from kappaplace.training.recipes import settings_for
from kappaplace.training.settings import Settings, read_toml

__all__ = [
    "BuildOptions",
    "CalibrateOptions",
    "Calibration",
    "Embeddings",
    "Examples",
    "FrozenEncoder",
    "KappaPlaceError",
    "LocalizeOptions",
    "PlaceImages",
    "PlaceMap",
    "PlaceModel",
    "Preprocessing",
    "closures",
    "command",
    "fit_calibration",
    "fit_combination",
    "load_calibration",
    "load_model",
    "own_encoder",
    "read_labels",
    "rewrite",
    "save_calibration",
    "save_model",
    "settings_for",
    "shipped_calibration",
    "write_labels",
    "write_tum",
]


def command(*words: object, code: int = 0) -> str:
    """What ``kappaplace WORDS`` prints."""
    found = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert found.exit_code == code, found.output
    return found.stdout


def closures(descriptors: Path, odometry: Path, calibration: Path, **settings: Any) -> list[dict[str, Any]]:
    """What `slam run` proposes and accepts; its back end (gtsam) is no part of this."""
    closer = LoopCloser(load_calibration(calibration), ClosingSettings(**settings))
    poses = read_poses(odometry, 2).poses
    with np.load(descriptors) as stored:
        for z, kappa, pose in zip(stored["descriptor"], stored["kappa"], poses, strict=True):
            closer.add(Frame(z, float(kappa), odometry=pose))
    return [dict(closure_message(closure)) for closure in closer.closures]


def own_encoder() -> nn.Module:
    """An encoder of somebody else's, always the same: the stored head belongs to it."""
    encoder = nn.Sequential(nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    grid = torch.linspace(-1, 1, 8 * 3 * 5 * 5, dtype=torch.float64)
    with torch.no_grad():
        encoder[0].weight.copy_(torch.sin(37 * grid).reshape(8, 3, 5, 5))
        encoder[0].bias.zero_()
    return encoder


def shipped_calibration() -> Path:
    """The calibration that comes with the pretrained model."""
    return shipped_folder() / "calibration.json"


def _manifest(file: Path, out: Path) -> None:
    write_manifest(out.parent, read_manifest(file.parent))


def _calibration(file: Path, out: Path) -> None:
    save_calibration(load_calibration(file), out)


def _shipped(file: Path, out: Path) -> None:
    made = Calibration.from_dict(json.loads(file.read_text(encoding="utf-8")))
    out.write_text(json.dumps(made.to_dict()) + "\n", encoding="utf-8")


def _labels(file: Path, out: Path) -> None:
    write_labels(read_labels(file), out)


def _monitor(file: Path, out: Path) -> None:
    shutil.copy(file, out)
    MapMonitor.open(file.with_name(file.name.removesuffix(".monitor.json")), out).save()


def _card(file: Path, out: Path) -> None:
    stated = json.loads(file.read_text(encoding="utf-8"))
    if stated["kind"] == "frozen-encoder":
        save_model(load_model(file.parent, encoder=own_encoder()), out.parent)
    else:
        model, card = load_checkpoint(file.parent)
        save_model(model, out.parent, card, half=file.parent.name == "half")


def _evaluation(file: Path, out: Path) -> None:
    write_result(read_result(file.parent), out.parent)


def _settings(file: Path, out: Path) -> None:
    stated = read_toml(file)
    made = Settings(recipe=str(stated.pop("recipe"))).changed(stated)
    out.write_text(made.to_toml(), encoding="utf-8")


_WRITERS = {
    "manifest.json": _manifest,
    "card.json": _card,
    "results.json": _evaluation,
    "settings.toml": _settings,
}


def rewrite(file: Path, out: Path) -> None:
    """Read a stored record and write it again, as today's code does."""
    if file.name in _WRITERS:
        writer = _WRITERS[file.name]
    elif file.name.endswith(".monitor.json"):
        writer = _monitor
    elif file.suffix == ".csv":
        writer = _labels
    else:
        writer = _shipped if file == shipped_calibration() else _calibration
    writer(file, out)
