"""Recipes by name: head, places, objective, frozen parts, and the options of the paper."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kappaplace.checks import choice
from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import TrainableModel
from kappaplace.models.heads import DropoutHead, Head, HeadName, build_head
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.published import read_prototypes
from kappaplace.training.features import CLEAN, FeatureStore
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
    check_prototypes,
    clean_anchors,
    is_release,
    place_anchors,
    prototype_anchors,
    release_order,
    restore_prototypes,
    view_anchors,
)
from kappaplace.training.settings import (
    ClassSettings,
    Settings,
    parse_options,
    peer_preset,
    preset,
    read_toml,
)
from kappaplace.uncertainty import score_named

Say: TypeAlias = Callable[[str], None]
Groups: TypeAlias = tuple[Places, tuple[PlaceGroup, ...]]


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of a run from which its objective is built."""

    settings: Settings
    """Options of the run."""
    data: TrainingSet
    """Training images."""
    model: TrainableModel
    """The model to train."""
    places: Places
    """Classes of the images."""
    groups: tuple[PlaceGroup, ...]
    """Groups of classes, which take turns."""
    device: torch.device
    """Device of the model."""
    describe: Callable[[NDArray[np.int64]], Tensor]
    """Function that returns the descriptors of unchanged images from the frozen encoder."""
    extract: Callable[[], FeatureStore]
    """Function that returns the features of the frozen encoder, computed at the first call."""
    say: Say
    """Function that prints a line."""

    @property
    def grid(self) -> ClassSettings:
        """Options of the classes, in which "auto" is replaced by the kind that was used."""
        return replace(self.settings.classes, by=self.places.by)


def place_groups(settings: Settings, data: TrainingSet) -> Groups:
    """Return groups of places that are never neighbors. The objective compares places of the same group."""
    places = _find_places(settings, data)
    return places, _groups(places, settings, data)


def _groups(places: Places, settings: Settings, data: TrainingSet) -> tuple[PlaceGroup, ...]:
    first = settings.classes.group_order == "first"
    return places.groups(settings.classes.groups, data.by_name if first else None)


def all_places(settings: Settings, data: TrainingSet) -> Groups:
    """Return all places as one group, for objectives that do not compare places."""
    places = _find_places(settings, data)
    return places, (places.together(),)


def anchor_places(settings: Settings, data: TrainingSet) -> Groups:
    """Return the places that have anchors as one group."""
    return ANCHORS[settings.anchors.source].places(settings, data)


def _each_image(settings: Settings, data: TrainingSet) -> Groups:
    places = single_images(len(data.images))
    return places, (places.together(),)


def _classifier_places(settings: Settings, data: TrainingSet) -> Groups:
    places, file = _find_places(settings, data), _prototype_file(settings)
    if is_release(file):  # the release has only the first groups
        order = release_order(data, settings)[: len(read_prototypes(file))]
        stored = {tuple(cell) for group in order for cell in group.tolist()}
        present = [tuple(cell) in stored for cell in places.classes.cells[places.selection].tolist()]
        return places, (places.classes.select(places.selection[np.array(present, bool)]),)
    groups = _groups(places, settings, data)
    return places, (places.classes.select(np.sort(np.concatenate([group.classes for group in groups]))),)


def _find_places(settings: Settings, data: TrainingSet) -> Places:
    return find_places(data.positions, data.heading, data.place, settings.classes)


def _prototype_file(settings: Settings) -> Path:
    """Return the file of prototypes from the settings, or the file next to the starting model."""
    file, start = settings.anchors.prototypes, settings.model.start
    if not file and not start:
        raise KappaPlaceError("The file of class prototypes is unknown. Set anchors.prototypes.")
    return Path(file) if file else Path(start) if Path(start).is_file() else Path(start) / FILE


def classification(parts: Parts, joint: bool = False) -> Objective:
    """Return large-margin classification, with new prototypes or those of the starting model."""
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
    anchors = ANCHORS[settings.anchors.source].anchors(parts)
    return ToAnchors(anchors, settings.loss, gaussian, compiled)


