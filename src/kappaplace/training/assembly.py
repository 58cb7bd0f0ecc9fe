"""Puts the parts of a run together: places, batches, features, loss, steps, loop."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import ModelCard, TrainableModel
from kappaplace.models.encoder import state_digest
from kappaplace.models.heads import KappaHead
from kappaplace.models.published import read_prototypes
from kappaplace.training.batches import BatchPlan
from kappaplace.training.early_stopping import EarlyStopping
from kappaplace.training.features import (
    CLEAN,
    FeatureEncoder,
    FeatureStore,
    Share,
    ViewSource,
    extract_features,
    feature_function,
    frozen_features,
)
from kappaplace.training.images import ImageSource, TrainingSet, Views, fingerprint_images
from kappaplace.training.loop import FIRST_LOOK, LOG_EVERY, Loop
from kappaplace.training.objectives import (
    BayesianTriplet,
    Classification,
    Contrastive,
    Distillation,
    Objective,
    ToAnchors,
    gather_batch,
)
from kappaplace.training.optimizers import Optimisers
from kappaplace.training.places import PlaceGroup, Places, find_places, single_images
from kappaplace.training.prototypes import (
    FILE,
    clean_anchors,
    place_anchors,
    prototype_anchors,
    restore_prototypes,
    save_prototypes,
    view_anchors,
)
from kappaplace.training.recipes import Recipe, check_run
from kappaplace.training.settings import Settings
from kappaplace.training.start import Engine, HeadNet, TrainingNet
from kappaplace.training.steps import CachedSteps, DirectSteps, Steps, Work
from kappaplace.training.validation import ValidationSet, Validator

Say = Callable[[str], None]
EXTRACTION_BATCH = (64, 256)  # on a CPU, on a GPU: without gradients there is room for more


@dataclass
class Assembly:
    """Puts the parts of a run together."""

    settings: Settings
    recipe: Recipe
    data: TrainingSet
    folder: Path
    validation: ValidationSet | None
    model: TrainableModel
    engine: Engine
    say: Say

    def loop(self) -> Loop:
        settings, recipe, engine = self.settings, self.recipe, self.engine
        check_run(settings, recipe, self.model, engine.processes)
        self.start = state_digest(self.model.state_dict())
        self.model.to(engine.device)
        if settings.run.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.places, self.groups = self._find_groups()
        self.plan = self._plan()
        self.source = ImageSource(
            self.data.images, self._input(), engine.device, _workers(settings.run.workers)
        )
        self.views = Views.create(
            settings.augment, settings.model.size, self.model.preprocessing, settings.run.compile
        )
        self.store = self._extract()
        objective = self._objective().to(engine.device)
        if recipe.frozen and (self._cached or not settings.anchors.learn_p):
            _freeze_p(self.model.head)  # type: ignore[arg-type]
        total = settings.optimiser.epochs * self.plan.iterations
        optimisers = Optimisers(self.model, objective, len(self.groups), settings.optimiser, total)
        steps = self._steps(
            Work(self.plan, objective, optimisers, engine.accelerator, settings.run.accumulate)
        )
        self._start_head(steps, objective)
        torch.manual_seed(settings.run.seed + 1 + engine.rank)  # dropout differs between processes
        watched = settings.stop.metrics if self.validation is not None else ()
        return Loop(
            settings=settings,
            folder=self.folder,
            model=self.model,
            steps=steps,
            optimisers=optimisers,
            objective=objective,
            stopping=EarlyStopping(watched, settings.stop.patience, settings.stop.min_delta),
            accelerator=engine.accelerator,
            iterations=self.plan.iterations,
            autocast=engine.autocast,
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
        """Whether all features can stay on the device: they take half of what is free, or less."""
        if self.engine.device.type != "cuda" or self.store is None:
            return False
        needed = self.store.reduced.nbytes + self.store.descriptor.nbytes
        return needed < 0.5 * torch.cuda.mem_get_info(self.engine.device)[0]

    def _find_groups(self) -> tuple[Places, tuple[PlaceGroup, ...]]:
        if self.recipe.kind == "anchors" and self.settings.anchors.source in ("views", "clean"):
            places = single_images(len(self.data.images))
            return places, (places.together(),)
        places = find_places(self.data.positions, self.data.heading, self.data.place, self.settings.classes)
        if self.recipe.kind in ("anchors", "distillation"):
            return places, (self._trained_classes(places),)
        return places, places.groups(self.settings.classes.groups)

    def _trained_classes(self, places: Places) -> PlaceGroup:
        """For the likelihood alone places need no groups; prototypes exist for the trained groups only."""
        if self.recipe.kind == "anchors" and self.settings.anchors.source == "classifier":
            file = self._prototypes()
            if file.is_file() and file.suffix != ".safetensors":  # the release: its groups are the first ones
                released = places.classes.group_of_class < len(read_prototypes(file))
                return places.classes.select(places.chosen[released[places.chosen]])
            groups = places.groups(self.settings.classes.groups)
            return places.classes.select(np.sort(np.concatenate([group.classes for group in groups])))
        return places.together()

    def _plan(self) -> BatchPlan:
        options = self.settings.optimiser
        per_epoch = max(len(group.images) for group in self.groups) // options.batch_size
        return BatchPlan(
            self.groups,
            options.batch_size,
            options.iterations or max(1, per_epoch),
            self.settings.run.seed,
            options.images_per_place if self.recipe.kind in ("contrastive", "triplet") else 0,
            self.settings.anchors.views if self.recipe.frozen else 0,
        )

    def _input(self) -> Preprocessing:
        """Training images have one size, whatever the model takes at inference, unless it is to be that."""
        own = self.model.preprocessing
        if not self.settings.model.size:
            return own
        return Preprocessing(
            self.settings.model.size, "exact", own.interpolation, own.mean, own.std, own.multiple
        )

    def _extract(self) -> FeatureStore | None:
        """Features of the frozen encoder, where the head or the anchors need them."""
        anchors = self.settings.anchors
        needed = self._cached or (
            self.recipe.kind == "anchors" and anchors.source in ("places", "views", "clean")
        )
        if not needed:
            return None
        if anchors.views < 1:
            raise KappaPlaceError(
                f"Anchors from {anchors.source} need numbered views; set anchors.views to 1 or more."
            )
        views = tuple(range(anchors.views))
        if anchors.source == "clean":
            views = (CLEAN, *views)
        rows = np.unique(np.concatenate([group.images for group in self.groups]))
        self.model.eval()
        return extract_features(
            self.folder / "features",
            self._features_key(rows, views),
            ViewSource(self.source, self.views, rows, views, self.settings.run.seed),
            FeatureEncoder(
                feature_function(self.model, self.settings.run),
                max(EXTRACTION_BATCH[self.engine.device.type != "cpu"], self.settings.optimiser.batch_size),
                self.engine.autocast,
                self.settings.run.channels_last,
                probe=partial(frozen_features, self.model),
            ),
            Share(self.engine.rank, self.engine.processes, self.engine.wait),
        )

    def _features_key(self, rows: NDArray[np.int64], views: tuple[int, ...]) -> str:
        """All that the features depend on."""
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

    def _objective(self) -> Objective:
        settings, kind = self.settings, self.recipe.kind
        weight = settings.loss.weight if self.recipe.spread else 0.0
        if kind == "classification":
            return self._classification(weight)
        if kind == "contrastive":
            weight = weight if self.recipe.retrieval else 1.0
            return Contrastive(settings.loss, self.recipe.retrieval, weight, gather_batch)
        if kind == "triplet":
            return BayesianTriplet(settings.loss, gather_batch)
        if kind == "distillation":
            return Distillation(self._teacher(), settings.loss)
        compiled = settings.run.compile and self.engine.device.type == "cuda"
        return ToAnchors(self._anchors(), settings.loss, self.recipe.head == "variance", compiled)

    def _classification(self, weight: float) -> Classification:
        """Fresh prototypes, or those of the starting model where it was trained on the same places."""
        sizes = [len(group) for group in self.groups]
        loss, dim = self.settings.loss, self.model.dim
        objective = Classification(sizes, dim, loss, weight, self.settings.run.seed)
        file = Path(self.settings.model.start) / FILE
        if self.settings.model.start and file.is_file():
            grid = replace(self.settings.classes, by=self.places.by)
            found = restore_prototypes(
                file, list(objective.prototypes), self.groups, self.places.classes, grid
            )
            if self.engine.main:
                self.say(f"{found:,} of {sum(sizes):,} prototypes go on from {file}.")
        return objective

    def _teacher(self) -> nn.Module:
        """The model as it is at the start of the run: a state to go on from is read only later."""
        teacher = copy.deepcopy(self.model)
        teacher.head = None
        return teacher.eval()

    def _anchors(self) -> Any:
        source, group, classes = self.settings.anchors.source, self.groups[0], self.places.classes
        if source == "classifier":
            file = self._prototypes()
            grid = replace(self.settings.classes, by=self.places.by)
            return prototype_anchors(file, group, classes, grid, self.model.dim)
        assert self.store is not None
        count = len(self.data.images)
        if source == "places":
            return place_anchors(self.store, group, count)
        return clean_anchors(self.store, count) if source == "clean" else view_anchors(self.store, count)

    def _prototypes(self) -> Path:
        """The stated file, else that of the starting model; the authors' release keeps both in one."""
        stated, start = self.settings.anchors.prototypes, self.settings.model.start
        if not stated and not start:
            raise KappaPlaceError("Name the file of class prototypes with anchors.prototypes.")
        return Path(stated) if stated else Path(start) if Path(start).is_file() else Path(start) / FILE

    def _steps(self, work: Work) -> Steps:
        if self._cached:
            assert self.store is not None
            head = self.engine.wrap(HeadNet(self.model.head))  # type: ignore[arg-type]
            if self._graphed:
                from kappaplace.training.steps import GraphedSteps

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
        """Set κ (or σ²) to the best constant for the first images: from 0.7 it would travel for days."""
        value = self.settings.model.start_kappa
        if value < 0 or not isinstance(self.model.head, KappaHead) or self.model.head.trained:
            return
        if value == 0 and isinstance(objective, BayesianTriplet):
            value = objective.best_constant(0.0, self.model.dim)
        if value == 0:
            self.model.eval()
            looks = -(-FIRST_LOOK // self.plan.batch_size)
            cosines = [objective.cosine(step) for step in steps.peek(looks)]
            cosine = torch.cat(cosines).mean()
            if self.engine.processes > 1:
                cosine = self.engine.accelerator.reduce(cosine, "mean")
            if not math.isfinite(cosine):
                raise KappaPlaceError(
                    "The encoder gives descriptors that are not finite; check the model and its precision."
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
            batch_size=self.settings.optimiser.batch_size,
            workers=_workers(self.settings.run.workers),
            rank=self.engine.rank,
            processes=self.engine.processes,
        )

    def _keeper(self, objective: Objective) -> Callable[[Path], None]:
        if not isinstance(objective, Classification):
            return lambda folder: None
        grid = replace(self.settings.classes, by=self.places.by)
        return lambda folder: save_prototypes(
            folder / FILE, list(objective.prototypes), self.groups, self.places.classes, grid
        )


def _freeze_p(head: nn.Module) -> None:
    for name, parameter in head.named_parameters():
        if name.endswith("gem.p"):
            parameter.requires_grad_(False)


def _workers(stated: int) -> int | None:
    return None if stated < 0 else stated
