"""Trains a model: from the settings of a recipe and images with places to a folder."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, write_file, writing
from kappaplace.models.checkpoint import TrainableModel, load_weights
from kappaplace.training.assembly import Assembly
from kappaplace.training.features import FeatureStore
from kappaplace.training.images import TrainingSet
from kappaplace.training.loop import FILE as STATE
from kappaplace.training.loop import EpochRow, Loop
from kappaplace.training.recipes import Say, recipe_named
from kappaplace.training.settings import Settings, read_toml
from kappaplace.training.start import Engine, starting_model
from kappaplace.training.validation import ValidationSet

SETTINGS = "settings.toml"


@dataclass(frozen=True)
class Trained:
    """The result of a run."""

    folder: Path
    """Folder of the run; the model is in ``folder / "model"``."""
    epochs: list[EpochRow]
    """One row per epoch: losses and validation metrics."""
    model: TrainableModel
    """The best model by the watched metric. Without validation, the last one."""
    features: FeatureStore | None = None
    """Features of the images from the frozen encoder, if the head was trained on them."""
    main: bool = True
    """Whether this process writes files and messages; False in all but one of several processes."""


def train(
    settings: Settings,
    data: TrainingSet,
    folder: str | Path,
    validation: ValidationSet | None = None,
    *,
    model: TrainableModel | None = None,
    device: str = "",
    say: Say = lambda line: None,
) -> Trained:
    """Run a recipe. If the folder contains an unfinished part of the same run, training resumes there.

    Args:
        settings: Options of the run, as `kappaplace.training.recipes.settings_for` returns them.
        data: Training images.
        folder: Folder of the run.
        validation: Queries and references to measure each epoch with. Default: no early stopping, and the
            last model is the result.
        model: Model to start from. Default: ``model.start`` of the settings.
        device: "cpu" to force the CPU. Default: the GPU if there is one.
        say: Function that prints a line. Default: nothing is printed.

    Returns:
        The trained model, its folder, and one row per epoch.

    Raises:
        KappaPlaceError: If the settings, the images and the model do not fit together, or training diverges.
    """
    folder = make_folder(folder)
    engine = Engine.create(settings.run, device, folder)
    # All processes of a run share its folder; another run must not write to it.
    with writing(folder, "run") if engine.main else nullcontext():
        _check_same_run(folder, settings)
        return _train(settings, data, folder, validation, model, engine, say)


def _train(
    settings: Settings,
    data: TrainingSet,
    folder: Path,
    validation: ValidationSet | None,
    model: TrainableModel | None,
    engine: Engine,
    say: Say,
) -> Trained:
    recipe = recipe_named(settings.recipe)
    if engine.main:
        write_file(folder / SETTINGS, settings.to_toml())
    run = Assembly(
        settings, recipe, data, folder, validation, starting_model(settings, recipe, model), engine, say
    )
    loop = run.loop()
    epochs = loop.fit()
    engine.finish()
    return Trained(folder, epochs, _result(loop), run.store, engine.main)


def _result(loop: Loop) -> TrainableModel:
    """Return the model with the weights that were saved: the best ones, or without validation the last."""
    if loop.validator is not None:
        load_weights(loop.model, loop.folder / "model")
    # With the memory layout of `load_model`, because rounding depends on it.
    return loop.model.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]


def _check_same_run(folder: Path, settings: Settings) -> None:
    """Fail if the folder contains the state of another run."""
    file = folder / SETTINGS
    if file.is_file() and (folder / STATE).is_file():  # without a state, nothing was trained
        values = read_toml(file)
        previous = Settings(recipe=str(values.pop("recipe", ""))).changed(values)
        differences = settings.differences(previous)
        if differences:
            raise KappaPlaceError(
                f"{folder} contains a run with other settings ({'; '.join(differences[:3])}). Choose another "
                "folder."
            )