def _classifier_anchors(parts: Parts) -> FixedAnchors:
    file, group, classes = _prototype_file(parts.settings), parts.groups[0], parts.places.classes
    if not is_release(file):
        return prototype_anchors(file, group, classes, parts.grid, parts.model.dim)
    order = release_order(parts.data, parts.settings)
    anchors = prototype_anchors(file, group, classes, parts.grid, parts.model.dim, order)
    sizes = [len(matrix) for matrix in read_prototypes(file)]
    rate = check_prototypes(anchors, sizes, parts.describe, file)
    parts.say(f"For {rate:.0%} of the sampled images, their prototype in {file} is the most similar one.")
    return anchors


@dataclass(frozen=True)
class AnchorSource:
    """A source of fixed anchors."""

    places: Callable[[Settings, TrainingSet], Groups]
    """Function that finds the places that have anchors."""
    anchors: Callable[[Parts], FixedAnchors]
    """Function that computes the anchors."""
    views: tuple[int, ...] = ()
    """Views that are needed in addition to the augmented ones."""


ANCHORS: dict[str, AnchorSource] = {
    "classifier": AnchorSource(_classifier_places, _classifier_anchors),
    "places": AnchorSource(
        all_places, lambda parts: place_anchors(parts.extract(), parts.groups[0], len(parts.data.images))
    ),
    "views": AnchorSource(_each_image, lambda parts: view_anchors(parts.extract(), len(parts.data.images))),
    "clean": AnchorSource(
        _each_image, lambda parts: clean_anchors(parts.extract(), len(parts.data.images)), (CLEAN,)
    ),
}
"""Sources of fixed anchors by the value of ``anchors.source``; "batch" has no fixed anchors."""


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
    """Return STUN's loss. The teacher is a copy of the model before the run."""
    teacher, options = copy.deepcopy(parts.model), parts.settings.model
    teacher.head = None
    if options.student == "new" and isinstance(parts.model, PlaceModel):
        kind = parts.model.architecture
        student = PlaceModel.create(kind.backbone, kind.dim, kind.head, pretrained=options.pretrained)
        parts.model.load_state_dict(student.state_dict())
    return Distillation(teacher.eval(), parts.settings.loss)


@dataclass(frozen=True)
class Recipe:
    """A kind of training."""

    name: str
    """Name on the command line."""
    about: str
    """Description in one line."""
    head: HeadName
    """Head of the model."""
    objective: Callable[[Parts], Objective]
    """Function that builds the objective."""
    places: Callable[[Settings, TrainingSet], Groups] = place_groups
    """Function that finds the places to train on."""
    frozen: bool = False
    """Whether the encoder is frozen and only the head is trained."""
    place_batches: bool = False
    """Whether a batch has several images of each place, all of which are compared."""
    weighted: bool = False
    """Whether loss.weight must be above zero."""
    needs_start: bool = False
    """Whether the run must start from a trained model."""


_POST_TRAINING = partial(Recipe, frozen=True, needs_start=True)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("retrieval", "an encoder by classification of places, without κ", "none", classification),
        _POST_TRAINING(
            "kappa-pt",
            "κ for a trained encoder, which does not change",
            "mirrored",
            to_anchors,
            anchor_places,
            weighted=True,
        ),
        Recipe(
            "kappa-jt",
            "an encoder together with κ",
            "mirrored",
            partial(classification, joint=True),
            weighted=True,
        ),
        Recipe(
            "contrastive",
            "an encoder by multi-similarity loss on batches of P places × K images",
            "none",
            multi_similarity,
            place_batches=True,
        ),
        _POST_TRAINING(
            "contrastive-pt",
            "κ around batch centroids for a trained encoder, which does not change",
            "mirrored",
            to_centroids,
            place_batches=True,
        ),
        Recipe(
            "contrastive-jt",
            "an encoder by multi-similarity loss, together with κ around batch centroids",
            "mirrored",
            partial(multi_similarity, joint=True),
            place_batches=True,
            weighted=True,
        ),
        Recipe(
            "stun",
            "baseline: a student that learns a teacher's descriptors and their variance",
            "stun",
            distillation,
            all_places,
            needs_start=True,
        ),
        _POST_TRAINING(
            "gnll",
            "ablation: a Gaussian variance around the prototypes instead of κ",
            "variance",
            partial(to_anchors, gaussian=True),
            anchor_places,
        ),
        _POST_TRAINING(
            "linear-head",
            "ablation: κ from the descriptor only",
            "linear",
            to_anchors,
            anchor_places,
            weighted=True,
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
        ),
    )
}


