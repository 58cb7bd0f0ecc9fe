"""Training run: takes the settings of a recipe and images with places, and writes a model to a folder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, write_file, writing
from kappaplace.models.checkpoint import ModelCard, TrainableModel, load_weights
from kappaplace.models.encoder import state_digest
from kappaplace.models.heads import KappaHead
from kappaplace.training.batches import BatchPlan
from kappaplace.training.features import (
    FeatureEncoder,
    FeatureStore,
    Share,
    ViewSource,
    extract_features,
    feature_function,
    frozen_features,
)
from kappaplace.training.images import ImageSource, TrainingSet, Views, fingerprint_images
from kappaplace.training.loop import FILE as STATE
from kappaplace.training.loop import FIRST_LOOK, LOG_EVERY, EpochRow, Loop
from kappaplace.training.objectives import Classification, Objective
from kappaplace.training.optimizers import Optimizers
from kappaplace.training.prototypes import FILE, save_prototypes
from kappaplace.training.recipes import ANCHORS, Parts, Recipe, Say, check_run, recipe_named
from kappaplace.training.settings import Settings, read_toml
from kappaplace.training.start import Engine, HeadNet, TrainingNet, starting_model
from kappaplace.training.steps import CachedSteps, DirectSteps, GraphedSteps, Steps, Work
from kappaplace.training.validation import EarlyStopping, ValidationSet, Validator

SETTINGS = "settings.toml"
EXTRACTION_BATCH = (64, 256)  # on a CPU and on a GPU; without gradients, more images fit into memory


@dataclass(frozen=True)
class Trained:
    """The result of a run."""

    folder: Path
    """Folder of the run; the model is in ``folder / "model"``."""
    epochs: list[EpochRow]
    """Losses and validation metrics, one row per epoch."""
    model: TrainableModel
    """The best model by the watched metric, or without validation the last one."""
    features: FeatureStore | None = None
    """Features of the images from the frozen encoder, if the head was trained on them."""
    main: bool = True
    """Whether this process writes files and messages, which only one of several processes does."""


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
    """Run a recipe. An unfinished run in the folder is resumed.

    Args:
        settings: Options of the run, as `kappaplace.training.recipes.settings_for` returns them.
        data: Training images.
        folder: Folder of the run.
        validation: Queries and references to measure each epoch with. Without them, the last model is the
            result.
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
    # All processes of a run share its folder, but another run must not write to it.
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
    """Return the model with the saved weights: the best ones, or without validation the last ones."""
    if loop.validator is not None:
        load_weights(loop.model, loop.folder / "model")
    # The memory layout is that of `load_model`, because rounding depends on it.
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


