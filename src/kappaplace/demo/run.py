"""The demo: train on one district, add κ, retrieve in a district never seen, and judge the scores."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from kappaplace.data.augment import CosPlaceAugmentation
from kappaplace.data.classes import PlaceClasses, assign_classes
from kappaplace.data.images import Preprocessing
from kappaplace.data.positives import positives_within
from kappaplace.data.synthetic_city import CityViews, Conditions, SyntheticCity
from kappaplace.data.synthetic_city.conditions import harsh
from kappaplace.evaluation import Evaluation, evaluate
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.exact import search
from kappaplace.training.quick import cache_features, fit_kappa_head, image_anchors, train_classifier
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty.base import Evidence, Scores
from kappaplace.uncertainty.registry import SCORES, score_named

RADIUS = 25.0  # metres within which a reference is a positive
MATCHES = 10
Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoSettings:
    """Everything that shapes the demo; the defaults take about two minutes on two cores."""

    seed: int = 0
    size: int = 64
    """Side of the images in pixels."""
    blocks: tuple[int, int] = (3, 3)
    train_spacing: float = 20.0
    """Metres of road between classes: neighbouring ones would look alike."""
    reference_spacing: float = 5.0
    queries: int = 400
    query_strength: float = 0.6
    """Highest level of damage in a query."""
    dim: int = 128
    steps: int = 700
    batch_size: int = 64


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the report shows."""

    settings: DemoSettings
    model: PlaceModel
    queries: CityViews
    references: CityViews
    query: Embeddings
    matches: Matches
    evaluation: Evaluation
    match_uncertainty: Scores
    """U of every pair, N×K."""
    damage_curve: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    """Per condition: levels, and mean and standard error of κ over the same views."""
    seconds: float


def run_demo(settings: DemoSettings | None = None, say: Say = lambda sentence: None) -> DemoResult:
    """Run everything in memory; ``say`` is told what is going on."""
    settings = settings or DemoSettings()
    start = time.perf_counter()
    torch.manual_seed(settings.seed)
    city = SyntheticCity(settings.seed, settings.blocks, aliased=0.12, featureless=0.12)
    say("Building a synthetic city: one district to learn from, another one to be tested in")
    training = city.views("train", spacing=settings.train_spacing, strength=0.6, seed=settings.seed)
    model, classes, prototypes = _train_encoder(training, settings, say)
    _train_kappa(model, training, classes, prototypes, settings, say)
    say("Retrieving in the district that was never seen")
    views = city.views(
        "test",
        spacing=settings.reference_spacing,
        queries=settings.queries,
        query_strength=settings.query_strength,
        seed=settings.seed,
    )
    queries, references = views.select(views.is_query), views.select(~views.is_query)
    inference = model.fold().eval()
    query, reference = (
        inference.embed(part.render(settings.size), batch_size=128) for part in (queries, references)
    )
    matches = search(query.descriptor, reference.descriptor, MATCHES)
    evidence = Evidence(matches, query, reference)
    positives = positives_within(queries.positions, references.positions, RADIUS)
    pairs = score_named("kappaplace").match
    assert pairs is not None
    return DemoResult(
        settings=settings,
        model=inference,
        queries=queries,
        references=references,
        query=query,
        matches=matches,
        evaluation=evaluate(evidence, positives.hits(matches.indices), list(SCORES.values())),
        match_uncertainty=pairs(evidence),
        damage_curve=kappa_against_damage(inference, queries, settings.size),
        seconds=time.perf_counter() - start,
    )


def _train_encoder(
    views: CityViews, settings: DemoSettings, say: Say
) -> tuple[PlaceModel, PlaceClasses, torch.nn.ParameterList]:
    # Classes 20 m apart are never neighbours, so a few groups do; the cells are the usual 10 m and 30°.
    classes = assign_classes(views.positions, views.heading, groups_per_axis=2, groups_per_heading=1)
    say(f"Training a small encoder to tell {len(classes)} places apart ({len(views):,} images)")
    preprocessing = Preprocessing(settings.size, "exact", mean=(0.5,) * 3, std=(0.25,) * 3)
    model = PlaceModel.create("resnet_tiny", settings.dim, preprocessing=preprocessing)
    # The city brings its own light and weather, so crops are augmentation enough.
    augmentation = CosPlaceAugmentation(settings.size, 0.0, 0.0, 0.0, 0.0, scale=(0.6, 1.0))
    prototypes = train_classifier(
        model,
        _tensor(views.render(settings.size)),
        classes,
        steps=settings.steps,
        augment=augmentation,
        batch_size=settings.batch_size,
        lr=4e-3,
        seed=settings.seed,
    )
    return model, classes, prototypes


def _train_kappa(
    model: PlaceModel,
    views: CityViews,
    classes: PlaceClasses,
    prototypes: torch.nn.ParameterList,
    settings: DemoSettings,
    say: Say,
) -> None:
    """PT: the same poses under harsher conditions, so that κ learns what damage does to a descriptor."""
    say("Freezing it and fitting the kappa head on damaged views of the same places")
    rng = np.random.default_rng([settings.seed, 7])
    damaged = replace(views, conditions=harsh(len(views), rng))
    rows = np.flatnonzero(classes.class_of_image >= 0)
    model.freeze_encoder()
    pooled, descriptors = cache_features(model, _tensor(damaged.render(settings.size, rows)))
    anchors = image_anchors(prototypes, classes, rows)
    fit_kappa_head(model, pooled, descriptors, anchors, seed=settings.seed)


def kappa_against_damage(
    model: PlaceModel, queries: CityViews, size: int, *, views: int = 40, steps: int = 5
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """κ of the same views under one condition at a time, from none to the worst."""
    chosen = queries.select(np.arange(min(views, len(queries))))
    levels = np.linspace(0.0, 1.0, steps)
    curves = {}
    for condition in ("night", "fog", "blur", "occlusion"):
        kappas = np.stack(
            [
                model.embed(
                    replace(
                        chosen, conditions=Conditions.clear(len(chosen), **{condition: float(level)})
                    ).render(size),
                    progress=False,
                ).kappa
                for level in levels
            ]
        )
        curves[condition] = (levels, kappas.mean(1), kappas.std(1) / np.sqrt(len(chosen)))
    return curves


def _tensor(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)