def recipe_named(name: str) -> Recipe:
    """Return a recipe by its name."""
    choice(name, RECIPES, "recipe")
    return RECIPES[name]


def settings_for(
    name: str, config: str = "", options: list[str] | None = None, *, peers: str = ""
) -> Settings:
    """Return the options of a run, from the recipe, a TOML file and the command line, in this order.

    Args:
        name: Name of the recipe.
        config: TOML file with options. Default: none.
        options: Options as ``section.key=value``.
        peers: Preset to apply after that of the recipe: "paper", or a table of the paper. Default: none.

    Returns:
        The settings.

    Raises:
        KappaPlaceError: If the recipe or an option is unknown, or a value is invalid.

    >>> settings = settings_for("kappa-jt", options=["optimizer.epochs=3"])
    >>> settings.optimizer.epochs, settings.loss.weight
    (3, 0.01)
    """
    recipe = recipe_named(name)
    settings = Settings(recipe=name).changed(preset(recipe.name))
    if peers:
        settings = settings.changed(peer_preset(peers, recipe.name))
    if config:
        values = read_toml(config)
        other = values.pop("recipe", name)
        if other != name:
            raise KappaPlaceError(
                f"The settings {config} are for the recipe '{other}', not for '{name}'. Pass other settings, "
                "or this recipe."
            )
        settings = settings.changed(values)
    return settings.changed(parse_options(options or []))


def check_run(settings: Settings, recipe: Recipe, model: TrainableModel, processes: int) -> None:
    """Fail early if the settings contradict each other, the recipe or the model.

    Args:
        settings: Options of the run.
        recipe: The recipe.
        model: The model to train.
        processes: Number of processes.

    Raises:
        KappaPlaceError: If the run is not possible.
    """
    batch, run, source = settings.optimizer.batch_size, settings.run, settings.anchors.source
    parts = processes * run.accumulate
    if batch % parts:
        raise KappaPlaceError(
            f"optimizer.batch_size must be a multiple of {parts} ({processes} processes × "
            f"run.accumulate={run.accumulate}), got {batch}."
        )
    per_place = settings.optimizer.images_per_place
    if recipe.place_batches and (batch // parts) % per_place:
        raise KappaPlaceError(
            f"Images per process must be a multiple of optimizer.images_per_place={per_place}, got "
            f"{batch // parts}. Change optimizer.batch_size or optimizer.images_per_place."
        )
    if recipe.place_batches and run.accumulate > 1:
        raise KappaPlaceError(
            f"The recipe {recipe.name} compares all images of a batch and cannot compute it in parts. Set "
            "run.accumulate to 1."
        )
    if recipe.frozen and settings.anchors.cache and settings.anchors.views < 1:
        raise KappaPlaceError(
            "The cache needs a fixed number of views. Set anchors.views to 1 or more, or anchors.cache=false."
        )
    if recipe.places is anchor_places and source not in ANCHORS:
        raise KappaPlaceError(
            f"The recipe {recipe.name} does not support anchors.source={source}. Choose from: "
            f"{', '.join(ANCHORS)}."
        )
    if recipe.weighted and not settings.loss.weight > 0:
        raise KappaPlaceError(f"loss.weight must be above zero to train κ, got {settings.loss.weight!r}.")
    if settings.stop.score:
        score_named(settings.stop.score)
    trained, actual = _meaning(build_head(recipe.head, 1, 2)), _meaning(model.head)
    if trained != actual:
        raise KappaPlaceError(
            f"The recipe {recipe.name} trains {trained}, but model.head={settings.model.head} outputs "
            f"{actual}. Choose another head or recipe."
        )


def _meaning(head: nn.Module | None) -> str:
    if isinstance(head, DropoutHead):
        return "dropout"
    return head.spread if isinstance(head, Head) else "no uncertainty"
