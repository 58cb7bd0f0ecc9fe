"""The recipes by name: what is frozen, which head, which places, which objective, and the paper's numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import TrainableModel
from kappaplace.models.heads import DropoutHead, Head, HeadName, build_head
from kappaplace.models.published import read_prototypes
from kappaplace.training.features import FeatureStore
from kappaplace.training.images import TrainingSet
from kappaplace.training.losses import FixedAnchors
from kappaplace.training.objectives import (
    BayesianTriplet,
    Classification,
    Contrastive,
    Distillation,
    Objective,
    ToAnchors,
    gather_batch,
)
from kappaplace.training.places import PlaceGroup, Places, find_places, single_images
from kappaplace.training.prototypes import (
    FILE,
    clean_anchors,
    place_anchors,
    prototype_anchors,
    restore_prototypes,
    view_anchors,
)
from kappaplace.training.settings import ClassSettings, Option, Settings, parse_options, read_toml
from kappaplace.uncertainty import score_named

Say: TypeAlias = Callable[[str], None]
Groups: TypeAlias = tuple[Places, tuple[PlaceGroup, ...]]


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of a run from which its objective is built."""

    settings: Settings
    data: TrainingSet
    model: TrainableModel
    places: Places
    groups: tuple[PlaceGroup, ...]
    device: torch.device
    extract: Callable[[], FeatureStore]
    """Returns the features of the frozen encoder, computed at the first call."""
    say: Say

    @property
    def grid(self) -> ClassSettings:
        """The class settings, with what the classes were made of."""
        return replace(self.settings.classes, by=self.places.by)


def place_groups(settings: Settings, data: TrainingSet) -> Groups:
    """Return groups of places that are never neighbors; the objective compares places of one group."""
    places = _find_places(settings, data)
    return places, places.groups(settings.classes.groups)


def all_places(settings: Settings, data: TrainingSet) -> Groups:
    """Return all places as one group, for objectives that do not compare places."""
    places = _find_places(settings, data)
    return places, (places.together(),)


def anchor_places(settings: Settings, data: TrainingSet) -> Groups:
    """Return the places that have anchors as one group."""
    source = settings.anchors.source
    if source in ("views", "clean"):
        places = single_images(len(data.images))
        return places, (places.together(),)
    if source != "classifier":
        return all_places(settings, data)
    places, file = _find_places(settings, data), _prototype_file(settings)
    if file.is_file() and file.suffix != ".safetensors":  # the release: its groups are the first ones
        present = places.classes.group_of_class < len(read_prototypes(file))
        return places, (places.classes.select(places.chosen[present[places.chosen]]),)
    groups = places.groups(settings.classes.groups)
    return places, (places.classes.select(np.sort(np.concatenate([group.classes for group in groups]))),)


def _find_places(settings: Settings, data: TrainingSet) -> Places:
    return find_places(data.positions, data.heading, data.place, settings.classes)


def _prototype_file(settings: Settings) -> Path:
    """The file of the settings or of the starting model; the authors' release keeps both in one."""
    file, start = settings.anchors.prototypes, settings.model.start
    if not file and not start:
        raise KappaPlaceError("Name the file of class prototypes with anchors.prototypes.")
    return Path(file) if file else Path(start) if Path(start).is_file() else Path(start) / FILE


def classification(parts: Parts, joint: bool = False) -> Objective:
    """Return large-margin classification, with new prototypes or those of a start on the same places."""
    settings = parts.settings
    sizes = [len(group) for group in parts.groups]
    weight = settings.loss.weight if joint else 0.0
    objective = Classification(sizes, parts.model.dim, settings.loss, weight, settings.run.seed)
    file = Path(settings.model.start) / FILE
    if settings.model.start and file.is_file():
        prototypes = list(objective.prototypes)
        count = restore_prototypes(file, prototypes, parts.groups, parts.places.classes, parts.grid)
        parts.say(f"Continuing with {count:,} of {sum(sizes):,} prototypes from {file}.")
    return objective


