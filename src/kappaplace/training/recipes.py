"""The recipes by name: what is frozen, which head, which loss, and the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kappaplace.errors import KappaPlaceError
from kappaplace.models.heads import HeadName
from kappaplace.training.settings import Settings, parse_options, read_toml

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
