"""Settings that contradict each other, the model or the machine."""

from __future__ import annotations

from torch import nn

from kappaplace.errors import KappaPlaceError
from kappaplace.models.heads import DropoutHead, Head, build_head
from kappaplace.models.loading import TrainableModel
from kappaplace.training.recipes import Recipe
from kappaplace.training.settings import Settings
from kappaplace.uncertainty.registry import score_named


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