def to_anchors(parts: Parts, gaussian: bool = False) -> Objective:
    """Return the likelihood around fixed anchors."""
    settings = parts.settings
    compiled = settings.run.compile and parts.device.type == "cuda"
    return ToAnchors(_anchors(parts), settings.loss, gaussian, compiled)


def _anchors(parts: Parts) -> FixedAnchors:
    settings, classes, group = parts.settings, parts.places.classes, parts.groups[0]
    source, count = settings.anchors.source, len(parts.data.images)
    if source == "classifier":
        file = _prototype_file(settings)
        return prototype_anchors(file, group, classes, parts.grid, parts.model.dim)
    if source == "places":
        return place_anchors(parts.extract(), group, count)
    return (clean_anchors if source == "clean" else view_anchors)(parts.extract(), count)


def multi_similarity(parts: Parts, joint: bool = False) -> Objective:
    """Return the multi-similarity loss; with ``joint`` also the likelihood around batch centroids."""
    loss = parts.settings.loss
    return Contrastive(loss, True, loss.weight if joint else 0.0, gather_batch)


def to_centroids(parts: Parts) -> Objective:
    """Return only the likelihood around batch centroids."""
    return Contrastive(parts.settings.loss, False, 1.0, gather_batch)


def bayesian_triplet(parts: Parts) -> Objective:
    """Return the Bayesian triplet loss."""
    return BayesianTriplet(parts.settings.loss, gather_batch)


def distillation(parts: Parts) -> Objective:
    """Return STUN's loss; the teacher is the model before the run, whose state is loaded later."""
    teacher = copy.deepcopy(parts.model)
    teacher.head = None
    return Distillation(teacher.eval(), parts.settings.loss)


@dataclass(frozen=True)
class Recipe:
    """One way to train."""

    name: str
    about: str
    head: HeadName
    objective: Callable[[Parts], Objective]
    """Builds the objective."""
    places: Callable[[Settings, TrainingSet], Groups] = place_groups
    """Finds the places to train on."""
    frozen: bool = False
    """Whether the encoder is frozen and only the head is trained."""
    place_batches: bool = False
    """Whether a batch has several images of each place, all of which are compared."""
    weighted: bool = False
    """Whether loss.weight must be above zero."""
    needs_start: bool = False
    defaults: Mapping[str, Option] = field(default_factory=dict)


_PT: Mapping[str, Option] = {
    "optimiser.lr": 1e-3,
    "optimiser.epochs": 30,
    "optimiser.iterations": 0,
    "stop.metrics": ["ECE@1"],
}
_PLACES: Mapping[str, Option] = {"optimiser.batch_size": 128, "optimiser.images_per_place": 4}
_POST_TRAINING = partial(Recipe, frozen=True, needs_start=True)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("retrieval", "an encoder by classification of places, without κ", "none", classification),
        _POST_TRAINING(
            "kappa-pt",
            "κ for a trained encoder, which stays frozen",
            "mirrored",
            to_anchors,
            anchor_places,
            weighted=True,
            defaults=_PT,
        ),
        Recipe(
            "kappa-jt",
            "encoder and κ together",
            "mirrored",
            partial(classification, joint=True),
            weighted=True,
            defaults={"stop.metrics": ["R@1", "ECE@1"]},
        ),
        Recipe(
            "contrastive",
            "an encoder by multi-similarity loss on batches of P places × K images",
            "none",
            multi_similarity,
            place_batches=True,
            defaults=_PLACES,
        ),
        _POST_TRAINING(
            "contrastive-pt",
            "κ around batch centroids for a trained encoder, which stays frozen",
            "mirrored",
            to_centroids,
            place_batches=True,
            defaults={**_PT, **_PLACES, "anchors.source": "batch"},
        ),
        Recipe(
            "contrastive-jt",
            "encoder by multi-similarity loss and κ around batch centroids together",
            "mirrored",
            partial(multi_similarity, joint=True),
            place_batches=True,
            weighted=True,
            defaults={**_PLACES, "stop.metrics": ["R@1", "ECE@1"], "anchors.source": "batch"},
        ),
        Recipe(
            "stun",
            "baseline: a student that learns a teacher's descriptors and its own variance",
            "stun",
            distillation,
            all_places,
            needs_start=True,
            defaults={"optimiser.epochs": 6, "optimiser.iterations": 43_800, "stop.patience": 0},
        ),
        _POST_TRAINING(
            "gnll",
            "ablation: a Gaussian's variance around the prototypes instead of κ",
            "variance",
            partial(to_anchors, gaussian=True),
            anchor_places,
            defaults=_PT,
        ),
        _POST_TRAINING(
            "linear-head",
            "ablation: κ from the descriptor only",
            "linear",
            to_anchors,
            anchor_places,
            weighted=True,
            defaults=_PT,
        ),
        Recipe(
            "mc-dropout",
            "baseline: an encoder whose descriptors spread under dropout",
            "dropout",
            classification,
        ),
        Recipe(
            "btl",
            "baseline: Bayesian triplet loss, descriptors with a variance",
            "variance",
            bayesian_triplet,
            place_batches=True,
            defaults=_PLACES,
        ),
    )
}


