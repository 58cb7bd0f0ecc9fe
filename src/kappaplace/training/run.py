"""`train`: from a recipe's settings and images with places to a model folder."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file, writing
from kappaplace.models.checkpoint import TrainableModel, load_weights
from kappaplace.training.assembly import Assembly
from kappaplace.training.features import FeatureStore
from kappaplace.training.images import TrainingSet
from kappaplace.training.loop import FILE as STATE
from kappaplace.training.loop import Loop
from kappaplace.training.recipes import Say, recipe_named
from kappaplace.training.settings import Settings, read_toml
from kappaplace.training.start import Engine, starting_model
from kappaplace.training.validation import ValidationSet

SETTINGS = "settings.toml"


@dataclass(frozen=True)
class Trained:
    """What a run leaves."""

    folder: Path
    epochs: list[dict[str, Any]]
    """One row an epoch: losses and validation."""
    model: TrainableModel
    """The run's result: the best by the watched metric, else the last."""
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
    """Run a recipe; a folder that holds a part of the same run goes on from there.

    ``model`` is what to start from, instead of ``model.start``; ``device`` "cpu" leaves a GPU alone.
    """
    folder = make_folder(folder)
    engine = Engine.create(settings.run, device, folder)
    # The processes of one run share its folder; another run may not come between them.
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
        replace_file(folder / SETTINGS, lambda part: part.write_text(settings.to_toml(), encoding="utf-8"))
    run = Assembly(
        settings, recipe, data, folder, validation, starting_model(settings, recipe, model), engine, say
    )
    loop = run.loop()
    epochs = loop.fit()
    engine.finish()
    return Trained(folder, epochs, _result(loop), run.store, engine.main)


def _result(loop: Loop) -> TrainableModel:
    """The model at hand with the weights that were kept: the best, or the last where none was measured."""
    if loop.validator is not None:
        load_weights(loop.model, loop.folder / "model")
    # As `load_model` would give it: rounding depends on the layout.
    return loop.model.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]


def _check_same_run(folder: Path, settings: Settings) -> None:
    """Refuse to go on with another run's state."""
    file = folder / SETTINGS
    if file.is_file() and (folder / STATE).is_file():  # without a state it never began
        stated = read_toml(file)
        there = Settings(recipe=stated.pop("recipe", "")).changed(stated)
        differences = settings.differences(there)
        if differences:
            raise KappaPlaceError(
                f"{folder} holds a run with other settings ({'; '.join(differences[:3])}); choose another "
                "folder."
            )
