"""The recipes by name: what is frozen, which head, which loss, and the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import TrainableModel
from kappaplace.models.heads import DropoutHead, Head, HeadName, build_head
from kappaplace.training.settings import Settings, parse_options, read_toml
from kappaplace.uncertainty import score_named

Kind = Literal["classification", "anchors", "contrastive", "distillation", "triplet"]


@dataclass(frozen=True)
class Recipe:
    """One way to train."""

    name: str
    about: str
    kind: Kind
    head: HeadName
    frozen: bool = False
    """Whether the encoder stays as it is and only the head learns."""
    retrieval: bool = True
    """Whether the descriptors learn from the loss (contrastive kinds)."""
    spread: bool = False
    """Whether the vMF term takes part."""
    needs_start: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)


_PT = {"optimiser.lr": 1e-3, "optimiser.epochs": 30, "optimiser.iterations": 0, "stop.metrics": ["ECE@1"]}
_PLACES = {"optimiser.batch_size": 128, "optimiser.images_per_place": 4}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("retrieval", "an encoder by classification of places, without κ", "classification", "none"),
        Recipe(
            "kappa-pt",
            "κ for a trained encoder, which stays as it is",
            "anchors",
            "mirrored",
            frozen=True,
            spread=True,
            needs_start=True,
            defaults=_PT,
        ),
        Recipe(
            "kappa-jt",
            "encoder and κ together",
            "classification",
            "mirrored",
            spread=True,
            defaults={"stop.metrics": ["R@1", "ECE@1"]},
        ),
        Recipe(
            "contrastive",
            "an encoder by multi-similarity loss on batches of P places × K images",
            "contrastive",
            "none",
            defaults=_PLACES,
        ),
        Recipe(
            "contrastive-pt",
            "κ around batch centroids for a trained encoder, which stays as it is",
            "contrastive",
            "mirrored",
            frozen=True,
            retrieval=False,
            spread=True,
            needs_start=True,
            defaults={**_PT, **_PLACES, "anchors.source": "batch"},
        ),
        Recipe(
            "contrastive-jt",
            "encoder by multi-similarity loss and κ around batch centroids together",
            "contrastive",
            "mirrored",
            spread=True,
            defaults={**_PLACES, "stop.metrics": ["R@1", "ECE@1"], "anchors.source": "batch"},
        ),
        Recipe(
            "stun",
            "baseline: a student that learns a teacher's descriptors and its own variance",
            "distillation",
            "stun",
            needs_start=True,
            defaults={"optimiser.epochs": 6, "optimiser.iterations": 43_800, "stop.patience": 0},
        ),
        Recipe(
            "gnll",
            "ablation: a Gaussian's variance around the prototypes instead of κ",
            "anchors",
            "variance",
            frozen=True,
            needs_start=True,
            defaults=_PT,
        ),
        Recipe(
            "linear-head",
            "ablation: κ from the descriptor alone",
            "anchors",
            "linear",
            frozen=True,
            spread=True,
            needs_start=True,
            defaults=_PT,
        ),
        Recipe(
            "mc-dropout",
            "baseline: an encoder whose descriptors spread under dropout",
            "classification",
            "dropout",
        ),
        Recipe(
            "btl",
            "baseline: Bayesian triplet loss, descriptors with a variance",
            "triplet",
            "variance",
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
    if recipe.kind in ("contrastive", "triplet") and (batch // shares) % per_place:
        raise KappaPlaceError(
            f"{batch // shares} images a process cannot be made of places with {per_place} images each; "
            "change optimiser.batch_size or optimiser.images_per_place."
        )
    if recipe.kind in ("contrastive", "triplet") and run.accumulate > 1:
        raise KappaPlaceError(
            f"The recipe {recipe.name} compares all images of a batch, so it cannot be computed in "
            "parts: set run.accumulate to 1."
        )
    if recipe.frozen and settings.anchors.cache and settings.anchors.views < 1:
        raise KappaPlaceError(
            "The cache holds a fixed number of views: set anchors.views to 1 or more, or anchors.cache=false."
        )
    if recipe.kind == "anchors" and source == "batch":
        raise KappaPlaceError("Batch centroids belong to the recipes contrastive-pt and contrastive-jt.")
    if recipe.spread and recipe.retrieval and not settings.loss.weight > 0:
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