def recipe_named(name: str) -> Recipe:
    """A recipe by its name."""
    if name not in RECIPES:
        raise KappaPlaceError(f"Unknown recipe '{name}'; choose one of: {', '.join(RECIPES)}.")
    return RECIPES[name]


def settings_for(name: str, config: str = "", options: list[str] | None = None) -> Settings:
    """A recipe's defaults, changed by a TOML file, then by ``section.key=value`` options.

    >>> settings = settings_for("kappa-jt", options=["optimiser.epochs=3"])
    >>> settings.optimiser.epochs, settings.loss.weight
    (3, 0.01)
    """
    recipe = recipe_named(name)
    settings = Settings(recipe=name).changed(recipe.defaults)
    if config:
        stated = read_toml(config)
        other = stated.pop("recipe", name)
        if other != name:
            raise KappaPlaceError(f"The settings {config} are for the recipe '{other}', not for '{name}'.")
        settings = settings.changed(stated)
    return settings.changed(parse_options(options or []))


def check_run(settings: Settings, recipe: Recipe, model: TrainableModel, processes: int) -> None:
    """Refuse what cannot be trained as asked, before anything is computed."""
    batch, run, source = (
        settings.optimiser.batch_size,
        settings.run,
        settings.anchors.source,
    )
    shares = processes * run.accumulate
    if batch % shares:
        raise KappaPlaceError(
            f"A batch of {batch} cannot be shared by {processes} processes in "
            f"{run.accumulate} parts each; choose a multiple."
        )
    per_place = settings.optimiser.images_per_place
    if recipe.place_batches and (batch // shares) % per_place:
        raise KappaPlaceError(
            f"{batch // shares} images a process cannot be made of places with {per_place} images each; "
            "change optimiser.batch_size or optimiser.images_per_place."
        )
    if recipe.place_batches and run.accumulate > 1:
        raise KappaPlaceError(
            f"The recipe {recipe.name} compares all images of a batch, so it cannot be computed in "
            "parts: set run.accumulate to 1."
        )
    if recipe.frozen and settings.anchors.cache and settings.anchors.views < 1:
        raise KappaPlaceError(
            "The cache holds a fixed number of views: set anchors.views to 1 or more, or anchors.cache=false."
        )
    if recipe.places is anchor_places and source == "batch":
        raise KappaPlaceError("Batch centroids belong to the recipes contrastive-pt and contrastive-jt.")
    if recipe.weighted and not settings.loss.weight > 0:
        raise KappaPlaceError(
            f"loss.weight must be above zero, or κ never learns; got {settings.loss.weight!r}."
        )
    if settings.stop.score:
        score_named(settings.stop.score)
    head, wanted = model.head, build_head(recipe.head, 1, 2)
    if _meaning(head) != _meaning(wanted):
        raise KappaPlaceError(
            f"The recipe {recipe.name} trains {_meaning(wanted)}, but model.head="
            f"{settings.model.head} gives {_meaning(head)}."
        )


def _meaning(head: nn.Module | None) -> str:
    if isinstance(head, DropoutHead):
        return "dropout"
    return head.spread if isinstance(head, Head) else "no uncertainty"