@dataclass
class Assembly:
    """Builds the loop of a run from its settings, images and model."""

    settings: Settings
    """Options of the run."""
    recipe: Recipe
    """The recipe."""
    data: TrainingSet
    """Training images."""
    folder: Path
    """Folder of the run."""
    validation: ValidationSet | None
    """Queries and references to validate with. Default: no validation."""
    model: TrainableModel
    """The model to train."""
    engine: Engine
    """Device and processes."""
    say: Say
    """Function that prints a line."""
    store: FeatureStore | None = None
    """Features of the frozen encoder; None before they are extracted."""

    def loop(self) -> Loop:
        """Return the loop. Features are extracted first if the recipe needs them."""
        settings, recipe, engine = self.settings, self.recipe, self.engine
        check_run(settings, recipe, self.model, engine.processes)
        self.start = state_digest(self.model.state_dict())
        self.model.to(engine.device)
        if settings.run.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.places, self.groups = recipe.places(settings, self.data)
        self.plan = self._plan()
        self.source = ImageSource(
            self.data.images, self._input(), engine.device, _workers(settings.run.workers)
        )
        self.views = Views.create(
            settings.augment, settings.model.size, self.model.preprocessing, settings.run.compile
        )
        self.parts = Parts(
            settings,
            self.data,
            self.model,
            self.places,
            self.groups,
            engine.device,
            self._describe,
            self.extract,
            self.say if engine.main else lambda line: None,
        )
        objective = recipe.objective(self.parts).to(engine.device)
        if self._cached:  # last, because it takes longest
            self.extract()
        if recipe.frozen and (self._cached or not settings.anchors.learn_p):
            _freeze_p(self.model.head)  # type: ignore[arg-type]
        total = settings.optimizer.epochs * self.plan.iterations
        optimizers = Optimizers(self.model, objective, len(self.groups), settings.optimizer, total)
        # A head on cached features uses float32.
        scaled = settings.run.precision == "fp16" and not self._cached
        scaler = torch.amp.GradScaler(engine.device.type) if scaled else None
        work = Work(self.plan, objective, optimizers, engine.accelerator, settings.run.accumulate, scaler)
        steps = self._steps(work)
        self._start_head(steps, objective)
        torch.manual_seed(settings.run.seed + 1 + engine.rank)  # dropout differs between processes
        watched = settings.stop.metrics if self.validation is not None else ()
        return Loop(
            settings=settings,
            folder=self.folder,
            model=self.model,
            steps=steps,
            work=work,
            stopping=EarlyStopping(watched, settings.stop.patience, settings.stop.min_delta),
            validator=self._validator(),
            card=ModelCard(
                data=self.data.name or "not stated",
                notes=f"recipe {recipe.name}, {len(self.data.images):,} images",
            ),
            frozen=recipe.frozen,
            data=self.data.fingerprint,
            start=self.start,
            keep=self._keeper(objective),
            say=self.say,
            chunk=settings.run.checkpoint_every if self._graphed else LOG_EVERY,
        )

    @property
    def _cached(self) -> bool:
        return self.recipe.frozen and self.settings.anchors.cache

    @property
    def _graphed(self) -> bool:
        return self._cached and self.engine.processes == 1 and self._fits_on_gpu

    @cached_property
    def _fits_on_gpu(self) -> bool:
        """Whether all features fit into half of the free memory of the device."""
        if self.engine.device.type != "cuda" or self.store is None:
            return False
        needed = self.store.reduced.nbytes + self.store.descriptor.nbytes
        return needed < 0.5 * torch.cuda.mem_get_info(self.engine.device)[0]

    def _plan(self) -> BatchPlan:
        options = self.settings.optimizer
        per_epoch = max(len(group.images) for group in self.groups) // options.batch_size
        return BatchPlan(
            self.groups,
            options.batch_size,
            options.iterations or max(1, per_epoch),
            self.settings.run.seed,
            options.images_per_place if self.recipe.place_batches else 0,
            self.settings.anchors.views if self.recipe.frozen else 0,
        )

    def _input(self) -> Preprocessing:
        """Return the preprocessing of training images, with the image size of the settings."""
        own = self.model.preprocessing
        if not self.settings.model.size:
            return own
        return replace(own, size=self.settings.model.size, mode="exact")

    def extract(self) -> FeatureStore:
        """Return the features of the frozen encoder, computed at the first call."""
        anchors = self.settings.anchors
        if self.store is not None:
            return self.store
        if anchors.views < 1:
            raise KappaPlaceError(
                f"Anchors from {anchors.source} need numbered views. Set anchors.views to 1 or more."
            )
        extra = ANCHORS[anchors.source].views if anchors.source in ANCHORS else ()
        views = (*extra, *range(anchors.views))
        rows = np.unique(np.concatenate([group.images for group in self.groups]))
        self.model.eval()
        self.store = extract_features(
            self.folder / "features",
            self._features_key(rows, views),
            ViewSource(self.source, self.views, rows, views, self.settings.run.seed),
            FeatureEncoder(
                feature_function(self.model, self.settings.run),
                max(EXTRACTION_BATCH[self.engine.device.type != "cpu"], self.settings.optimizer.batch_size),
                self.engine.autocast,
                self.settings.run.channels_last,
                probe=partial(frozen_features, self.model),
            ),
            Share(self.engine.rank, self.engine.processes, self.engine.wait),
        )
        return self.store

    @torch.inference_mode()
    def _describe(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the descriptors of unchanged images from the frozen encoder."""
        self.model.eval()
        size = EXTRACTION_BATCH[self.engine.device.type != "cpu"]
        batches = self.source.batches(rows, size)
        return torch.cat([frozen_features(self.model, self.views.clean(x))[1] for _, x in batches])

    def _features_key(self, rows: NDArray[np.int64], views: tuple[int, ...]) -> str:
        """Return a hash of everything that the features depend on."""
        settings = (
            self.settings.augment,
            self.settings.model.size,
            self.settings.run.seed,
            self.settings.run.precision,
        )
        parts = (
            self.start,
            self.model.preprocessing,
            settings,
            views,
            type(self.model.head).__name__,
            getattr(self.model, "layer", None),
            getattr(self.model, "prefix_tokens", None),
        )
        digest = hashlib.sha256(repr(parts).encode())
        digest.update(rows.tobytes())
        digest.update(fingerprint_images(self.data.images, times=True))
        return digest.hexdigest()

    def _steps(self, work: Work) -> Steps:
        if self._cached:
            assert self.store is not None
            head = self.engine.wrap(HeadNet(self.model.head))  # type: ignore[arg-type]
            if self._graphed:
                return GraphedSteps(work, head, self.store)
            return CachedSteps(work, head, self.store, in_memory=self._fits_on_gpu)
        net: nn.Module = TrainingNet(self.model)
        if self.settings.run.compile:
            net.compile()
        return DirectSteps(
            work,
            self.engine.wrap(net),
            self.source,
            self.views,
            self.engine.autocast,
            self.settings.run.channels_last,
        )

    @torch.no_grad()
    def _start_head(self, steps: Steps, objective: Objective) -> None:
        """Set κ (or σ²) to the best constant for the first images, because training from κ = 0.7 would take
        days."""
        value = self.settings.model.start_kappa
        if value < 0 or not isinstance(self.model.head, KappaHead) or self.model.head.trained:
            return
        if value == 0 and not objective.has_anchors:
            value = objective.best_constant(0.0, self.model.dim)
        if value == 0:
            self.model.eval()
            batches = -(-FIRST_LOOK // self.plan.batch_size)
            cosines = [objective.cosine(step) for step in steps.peek(batches)]
            cosine = self.engine.accelerator.reduce(torch.cat(cosines).mean(), "mean")
            if not math.isfinite(cosine):
                raise KappaPlaceError(
                    "The encoder returned descriptors that are NaN or infinite. Check the model and "
                    "run.precision."
                )
            value = objective.best_constant(float(cosine), self.model.dim)
        self.model.head.start_at(value)

    def _validator(self) -> Validator | None:
        if self.validation is None:
            return None
        stop = self.settings.stop
        return Validator(
            self.validation,
            stop.score,
            stop.binning,
            frozen=self.recipe.frozen and (self._cached or not self.settings.anchors.learn_p),
            batch_size=self.settings.optimizer.batch_size,
            workers=_workers(self.settings.run.workers),
            device=self.engine.device,
            autocast=self.engine.autocast,
            gather=self.engine.accelerator.gather,
            rank=self.engine.rank,
            processes=self.engine.processes,
        )

    def _keeper(self, objective: Objective) -> Callable[[Path], None]:
        if not isinstance(objective, Classification):
            return lambda folder: None
        return lambda folder: save_prototypes(
            folder / FILE, list(objective.prototypes), self.groups, self.places.classes, self.parts.grid
        )


def _freeze_p(head: nn.Module) -> None:
    for name, parameter in head.named_parameters():
        if name.endswith("gem.p"):
            parameter.requires_grad_(False)


def _workers(option: int) -> int | None:
    return None if option < 0 else option
